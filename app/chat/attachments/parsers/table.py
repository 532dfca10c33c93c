"""CSV and TSV → a Markdown table, by the standard library. The first row is the head."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Sequence

from app.chat.attachments.parsing import MAX_CHARACTERS, PageChoice, ParsedFile, RefusedFileError

_DELIMITERS = ",;\t|"
_MAX_COLUMNS = 1_000
_BOMS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def prepare() -> None:
    """Load nothing: the standard library is enough."""


def parse(data: bytes, _pages: PageChoice, _progress: Callable[[], None]) -> ParsedFile:
    """Return a table. Raises RefusedFileError for one that is empty, no text, or has more than 1,000 columns."""
    text = _decoded(data)
    csv.field_size_limit(MAX_CHARACTERS)
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text)) if any(row)]
    if not rows:
        raise RefusedFileError("is an empty table.", "Attach another file.")
    n_columns = max(map(len, rows))
    if n_columns > _MAX_COLUMNS:
        raise RefusedFileError(f"has {n_columns:,} columns.", f"Attach at most {_MAX_COLUMNS:,}.")
    lines = [_line(row, n_columns) for row in rows]
    lines.insert(1, _line(["---"] * n_columns, n_columns))
    return ParsedFile("\n".join(lines), f"{len(rows) - 1:,} rows, {n_columns:,} columns")


def _decoded(data: bytes) -> str:
    encoding = next((name for mark, name in _BOMS if data.startswith(mark)), "utf-8-sig")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise RefusedFileError("is neither UTF-8 nor UTF-16.", "Save it as CSV in UTF-8.") from error
    if "\0" in text:
        raise RefusedFileError("is no text.", "Save it as CSV in UTF-8.")
    return text


def _delimiter(text: str) -> str:
    """Return the delimiter that the first line has most of, outside quotes; a comma where it has none."""
    first = text.lstrip().partition("\n")[0]
    outside = "".join(first.split('"')[::2])
    counts = Counter({mark: outside.count(mark) for mark in _DELIMITERS})
    mark, n = counts.most_common(1)[0]
    return mark if n else ","


def _line(row: Sequence[str], n_columns: int) -> str:
    cells = (" ".join(cell.split()).replace("|", "\\|") for cell in (*row, *[""] * (n_columns - len(row))))
    return f"| {' | '.join(cells)} |"
