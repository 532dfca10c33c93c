"""One picture in the transcript or a dialog: drawn by textual-image once it is decoded, or a line that says why not.

Pillow and textual-image are imported with the first picture.
"""

from __future__ import annotations

import asyncio
import io
import sys
from base64 import b64decode
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from textual.app import App
from textual.containers import Vertical
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Static

from app.chat.conversation import MediaFile
from app.common.terminal import printable_line
from quantizer.system.errors import UserError
from tui.pictures.preview import Preview
from tui.pictures.terminal_graphics import TerminalGraphics, graphics_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from tui.context import BaseApp


MIN_SCREEN_ROWS = 20  # on a smaller screen a picture would leave no room for what is said about it
_MAX_ROWS, _MAX_COLUMNS = 14, 60
_SCREEN_SHARE = 3  # of the rows of the screen, a third
_FRAME_COLUMNS = 8  # at the sides of the transcript and of a message
_DIALOG_COLUMNS, _DIALOG_ROWS = 12, 8  # of the frame and the texts around it
_WIDGETS = {"kitty": "TGPImage", "blocks": "HalfcellImage"}  # of textual-image, by protocol


def picture_bounds(screen: Size, n_beside: int = 1) -> Size:
    """Return the most cells that each of `n_beside` pictures of a message takes on a screen of this size; none on a
    small one."""
    if screen.height < MIN_SCREEN_ROWS:
        return Size(0, 0)
    columns = min(_MAX_COLUMNS, screen.width // 2, (screen.width - _FRAME_COLUMNS) // n_beside - 1)
    return Size(max(1, columns), min(_MAX_ROWS, screen.height // _SCREEN_SHARE))


def whole_screen_bounds(screen: Size) -> Size:
    return Size(max(1, screen.width - _DIALOG_COLUMNS), max(1, screen.height - _DIALOG_ROWS))


async def media_content(app: App[None], file: MediaFile) -> bytes:
    """Return the content of a picture of the app's chats. Raises StorageError."""
    chat = cast("BaseApp", app).app_context.session.chat
    parts = await chat.stored.media_parts([file])
    return b64decode(parts[file.sha256].base64)


class PictureView(Vertical):
    """The picture that `read` returns, within the `bounds` for a screen; `key` names its content. Its label is
    elsewhere."""

    DEFAULT_CSS = """
    PictureView {
        width: auto;
        height: auto;
    }
    PictureView .fault {
        width: auto;
    }
    """

    def __init__(
        self, key: str, read: Callable[[], Awaitable[bytes]], bounds: Callable[[Size], Size] = picture_bounds
    ) -> None:
        super().__init__()
        self._key = key
        self._read = read
        self._bounds = bounds
        self._picture: Widget | None = None
        self._drawn = Size(0, 0)  # cells
        self._preview: Preview | None = None
        self._graphics: TerminalGraphics | None = None
        self.display = False  # until there is something to see

    def on_mount(self) -> None:
        self.run_worker(self._show(), exclusive=True)

    async def _show(self) -> None:
        self._graphics = await graphics_of(self.app)
        if self._graphics.protocol == "none" or not self._bounds(self.app.size).height:
            return
        previews = cast("BaseApp", self.app).app_context.previews
        try:
            self._preview = await previews.get(self._key, self._read)
        except UserError as error:
            await self._replace(Static(printable_line(f"No preview: {error}"), markup=False, classes="fault"))
        else:
            await self._draw()

    async def fit(self) -> None:
        """Draw the picture again if the screen has room for a smaller or a larger one now."""
        if self._picture is not None:
            await self._draw()

    def on_unmount(self) -> None:
        """Let the terminal forget the picture: kitty keeps what it was sent."""
        renderable = getattr(self._picture, "_renderable", None)
        if renderable is not None and self._graphics is not None and self._graphics.protocol == "kitty":
            renderable.cleanup()

    async def _draw(self) -> None:
        assert self._graphics is not None
        assert self._preview is not None
        bounds = self._bounds(self.app.size)
        self.display = bool(bounds.height)
        if not bounds.height:
            return
        image = self._preview.image
        size = cells_of(image.width, image.height, self._graphics, bounds)
        if self._picture is None or size != self._drawn:
            await asyncio.to_thread(load_widgets)
            self._picture, self._drawn = picture_widget(image, self._graphics, size), size
            await self._replace(self._picture)

    async def _replace(self, widget: Widget) -> None:
        if self.is_attached:
            await self.remove_children()
            await self.mount(widget)
            self.display = True


def load_widgets() -> None:
    """Import what draws pictures; takes a tenth of a second the first time."""
    # Hide the terminal, which textual-image asks questions when it is imported: Textual would read the replies.
    terminal, sys.__stdout__ = sys.__stdout__, io.StringIO()  # type: ignore[misc,assignment]
    try:
        import_module("textual_image.widget")
    finally:
        sys.__stdout__ = terminal  # type: ignore[misc]


def picture_widget(image: Image, graphics: TerminalGraphics, size: Size) -> Widget:
    """Return a widget of `size` cells that draws `image`; call `load_widgets` before."""
    from textual_image import _terminal, widget

    cell = _terminal.CellSize(graphics.cell_width, graphics.cell_height)
    _terminal.get_cell_size._result = cell  # type: ignore[attr-defined]  # noqa: SLF001 - else it asks the terminal
    picture: Widget = getattr(widget, _WIDGETS[graphics.protocol])(image)
    picture.ALLOW_SELECT = False  # type: ignore[misc]
    picture.styles.width, picture.styles.height = size
    return picture


def cells_of(width: int, height: int, graphics: TerminalGraphics, bounds: Size) -> Size:
    """Return the cells that a picture of `width` × `height` pixels takes: its true size, made smaller to fit `bounds`.

    By half blocks a pixel is a cell wide.
    """
    pixels_per_cell = 1 if graphics.protocol == "blocks" else graphics.cell_width
    columns = width / pixels_per_cell
    rows = height * graphics.cell_width / graphics.cell_height / pixels_per_cell
    scale = min(1.0, bounds.width / columns, bounds.height / rows)
    return Size(max(1, round(columns * scale)), max(1, round(rows * scale)))
