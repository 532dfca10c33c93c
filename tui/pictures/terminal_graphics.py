"""How a terminal shows pictures: by kitty's protocol, by half blocks, or not at all.

Not by sixels: textual-image draws them over what was there before, and in xterm 379 a picture of a reopened chat was
left in pieces. Half blocks and kitty's placeholders are text, and scroll with it.

Owns the question to the terminal, asked once when the first picture is to be shown, and its replies among the keys that
it sends. Imports nothing heavy.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from textual.app import App

_FEW_COLORS = (None, "standard", "windows")  # half blocks would show nothing of a picture
_PATIENCE_S, _LATEST_REPLY_S = 0.5, 10.0  # the picture waits for the first; a slow connection replies within the second
_HELD_S = 0.1  # the rest of a reply follows at once; that of a key, such as Esc, never
# Its name and version, kitty's question with a picture of one pixel, the size of a cell, and what every terminal
# answers: that comes last.
_QUESTION = "\x1b[>0q\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[16t\x1b[c"
_REPLY = re.compile(
    r"\x1b\[\?(?P<attributes>[\d;]*)c"
    r"|\x1bP>\|(?P<name>[^\x1b]*)\x1b\\"
    r"|\x1b_G(?P<kitty>[^\x1b]*)\x1b\\"
    r"|\x1b\[6;(?P<height>\d{1,4});(?P<width>\d{1,4})t"
)
_BEGUN_REPLY = re.compile(r"\x1b(?:\[(?:\?[\d;]*|6(?:;[\d;]*)?)?|_(?:G[^\x1b]*\x1b?)?|P(?:>(?:\|[^\x1b]*\x1b?)?)?)?\Z")
# Placeholders in text, which scroll with it, came to kitty with version 0.28; ghostty always had them.
_HAS_PLACEHOLDERS = re.compile(r"kitty\((?:0\.(?:2[89]|[3-9]\d)|[1-9])|ghostty")
_MAX_HELD = 256  # characters; a reply has fewer
_SILENT_TERMINALS = ("Apple_Terminal",)  # prints a part of a question that it does not understand


@dataclass(frozen=True, slots=True)
class TerminalGraphics:
    """How pictures are shown, and the size of a cell in pixels; where the terminal does not say it, a usual one."""

    protocol: Literal["kitty", "blocks", "none"]
    cell_width: int = 10
    cell_height: int = 20


BLOCKS = TerminalGraphics("blocks")
NO_PICTURES = TerminalGraphics("none")


class GraphicsQuery:
    """Asks a terminal once, and takes its replies out of its input. The input may be read in another thread."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[TerminalGraphics] | None = None
        self._is_awaited = False
        self._is_kitty = self._has_placeholders = False
        self._cell: tuple[int, int] | None = None
        self._held = ""
        self._held_since_s = 0.0

    async def ask(self, write: Callable[[str], object], cell: tuple[int, int] | None) -> TerminalGraphics:
        """Return how the terminal shows pictures; half blocks where it has not answered in half a second. `cell` is the
        width and height of a cell in pixels where the system knows it."""
        self._cell = cell or self._cell
        if self._answer is None:
            loop = asyncio.get_running_loop()
            self._answer = loop.create_future()
            self._is_awaited = True
            write(_QUESTION)
            loop.call_later(_LATEST_REPLY_S, self._give_up)
        with suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self._answer), _PATIENCE_S)
        return BLOCKS

    def filtered(self, data: str) -> str:
        """Return input without the replies. Holds the beginning of one back until its rest arrives; see `overdue`."""
        if not self._is_awaited and not self._held:
            return data
        data, self._held = self._held + data, ""
        data = _REPLY.sub(self._taken, data)
        begun = _BEGUN_REPLY.search(data) if self._is_awaited else None
        if begun is None or len(begun[0]) > _MAX_HELD:
            return data
        self._held, self._held_since_s = begun[0], time.monotonic()
        return data[: begun.start()]

    def overdue(self) -> str:
        """Return what was held back and has no reply's end: it is keys."""
        if not self._held or time.monotonic() - self._held_since_s < _HELD_S:
            return ""
        held, self._held = self._held, ""
        return held

    def _taken(self, reply: re.Match[str]) -> str:
        if reply["kitty"] is not None:
            self._is_kitty = reply["kitty"].endswith(";OK")
        elif reply["name"] is not None:
            self._has_placeholders = _HAS_PLACEHOLDERS.match(reply["name"]) is not None
        elif reply["attributes"] is None:
            width, height = int(reply["width"]), int(reply["height"])
            self._cell = self._cell or ((width, height) if width and height else None)
        else:
            self._is_awaited = False
            cell = self._cell or (BLOCKS.cell_width, BLOCKS.cell_height)
            # Some terminals know kitty's protocol, but not its placeholders in text.
            graphics = TerminalGraphics("kitty" if self._is_kitty and self._has_placeholders else "blocks", *cell)
            assert self._answer is not None
            self._answer.get_loop().call_soon_threadsafe(self._settle, graphics)
        return ""

    def _settle(self, graphics: TerminalGraphics) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(graphics)

    def _give_up(self) -> None:
        self._is_awaited = False
        self._settle(BLOCKS)


@runtime_checkable
class HasGraphicsQuery(Protocol):
    """A driver that can ask its terminal."""

    graphics_query: GraphicsQuery
    fileno: int

    def write(self, data: str) -> None: ...


async def graphics_of(app: App[None], environment: Mapping[str, str] = os.environ) -> TerminalGraphics:
    """Return how the app's terminal shows pictures. Without colours there are none; a driver that cannot ask, as on
    Windows and in tests, has half blocks."""
    driver = app._driver  # noqa: SLF001 - Textual has no other way to it
    if app.no_color or (app.console.color_system in _FEW_COLORS and not app.is_headless):
        return NO_PICTURES
    if not isinstance(driver, HasGraphicsQuery) or environment.get("TERM_PROGRAM") in _SILENT_TERMINALS:
        return BLOCKS
    return await driver.graphics_query.ask(driver.write, _cell_of(driver.fileno))


def _cell_of(terminal: int) -> tuple[int, int] | None:
    """Return the width and height of a cell in pixels, None where the system does not know it."""
    import fcntl  # a driver that can ask is for Linux or macOS
    import termios

    size = array("H", [0, 0, 0, 0])
    try:
        fcntl.ioctl(terminal, termios.TIOCGWINSZ, size)
    except OSError:
        return None
    rows, columns, width, height = size
    cell = (width // columns, height // rows) if rows and columns else (0, 0)
    return cell if all(cell) else None
