"""One picture in the transcript or a dialog: a small copy of a file that may be anything, drawn by textual-image, or a
line that says why there is none.

The size that the file declares is checked before any pixel is decoded; then the first frame is, and nothing else.
Pillow and textual-image are imported with the first picture.
"""

from __future__ import annotations

import asyncio
import io
import sys
import warnings
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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
from tui.pictures.terminal_graphics import TerminalGraphics, graphics_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from tui.context import BaseApp


MAX_PREVIEW_PIXELS = 50_000_000  # 200 MB while it is decoded; a picture of a phone has 12 to 50 million
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
_SIDE = 640  # pixels kept, a megabyte: as many as a preview's rows show on most screens
_N_REMEMBERED = 24
MIN_SCREEN_ROWS = 20  # on a smaller screen a picture would leave no room for what is said about it
_MAX_ROWS, _MAX_COLUMNS = 14, 60
_SCREEN_SHARE = 3  # of the rows of the screen, a third
_FRAME_COLUMNS = 8  # at the sides of the transcript and of a message
_DIALOG_COLUMNS, _DIALOG_ROWS = 12, 8  # of the frame and the texts around it
_WIDGETS = {"kitty": "TGPImage", "blocks": "HalfcellImage"}  # of textual-image, by protocol


class PictureError(UserError):
    """A picture that cannot be shown."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The pixels of a picture, at most 640 a side, and its true size."""

    image: Image
    width: int
    height: int


def read_preview(data: bytes) -> Preview:
    """Return a small copy of the picture in `data`. Takes up to a second. Raises PictureError."""
    import PIL
    from PIL import Image, ImageOps

    from app.common.media_formats import without_damaged_metadata

    Image.MAX_IMAGE_PIXELS = None  # its warning would be written over the screen; ours is the limit below
    try:
        file = io.BytesIO(without_damaged_metadata(data))
        with warnings.catch_warnings(action="ignore"), Image.open(file, formats=_FORMATS) as image:
            width, height = image.size
            is_too_large = width * height > MAX_PREVIEW_PIXELS
            if not is_too_large:
                image.draft("RGB", (_SIDE, _SIDE))  # a JPEG is decoded at a fraction of its size
                small: Image.Image = image.convert("RGBA" if image.has_transparency_data else "RGB")
                small.thumbnail((_SIDE, _SIDE))
                if small.mode == "RGBA":  # on a white ground
                    small = Image.alpha_composite(Image.new("RGBA", small.size, "white"), small).convert("RGB")
                ImageOps.exif_transpose(small, in_place=True)  # turned as the camera was held
    except PIL.UnidentifiedImageError as error:
        raise PictureError("This picture cannot be shown.") from error
    except Exception as error:  # a decoder raises whatever it meets in a damaged file
        raise PictureError("It is damaged: its pixels cannot be read.") from error
    if is_too_large:
        raise PictureError(f"It is too large for a preview: {width}×{height}.")
    return Preview(small, width, height)


class Previews:
    """Makes previews one at a time, and remembers the latest: a message that is scrolled back is drawn at once."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._latest: dict[str, Preview | PictureError] = {}

    async def get(self, key: str, read: Callable[[], Awaitable[bytes]]) -> Preview:
        """Return the preview of the picture that `key` names and `read` returns. Raises PictureError, and what `read`
        raises."""
        async with self._one_at_a_time:
            found = self._latest.pop(key, None)
            if found is None:
                data = await read()
                try:
                    found = await asyncio.to_thread(read_preview, data)
                except PictureError as error:  # remembered too
                    found = error
            self._latest[key] = found
            while len(self._latest) > _N_REMEMBERED:
                del self._latest[next(iter(self._latest))]
        if isinstance(found, PictureError):
            raise found
        return found


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
    By half blocks a pixel is a cell wide."""
    pixels_per_cell = 1 if graphics.protocol == "blocks" else graphics.cell_width
    columns = width / pixels_per_cell
    rows = height * graphics.cell_width / graphics.cell_height / pixels_per_cell
    scale = min(1.0, bounds.width / columns, bounds.height / rows)
    return Size(max(1, round(columns * scale)), max(1, round(rows * scale)))
