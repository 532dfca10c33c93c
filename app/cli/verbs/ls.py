"""`localllm ls`: the models of this machine, line by line as soon as each is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING

import click

from app.cli.options import options
from app.cli.output.format import format_bytes, format_count, print_json
from app.cli.resources import open_index
from app.common.terminal import printable_line
from app.settings.settings import load_settings

if TYPE_CHECKING:
    from app.library.local.index import Index, LibraryEntry


_ABILITIES = (
    ("has_chat_template", "chat"),
    ("has_tools", "tools"),
    ("has_fim", "fim"),
    ("sees", "sees"),
    ("hears", "hears"),
)
_HEADINGS = ("size", "weights", "type", "context", "architecture", "can", "changed")
_WIDTHS = (8, 7, 9, 9, -12, -19, -10)  # of the columns behind the name; below 0: flush left


@click.command(epilog="Example: localllm ls --external")
@click.option("--external", "has_external", is_flag=True, help="Also models of Ollama, LM Studio and Hugging Face.")
@options("wants_json")
def ls(*, has_external: bool, wants_json: bool) -> None:
    """List the models of this machine, the built-in one first.

    GGUF files that you copy into the models folder, or a folder in it, are listed too. A model that cannot run is
    marked as damaged, with the reason.
    Models of other programs run in place, by the names shown.
    """
    from app.library.external import external_models
    from app.library.local.index import LIBRARY, forget_missing, list_entries
    from app.library.local.resolve import available

    settings = load_settings()
    here = available(settings)
    with open_index(settings.cache_dir) as index:
        forget_missing(settings.models_dir, index)
        entries = list_entries((*here, *(external_models() if has_external else ())), index)
        if wants_json:
            print_json({"models": [entry.describe() for entry in _read(entries, index)]})
            return
        width = max(len(printable_line(entry.ref.id)) for entry in entries) if entries else 0
        click.echo(_line("name", width, _HEADINGS) + ("where" if has_external else ""))
        for entry in _read(entries, index):
            place = (entry.ref.place or LIBRARY) if has_external else ""
            click.echo(f"{_row(entry, width)}{place}".rstrip())


def _read(entries: Sequence[LibraryEntry], index: Index) -> Iterator[LibraryEntry]:
    """Yield all entries in order, reading the unread ones while a progress bar advances."""
    from app.library.local.index import read_entry

    n_unread = sum(not entry.is_read for entry in entries)
    with ExitStack() as owned:
        meter = None
        if n_unread:
            from app.cli.output.progress import Meter

            meter = owned.enter_context(Meter("Reading headers", n_unread))
        for entry in entries:
            yield entry if entry.is_read else read_entry(entry, index)
            if meter is not None and not entry.is_read:
                meter.advance()


def _row(entry: LibraryEntry, width: int) -> str:
    name, size = printable_line(entry.ref.id), format_bytes(entry.disk.n_bytes)
    if entry.facts is None:
        what = "still being copied" if entry.is_arriving else f"damaged: {printable_line(entry.fault)}"
        return f"{name:<{width}}  {size:>{_WIDTHS[0]}}  {what}  "
    facts = entry.facts
    cells = (
        size,
        format_count(facts.n_parameters),
        facts.file_type or "mixed",
        f"{facts.n_ctx_train:,}" if facts.n_ctx_train else "",
        facts.architecture,
        " ".join(word for name, word in _ABILITIES if getattr(facts, name)),
        datetime.fromtimestamp(entry.disk.modified_s).strftime("%Y-%m-%d"),
    )
    return _line(name, width, cells)


def _line(name: str, width: int, cells: Sequence[str]) -> str:
    """Return a row: the name flush left, then each cell in its column, with two spaces at the end."""
    placed = (f"{cell:{'<' if size < 0 else '>'}{abs(size)}}" for cell, size in zip(cells, _WIDTHS, strict=True))
    return "  ".join((f"{name:<{width}}", *placed, ""))
