"""Which format a picture or sound of a request has, and why another file is refused.

Owns the refusals; the formats are those of `app.common.media_formats`. Pure.
"""

from __future__ import annotations

import re

from app.common.media_formats import N_BEGIN, MediaFormat, media_format, unsupported_media
from app.protocol.errors import RequestError

_REFUSED: tuple[tuple[re.Pattern[bytes], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), what)
    for pattern, what in (
        (rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?<svg", "an SVG drawing"),
        (rb"%PDF", "a PDF document"),
        (rb"PK\x03\x04", "a ZIP archive or an office document"),
        (rb"\x1f\x8b", "a compressed file"),
        (rb"GGUF", "a model file"),
    )
)
_REMEDY = "Send PNG, JPEG, GIF, WebP, BMP or TIFF for a picture, WAV, MP3, FLAC or Ogg Vorbis for a sound."


def format_of(data: bytes) -> MediaFormat:
    """Return the format of a file. Raises RequestError for an empty file and for any other format."""
    begin = data[:N_BEGIN]
    if found := media_format(begin):
        return found
    if not data:
        raise RequestError("A picture or sound has no content.", _REMEDY)
    other = next((what for pattern, what in _REFUSED if pattern.match(begin)), "neither a picture nor a sound")
    raise RequestError(f"A file is {unsupported_media(begin) or other}, which models do not take.", _REMEDY)
