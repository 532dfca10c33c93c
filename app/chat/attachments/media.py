"""Pictures → their size in pixels, sounds → their length.

A picture's first frame is decoded, so that a damaged one is refused before it is sent. Of a sound only the headers are
read: the engine decodes it.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from typing import Any

from app.chat.attachments.parsing import PageChoice, ParsedFile, RefusedFileError
from app.common.extras import AUDIO
from app.common.media_formats import without_damaged_metadata

MAX_PIXELS = 100_000_000
MAX_RATIO = 200  # of the sides; models cut a picture into squares
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
# Of Pillow, those that read these formats. It would look for a missing one itself, after memory is limited.
PILLOW_PLUGINS = ("Png", "Jpeg", "Mpo", "Gif", "WebP", "Bmp", "Tiff")
_ORIENTATION = 0x0112  # of EXIF
_TURNED = range(5, 9)  # orientations by a quarter


def parse_picture(data: bytes, _pages: PageChoice, _progress: Callable[[], None]) -> ParsedFile:
    """Return the size of a picture, upright. Raises RefusedFileError for one that is too large or too narrow."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # the limit below comes before any pixel, with a sentence of its own
    warnings.simplefilter("ignore")  # of odd metadata, which does not count
    with _opened(data) as image:
        width, height = image.size
        if not 0 < width * height <= MAX_PIXELS:
            remedy = f"Attach a picture of at most {MAX_PIXELS:,} pixels."
            raise RefusedFileError(f"has {width:,} × {height:,} pixels.", remedy)
        if max(image.size) > MAX_RATIO * min(image.size):
            cause = f"has {width:,} × {height:,} pixels, which is too narrow."
            raise RefusedFileError(cause, "Attach a part of it.")
        if image.getexif().get(_ORIENTATION, 1) in _TURNED:
            width, height = height, width
        if image.format == "JPEG":  # decodes fewer pixels: whether it is whole shows all the same
            image.draft("RGB", (width // 8, height // 8))
        image.load()
        size = f"{width} × {height}"
        return ParsedFile(detail=f"{size}, its first frame" if _has_frames(image) else size)


def _opened(data: bytes) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(without_damaged_metadata(data)), formats=_FORMATS)
    except UnidentifiedImageError as error:  # which names an object of ours
        raise ValueError("its header is not that of a picture") from error


def _has_frames(image: Any) -> bool:
    """Return whether there is a second frame; the others are not looked for."""
    try:
        image.seek(1)
    except (EOFError, ValueError, OSError, SyntaxError):
        return False
    return True


MAX_SOUND_S = 30 * 60
_SOUND_CODECS = {b"RIFF": "wav", b"RF64": "wav", b"fLaC": "flac", b"OggS": "vorbis"}  # mp3 begins in many ways


def parse_sound(data: bytes, _pages: PageChoice, _progress: Callable[[], None]) -> ParsedFile:
    """Return the length of a sound. Raises RefusedFileError for one that is empty or longer than 30 minutes."""
    if not AUDIO.is_installed:
        missing = AUDIO.missing
        raise RefusedFileError(f"cannot be read: {missing.cause[0].lower()}{missing.cause[1:]}", missing.remedy)
    import miniaudio

    read_info = getattr(miniaudio, f"{_SOUND_CODECS.get(data[:4], 'mp3')}_get_info")
    length_s = float(read_info(data).duration)
    if not math.isfinite(length_s) or length_s <= 0:
        raise RefusedFileError("has no sound in it.", "Attach a whole file.")
    minutes, seconds = divmod(round(length_s), 60)
    if length_s > MAX_SOUND_S:
        cause = f"is {minutes:,} minutes long."
        raise RefusedFileError(cause, f"Attach parts of at most {MAX_SOUND_S // 60} minutes.")
    return ParsedFile(detail=f"{minutes}:{seconds:02}")
