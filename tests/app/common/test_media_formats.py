"""The formats of pictures and sounds are told by the first bytes alone."""

from __future__ import annotations

import zlib

import pytest

from app.common.media_formats import (
    MediaFormat,
    MediaKind,
    media_format,
    unsupported_media,
    without_damaged_metadata,
)

BEGINS = {
    MediaFormat.PNG: b"\x89PNG\r\n\x1a\n",
    MediaFormat.JPEG: b"\xff\xd8\xff\xe0",
    MediaFormat.GIF: b"GIF89a",
    MediaFormat.WEBP: b"RIFF\x24\0\0\0WEBPVP8 ",
    MediaFormat.BMP: b"BM\x36\0\0\0\0\0\0\0",
    MediaFormat.TIFF: b"II*\0\x08\0\0\0",
    MediaFormat.WAV: b"RIFF\x24\0\0\0WAVEfmt ",
    MediaFormat.MP3: b"\xff\xfb\x90\x64",
    MediaFormat.FLAC: b"fLaC\0\0\0\x22",
    MediaFormat.VORBIS: b"OggS" + b"\0" * 24 + b"\x01vorbis",
}


@pytest.mark.parametrize("form", MediaFormat)
def test_each_format_is_told_by_its_first_bytes(form: MediaFormat) -> None:
    assert media_format(BEGINS[form]) is form


def test_pictures_and_sounds_have_their_mime_types() -> None:
    assert MediaFormat.WEBP.mime_type == "image/webp"
    assert MediaFormat.MP3.mime_type == "audio/mpeg"
    assert {form for form in MediaFormat if form.kind is MediaKind.SOUND} == {
        form for form in MediaFormat if form.mime_type.startswith("audio/")
    }


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (b"\0\0\0\x20ftypheic", "a HEIC picture"),
        (b"\0\0\0\x20ftypM4A ", "an M4A sound"),
        (b"\0\0\0\x20ftypisom", "a video"),
        (b"OggS" + b"\0" * 24 + b"OpusHead", "an Ogg file other than Vorbis"),
    ],
)
def test_common_formats_that_are_not_read_are_named(begin: bytes, words: str) -> None:
    assert media_format(begin) is None
    assert unsupported_media(begin) == words


def test_a_frame_with_a_bit_rate_that_no_mp3_has_is_no_sound() -> None:
    assert media_format(b"\xff\xfb\xff\xff") is None
    assert unsupported_media(b"\xff\xfb\xff\xff") == ""


def _chunk(kind: bytes, content: bytes, *, is_damaged: bool = False) -> bytes:
    checksum = (zlib.crc32(kind + content) ^ is_damaged).to_bytes(4)
    return len(content).to_bytes(4) + kind + content + checksum


def test_a_png_loses_damaged_metadata_and_nothing_else() -> None:
    begin, pixels = BEGINS[MediaFormat.PNG] + _chunk(b"IHDR", b"x" * 13), _chunk(b"IDAT", b"pixels", is_damaged=True)
    rest = pixels + _chunk(b"tEXt", b"a\0b") + _chunk(b"IEND", b"")
    assert without_damaged_metadata(begin + _chunk(b"iCCP", b"profile", is_damaged=True) + rest) == begin + rest
    for whole in (begin + rest, rest[:-7], begin + rest[:-3], b"", *BEGINS.values()):
        assert without_damaged_metadata(whole) == whole
