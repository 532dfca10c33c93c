"""The service's log: its last part, following, and only the lines with what is typed above."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.widget import Widget
from textual.widgets import Input

from tui.commands import CommandTable
from tui.screens.place_screen import PlaceScreen
from tui.widgets.log_view import LogView

__all__ = ["LogScreen", "read_end"]

_READ_EVERY_S = 1.0
_MAX_BYTES = 256 * 1024  # what came before is in the file


class LogScreen(PlaceScreen):
    """Reads the file in a thread, once a second while it is looked at."""

    CSS_PATH: ClassVar[Any] = ["place_screen.tcss", "log.tcss"]
    PLACE = "log"
    TABLE: ClassVar[CommandTable[Any]] = CommandTable(())

    def body(self) -> Iterable[Widget]:
        field = Input(placeholder="Only lines with …", compact=True)
        field.cursor_blink = False
        yield field
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
        path = self.resources.settings.cache_dir / "service.log"
        wanted = self.query_one(Input).value.casefold()
        text = await asyncio.to_thread(read_end, path)
        lines = [line for line in text.splitlines(keepends=True) if wanted in line.casefold()]
        self.query_one(LogView).show("".join(lines) or f"No line yet in {path}.\n")


def read_end(path: Path, max_bytes: int = _MAX_BYTES) -> str:
    """Return the last lines of a file, at most `max_bytes` of them, each whole; why not, where it cannot be read."""
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
