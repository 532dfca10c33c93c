"""Jupyter notebooks → Markdown: text, code and what it printed. Pictures and HTML among the results are left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from app.chat.attachments.parsing import PageChoice, ParsedFile, RefusedFileError

_COLORS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MAX_OUTPUT_CHARACTERS = 4_000  # of one cell
_DAMAGED = ("is no notebook.", "Save it anew with Jupyter, or give it another ending to attach it as text.")


def prepare() -> None:
    """Load nothing: JSON is enough."""


def parse(data: bytes, _pages: PageChoice, _progress: Callable[[], None]) -> ParsedFile:
    """Return the cells of a notebook of format 3 or 4. Raises RefusedFileError for anything else."""
    try:
        notebook = json.loads(data.decode("utf-8-sig"))
    except ValueError as error:
        raise RefusedFileError(*_DAMAGED) from error
    cells = _cells(notebook)
    language = _language(notebook)
    text = "\n\n".join(filter(None, (part for cell in cells for part in _parts(cell, language))))
    if not text:
        raise RefusedFileError("has no text.", "Attach another file.")
    return ParsedFile(text, f"{len(cells):,} {'cell' if len(cells) == 1 else 'cells'}")


def _cells(notebook: Any) -> list[dict[str, Any]]:
    if not isinstance(notebook, dict):
        raise RefusedFileError(*_DAMAGED)
    sheets = notebook.get("worksheets")  # of format 3
    holders = [notebook, *(sheets if isinstance(sheets, list) else [])]
    cells = [holder.get("cells") for holder in holders if isinstance(holder, dict)]
    found = [cell for listed in cells if isinstance(listed, list) for cell in listed if isinstance(cell, dict)]
    if not found:
        raise RefusedFileError(*_DAMAGED)
    return found


def _language(notebook: dict[str, Any]) -> str:
    metadata = notebook.get("metadata")
    for name in ("language_info", "kernelspec"):
        info = metadata.get(name) if isinstance(metadata, dict) else None
        language = (
            (info.get("name") if name == "language_info" else info.get("language")) if isinstance(info, dict) else None
        )
        if isinstance(language, str) and language.isalnum():
            return language
    return "python"


def _parts(cell: dict[str, Any], language: str) -> Iterator[str]:
    source = _joined(cell.get("source", cell.get("input"))).strip()
    if cell.get("cell_type") != "code":
        yield source
        return
    if source:
        yield _fenced(source, language)
    outputs = cell.get("outputs")
    printed = (
        "".join(_printed(output) for output in outputs if isinstance(output, dict)) if isinstance(outputs, list) else ""
    )
    printed = _COLORS.sub("", printed).strip()
    if len(printed) > _MAX_OUTPUT_CHARACTERS:
        n_left_out = len(printed) - _MAX_OUTPUT_CHARACTERS
        printed = f"{printed[:_MAX_OUTPUT_CHARACTERS]}\n[{n_left_out:,} more characters of output left out]"
    if printed:
        yield f"Output:\n\n{_fenced(printed, '')}"


def _printed(output: dict[str, Any]) -> str:
    """Return what one output says as text."""
    if "ename" in output:
        return f"{_joined(output['ename'])}: {_joined(output.get('evalue'))}\n"
    data = output.get("data")
    text = _joined(data.get("text/plain") if isinstance(data, dict) else output.get("text"))
    return text if text.endswith("\n") or not text else f"{text}\n"


def _joined(lines: Any) -> str:
    """Return a text of nbformat: a string, or a list of lines."""
    if isinstance(lines, str):
        return lines
    return "".join(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else ""


def _fenced(text: str, language: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
