"""The service's log: its tail, following, with a filter."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from rich.cells import chop_cells
from textual import on, work
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Input, Log

from app.common.terminal import printable
from tui.commands import CommandTable
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

_READ_EVERY_S = 1.0
_MAX_BYTES = 256 * 1024  # earlier lines are in the file


class LogView(Log):
    """A wrapped log. Appends to a growing text, replaces any other; follows the end until the user scrolls."""

    def __init__(self) -> None:
        super().__init__(highlight=False, auto_scroll=False)  # the anchor does it after the layout
        self._text = ""
        self._wrap_cells = 0  # the width the lines are wrapped to

    def on_mount(self) -> None:
        self.anchor()

    def show(self, text: str) -> None:
        """Show `text`, which need not be printable."""
        if text.startswith(self._text) and self._text.endswith("\n"):
            added = text[len(self._text) :]
        else:
            self.clear()
            self.anchor()
            added = text
        self._text = text
        self._append(added)

    def on_resize(self, _: Resize) -> None:
        """Wrap to the new width and scroll to the end."""
        if self.scrollable_content_region.width != self._wrap_cells:
            self._wrap_cells = self.scrollable_content_region.width
            self.clear()
            self._append(self._text)
            self.anchor()

    def _append(self, text: str) -> None:
        if text and self._wrap_cells:  # before the layout there is no width
            lines = printable(text.expandtabs(4)).split("\n")[: -1 if text.endswith("\n") else None]
            self.write_lines([part for line in lines for part in chop_cells(line, self._wrap_cells) or [""]])


class LogScreen(FeatureScreen):
    """Reads the file in a thread, once a second while visible."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "log.tcss"]
    FEATURE = "log"
    TABLE: ClassVar[CommandTable] = CommandTable(())

    def body(self) -> Iterable[Widget]:
        yield Input(placeholder="Filter lines", compact=True)
        yield LogView()

    def on_mount(self) -> None:
        self.set_interval(_READ_EVERY_S, self._follow)

    def on_screen_resume(self) -> None:
        self._read()

    @on(Input.Changed)
    def _narrowed(self) -> None:
        self._read()

    def _follow(self) -> None:
        if self.is_current:
            self._read()

    @work(exclusive=True)
    async def _read(self) -> None:
        path = self.app_context.settings.cache_dir / "service.log"
        wanted = self.query_one(Input).value.casefold()
        text = await asyncio.to_thread(read_end, path)
        lines = [line for line in text.splitlines(keepends=True) if wanted in line.casefold()]
        self.query_one(LogView).show("".join(lines) or f"No lines yet in {path}.\n")


def read_end(path: Path, max_bytes: int = _MAX_BYTES) -> str:
    """Return the last whole lines of a file, at most `max_bytes`; the reason if it cannot be read."""
    try:
        with path.open("rb") as file:
            n_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, n_bytes - max_bytes))
            data = file.read()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}.\n"
    if n_bytes > max_bytes:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")
