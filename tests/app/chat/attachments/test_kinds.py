from __future__ import annotations

import pytest

from app.chat.attachments.kinds import Form, kind_of
from quantizer.system.errors import UsageError


@pytest.mark.parametrize(
    "begin",
    [
        b"GIF89a is a format of 1989.",
        b"ID3 tags",
        b"BMW",
        b"RIFF raff WAVE",
        b"fLaC",
        b"GGUF files",
        b"MZ",
        b"ID3 \xc3",
    ],
)
def test_a_text_that_begins_like_another_format_is_a_text(begin: bytes) -> None:
    assert kind_of(begin, "notes.md").form is Form.TEXT


@pytest.mark.parametrize(
    ("begin", "mime_type"),
    [
        (b"GIF89a\x01\x00\x01\x00", "image/gif"),
        (b"ID3\x04\x00\x00", "audio/mpeg"),
        (b"\xff\xfb\x90\x00", "audio/mpeg"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt ", "audio/wav"),
        (b"RIFF\x24\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"%PDF-1.4\n1 0 obj", "application/pdf"),
        (b"\n\n%PDF-1.4\n", "application/pdf"),
    ],
)
def test_bytes_decide_and_not_the_name(begin: bytes, mime_type: str) -> None:
    assert kind_of(begin, "notes.txt").mime_type == mime_type


@pytest.mark.parametrize(
    ("begin", "name", "words"),
    [
        (b"GGUF\x03\0\0\0", "m.gguf", "a model file"),
        (b"PK\x03\x04\x14\x00", "a.xlsx", "a spreadsheet"),
        (b"PK\x03\x04\x14\x00", "a.bin", "a ZIP archive"),
        (b"{\\rtf1\\ansi", "a.rtf", "an RTF document"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a.doc", "an old Office format"),
        (b"\0\0\0\x20ftypisom", "a.mp4", "a video"),
    ],
)
def test_what_is_refused_is_named(begin: bytes, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        kind_of(begin, name)
