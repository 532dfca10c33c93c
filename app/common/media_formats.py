"""The formats of pictures and sounds, by the first bytes of a file; what other files are, and why they are refused.

A file's name or what a client says does not count. Independent of who reads them: the engine's decoders, and the
attachments of chats.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from enum import StrEnum

from app.protocol.errors import RequestError

N_BEGIN = 512  # bytes that tell a format


class MediaKind(StrEnum):
    """What a projector takes."""

    PICTURE = "picture"
    SOUND = "sound"


class MediaFormat(StrEnum):
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
    def kind(self) -> MediaKind:
        return MediaKind.SOUND if self in _SOUND_SUBTYPES else MediaKind.PICTURE

    @property
    def mime_type(self) -> str:
        subtype = _SOUND_SUBTYPES.get(self)
        return f"audio/{subtype}" if subtype else f"image/{self.value.lower()}"


_SOUND_SUBTYPES = {MediaFormat.WAV: "wav", MediaFormat.MP3: "mpeg", MediaFormat.FLAC: "flac", MediaFormat.VORBIS: "ogg"}


def _patterns(*pairs: tuple[bytes, str]) -> tuple[tuple[re.Pattern[bytes], str], ...]:
    return tuple((re.compile(pattern, re.DOTALL), name) for pattern, name in pairs)


_BEGINS = _patterns(
    (rb"\x89PNG\r\n\x1a\n", MediaFormat.PNG),
    (rb"\xff\xd8\xff", MediaFormat.JPEG),
    (rb"GIF8[79]a", MediaFormat.GIF),
    (rb"RIFF.{4}WEBP", MediaFormat.WEBP),
    (rb"BM.{4}\0{4}", MediaFormat.BMP),
    (rb"II\*\0|MM\0\*", MediaFormat.TIFF),
    (rb"(RIFF|RF64).{4}WAVE", MediaFormat.WAV),
    (rb"fLaC", MediaFormat.FLAC),
    (rb"OggS.{24,64}\x01vorbis", MediaFormat.VORBIS),
    (rb"ID3", MediaFormat.MP3),
    # A frame: layer III of MPEG 1, 2 or 2.5, a bit rate and a sample rate that exist.
    (rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x10-\x1b\x20-\x2b\x30-\x3b\x40-\x4b\x50-\x5b\x60-\x6b\x70-\x7b"
     rb"\x80-\x8b\x90-\x9b\xa0-\xab\xb0-\xbb\xc0-\xcb\xd0-\xdb\xe0-\xeb]", MediaFormat.MP3),
)  # fmt: skip
_UNSUPPORTED = _patterns(
    (rb".{4}ftyp(hei|hev|mif|msf)", "a HEIC picture"),
    (rb".{4}ftypavi", "an AVIF picture"),
    (rb".{4}ftypM4A", "an M4A sound"),
    (rb".{4}ftyp|\x1aE\xdf\xa3|RIFF.{4}AVI ", "a video"),
    (rb"OggS", "an Ogg file other than Vorbis"),
    (rb"FORM.{4}AIF", "an AIFF sound"),
)


def media_format(begin: bytes) -> MediaFormat | None:
    """Return the format of a picture or sound that begins with `begin`, None for any other file."""
    name = _first_match(_BEGINS, begin)
    return MediaFormat(name) if name else None


def unsupported_media(begin: bytes) -> str:
    """Return what a picture, sound or video of a format that is not read is called ("a HEIC picture"), else ""."""
    return _first_match(_UNSUPPORTED, begin)


def _first_match(patterns: Iterable[tuple[re.Pattern[bytes], str]], begin: bytes) -> str:
    return next((name for pattern, name in patterns if pattern.match(begin[:N_BEGIN])), "")


_REFUSED = _patterns(
    (rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?<svg", "an SVG drawing"),
    (rb"%PDF", "a PDF document"),
    (rb"PK\x03\x04", "a ZIP archive or an office document"),
    (rb"\x1f\x8b", "a compressed file"),
    (rb"GGUF", "a model file"),
)
_REMEDY = "Send PNG, JPEG, GIF, WebP, BMP or TIFF for a picture, WAV, MP3, FLAC or Ogg Vorbis for a sound."


def format_of(data: bytes) -> MediaFormat:
    """Return the format of a file. Raises RequestError for an empty file and for any other format."""
    if found := media_format(data):
        return found
    if not data:
        raise RequestError("A picture or sound has no content.", _REMEDY)
    what = _first_match((*_UNSUPPORTED, *_REFUSED), data) or "neither a picture nor a sound"
    raise RequestError(f"A file is {what}, which models do not take.", _REMEDY)


_PNG_BEGIN = b"\x89PNG\r\n\x1a\n"
_ANCILLARY = 0x20  # of the first letter of a chunk's type: a reader may go without it


def without_damaged_metadata(data: bytes) -> bytes:
    """Return a PNG without the ancillary chunks whose checksum is wrong (source: PNG specification, 5.4 and 13.1), any
    other file as it is. Browsers and libpng show such a picture, Pillow refuses it: the reference server of the Model
    Context Protocol sends one."""
    if not data.startswith(_PNG_BEGIN):
        return data
    kept, place, is_damaged = [_PNG_BEGIN], len(_PNG_BEGIN), False
    while place < len(data):
        end = place + 12 + int.from_bytes(data[place : place + 4])  # length, type, content, checksum
        chunk = data[place:end]
        if (
            len(chunk) == end - place
            and chunk[4] & _ANCILLARY
            and zlib.crc32(chunk[4:-4]) != int.from_bytes(chunk[-4:])
        ):
            is_damaged = True
        else:
            kept.append(chunk)
        place = end
    return b"".join(kept) if is_damaged else data
