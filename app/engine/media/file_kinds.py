"""What a file is, by its first bytes: a picture, a sound, or something that no model takes.

Owns the formats. What a client calls the file does not count. Pure.
"""

from __future__ import annotations

import re
from enum import StrEnum

from quantizer.errors import RequestError

__all__ = ["FileKind", "MediaKind", "kind_of"]


class MediaKind(StrEnum):
    """What a projector takes."""

    PICTURE = "picture"
    SOUND = "sound"


class FileKind(StrEnum):
    """A format that can be decoded."""

    PNG = "PNG"
    JPEG = "JPEG"
    GIF = "GIF"
    WEBP = "WebP"
    BMP = "BMP"
    TIFF = "TIFF"
    WAV = "WAV"
    MP3 = "MP3"
    FLAC = "FLAC"
    VORBIS = "Ogg Vorbis"

    @property
    def media(self) -> MediaKind:
        return MediaKind.SOUND if self in _SOUNDS else MediaKind.PICTURE


_SOUNDS = (FileKind.WAV, FileKind.MP3, FileKind.FLAC, FileKind.VORBIS)
_BEGINS: tuple[tuple[re.Pattern[bytes], FileKind], ...] = tuple(
    (re.compile(pattern, re.DOTALL), kind)
    for pattern, kind in (
        (rb"\x89PNG\r\n\x1a\n", FileKind.PNG),
        (rb"\xff\xd8\xff", FileKind.JPEG),
        (rb"GIF8[79]a", FileKind.GIF),
        (rb"RIFF.{4}WEBP", FileKind.WEBP),
        (rb"BM.{4}\0{4}", FileKind.BMP),
        (rb"II\*\0|MM\0\*", FileKind.TIFF),
        (rb"(RIFF|RF64).{4}WAVE", FileKind.WAV),
        (rb"fLaC", FileKind.FLAC),
        (rb"OggS.{24,64}\x01vorbis", FileKind.VORBIS),
        (rb"ID3", FileKind.MP3),
        # A frame: layer III of MPEG 1, 2 or 2.5, a bit rate and a sample rate that exist.
        (rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x10-\x1b\x20-\x2b\x30-\x3b\x40-\x4b\x50-\x5b\x60-\x6b\x70-\x7b"
         rb"\x80-\x8b\x90-\x9b\xa0-\xab\xb0-\xbb\xc0-\xcb\xd0-\xdb\xe0-\xeb]", FileKind.MP3),
    )
)  # fmt: skip
_REFUSED: tuple[tuple[re.Pattern[bytes], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), what)
    for pattern, what in (
        (rb".{4}ftyp(hei|hev|mif|msf)", "a HEIC picture"),
        (rb".{4}ftypavi", "an AVIF picture"),
        (rb".{4}ftypM4A", "an M4A sound"),
        (rb".{4}ftyp|\x1aE\xdf\xa3|RIFF.{4}AVI ", "a video"),
        (rb"OggS", "an Ogg file other than Vorbis"),
        (rb"FORM.{4}AIF", "an AIFF sound"),
        (rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?<svg", "an SVG drawing"),
        (rb"%PDF", "a PDF document"),
        (rb"PK\x03\x04", "a ZIP archive or an office document"),
        (rb"\x1f\x8b", "a compressed file"),
        (rb"GGUF", "a model file"),
    )
)
_REMEDY = "Send PNG, JPEG, GIF, WebP, BMP or TIFF for a picture, WAV, MP3, FLAC or Ogg Vorbis for a sound."
_N_BEGIN = 512


def kind_of(data: bytes) -> FileKind:
    """Return the format of a file. Raises RequestError for an empty file and for any other format."""
    begin = data[:_N_BEGIN]
    for pattern, kind in _BEGINS:
        if pattern.match(begin):
            return kind
    if not data:
        raise RequestError("A picture or sound has no content.", _REMEDY)
    what = next((what for pattern, what in _REFUSED if pattern.match(begin)), "neither a picture nor a sound")
    raise RequestError(f"A file is {what}, which models do not take.", _REMEDY)
