"""A small copy of a picture for the terminal, from a file that may be anything.

The size that the file declares is checked before any pixel is decoded; then the first frame is, and nothing else.
Pillow is imported with the first picture.
"""

from __future__ import annotations

import asyncio
import io
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantizer.system.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile


MAX_PREVIEW_PIXELS = 50_000_000  # 200 MB while it is decoded; a picture of a phone has 12 to 50 million
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
_SIDE = 640  # pixels kept, a megabyte: as many as a preview's rows show on most screens
_N_REMEMBERED = 24


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
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # its warning would be written over the screen; ours is the limit below
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            is_too_large = width * height > MAX_PREVIEW_PIXELS
            small = None if is_too_large else _reduced(image)
    except PIL.UnidentifiedImageError as error:
        raise PictureError("This picture cannot be shown.") from error
    except Exception as error:  # a decoder raises whatever it meets in a damaged file
        raise PictureError("It is damaged: its pixels cannot be read.") from error
    if small is None:
        raise PictureError(f"It is too large for a preview: {width}×{height}.")
    return Preview(small, width, height)


def _reduced(opened: ImageFile) -> Image:
    """Decode the first frame on a white ground, turned as its camera was held."""
    from PIL import Image, ImageOps

    opened.draft("RGB", (_SIDE, _SIDE))  # a JPEG is decoded at a fraction of its size
    small = opened.convert("RGBA" if opened.has_transparency_data else "RGB")
    small.thumbnail((_SIDE, _SIDE))
    if small.mode == "RGBA":
        small = Image.alpha_composite(Image.new("RGBA", small.size, "white"), small).convert("RGB")
    ImageOps.exif_transpose(small, in_place=True)
    return small


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
