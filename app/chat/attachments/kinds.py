"""What a file is, by its first bytes and, where those say nothing, the end of its name.

Owns the kinds that can be attached, their MIME types and how large they may be. What cannot be attached is refused with
its name. Pure.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

from app.common.media_formats import N_BEGIN, MediaFormat, MediaKind, media_format, unsupported_media
from quantizer.system.errors import UsageError

_MIB = 1 << 20
MAX_TEXT_BYTES = 4 * _MIB  # a million tokens: more than any context
_CONTROLS = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")


class Form(Enum):
    """What a model gets of a file."""

    TEXT = "text"
    DOCUMENT = "document"  # its text, or of a PDF its pages as pictures
    PICTURE = "picture"
    SOUND = "sound"


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file. `words` call it in a sentence, `parser` is its name in `parse`, "" for plain text."""

    words: str
    mime_type: str
    form: Form
    parser: str = ""
    max_bytes: int = MAX_TEXT_BYTES


_TEXT = FileKind("a text", "text/plain", Form.TEXT)
PDF = FileKind("a PDF", "application/pdf", Form.DOCUMENT, "pdf", 128 * _MIB)
_DOCX = FileKind(
    "a Word document",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    Form.DOCUMENT,
    "docx",
    64 * _MIB,
)
HTML = FileKind("an HTML page", "text/html", Form.DOCUMENT, "html", 8 * _MIB)
WEB_PAGE = FileKind(
    "a page of the web", "text/html", Form.DOCUMENT, "web page", 8 * _MIB
)  # where only its article counts
_NOTEBOOK = FileKind("a notebook", "application/x-ipynb+json", Form.DOCUMENT, "notebook", 64 * _MIB)
_CSV = FileKind("a table", "text/csv", Form.DOCUMENT, "table")
_TSV = FileKind("a table", "text/tab-separated-values", Form.DOCUMENT, "table")
MAX_FILE_BYTES = 128 * _MIB  # of any kind
_MEDIA_BYTES = {Form.PICTURE: 64 * _MIB, Form.SOUND: MAX_FILE_BYTES}

_ENDINGS = {".htm": HTML, ".html": HTML, ".xhtml": HTML, ".ipynb": _NOTEBOOK, ".csv": _CSV, ".tsv": _TSV}


_IS_PDF = re.compile(rb"\s{0,64}%PDF-[0-9]")
_IS_RTF = re.compile(rb"\{\\rtf[0-9]")
_REFUSED = tuple(
    (re.compile(pattern, re.DOTALL), words)
    for pattern, words in (
        (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a document of an old Office format"),
        (rb"\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf|Rar!", "a compressed file"),
        (rb"GGUF", "a model file"),
        (rb"\x7fELF|MZ.{2}|\xca\xfe\xba\xbe|\xcf\xfa\xed\xfe", "a program"),
        (rb"SQLite format 3\0", "a database"),
    )
)
_REMEDY = (
    "Attach a text, a PDF, DOCX, HTML, CSV or notebook, a picture (PNG, JPEG, GIF, WebP, BMP, TIFF) or a sound"
    " (WAV, MP3, FLAC, Ogg Vorbis)."
)


def kind_of(begin: bytes, name: str) -> FileKind:
    """Return the kind of the file `name` that begins with `begin`, of which 512 bytes count. Raises UsageError for one
    that cannot be attached."""
    begin = begin[:N_BEGIN]
    if _IS_PDF.match(begin):
        return PDF
    if _IS_RTF.match(begin):
        raise UsageError(f"{name} is an RTF document, which cannot be attached.", _REMEDY)
    if not _is_text(begin):
        if media := media_format(begin):
            form = Form.SOUND if media.kind is MediaKind.SOUND else Form.PICTURE
            article = "an" if media in (MediaFormat.MP3, MediaFormat.VORBIS) else "a"
            return FileKind(f"{article} {media} {form.value}", media.mime_type, form, form.value, _MEDIA_BYTES[form])
        if begin.startswith(b"PK\x03\x04"):
            return _archive(name)
        refused = (words for pattern, words in _REFUSED if pattern.match(begin))
        if words := unsupported_media(begin) or next(refused, ""):
            raise UsageError(f"{name} is {words}, which cannot be attached.", _REMEDY)
    return _ENDINGS.get(PurePath(name).suffix.lower(), _TEXT)


def _is_text(begin: bytes) -> bool:
    """Return whether these are characters alone: a text may begin with "GIF89a is" or "ID3 tags"."""
    try:
        text = getincrementaldecoder("utf-8")().decode(begin)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return _CONTROLS.search(text) is None


def _archive(name: str) -> FileKind:
    """Return the kind of a ZIP archive: only of a Word document its content is known."""
    ending = PurePath(name).suffix.lower()
    if ending in (".docx", ".docm"):
        return _DOCX
    words = {".xlsx": "a spreadsheet", ".pptx": "a presentation", ".odt": "an OpenDocument text", ".epub": "a book"}
    remedy = "Save it as CSV." if ending == ".xlsx" else "Save it as PDF or DOCX, or attach the files in it."
    raise UsageError(f"{name} is {words.get(ending, 'a ZIP archive')}, which cannot be attached.", remedy)
