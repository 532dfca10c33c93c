"""textual-image's widgets, imported with the first picture, and the size of a picture in cells.

Owns that their import asks the terminal nothing: Textual would read the replies. `tui.pictures.terminal_graphics` asks.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from textual.geometry import Size
from textual.widget import Widget

from tui.pictures.terminal_graphics import TerminalGraphics

if TYPE_CHECKING:
    from PIL.Image import Image


_NAMES = {"kitty": "TGPImage", "blocks": "HalfcellImage"}


def load_widgets() -> None:
    """Import what draws pictures; takes a tenth of a second the first time."""
    with _without_terminal():
        import_module("textual_image.widget")


def picture_widget(image: Image, graphics: TerminalGraphics, size: Size) -> Widget:
    """Return a widget of `size` cells that draws `image`; call `load_widgets` before."""
    from textual_image import _terminal, widget

    cell = _terminal.CellSize(graphics.cell_width, graphics.cell_height)
    _terminal.get_cell_size._result = cell  # type: ignore[attr-defined]  # noqa: SLF001 - else it asks the terminal
    picture: Widget = getattr(widget, _NAMES[graphics.protocol])(image)
    picture.ALLOW_SELECT = False  # type: ignore[misc]
    picture.styles.width, picture.styles.height = size
    return picture


def release(picture: Widget) -> None:
    """Free what the terminal keeps of a picture, which is shown no longer."""
    renderable = getattr(picture, "_renderable", None)
    if renderable is not None:
        renderable.cleanup()


def cells_of(width: int, height: int, graphics: TerminalGraphics, bounds: Size) -> Size:
    """Return the cells that a picture of `width` × `height` pixels takes: its true size, made smaller to fit `bounds`.

    By half blocks a pixel is a cell wide.
    """
    pixels_per_cell = 1 if graphics.protocol == "blocks" else graphics.cell_width
    columns = width / pixels_per_cell
    rows = height * graphics.cell_width / graphics.cell_height / pixels_per_cell
    scale = min(1.0, bounds.width / columns, bounds.height / rows)
    return Size(max(1, round(columns * scale)), max(1, round(rows * scale)))


@contextmanager
def _without_terminal() -> Iterator[None]:
    """Hide the terminal from textual-image, which asks it questions when it is imported."""
    terminal, sys.__stdout__ = sys.__stdout__, io.StringIO()  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        sys.__stdout__ = terminal  # type: ignore[misc]
