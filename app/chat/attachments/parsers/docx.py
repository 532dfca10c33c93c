"""Word documents → Markdown, by mammoth (paragraphs, headings, lists, tables, notes) and markdownify.

Owns the check of the archive before it is unpacked. Pictures in it are left out; nothing outside it is opened.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable

from app.chat.attachments.parsers import html
from app.chat.attachments.parsing import PageChoice, ParsedFile, RefusedFileError

MAX_PART_BYTES = 32 << 20  # of XML
_MAX_PARTS = 20_000
_MAX_RATIO = 200  # of an XML part and its packed form; real ones have 5 to 30
_SMALL_BYTES = 1 << 20  # may be packed better
_XML = (".xml", ".rels")
_IS_ENCRYPTED = 1
_BODY = "word/document.xml"


def prepare() -> None:
    """Load the libraries."""
    import mammoth  # noqa: F401

    html.prepare()


def parse(data: bytes, _pages: PageChoice, _progress: Callable[[], None]) -> ParsedFile:
    """Return the text of a document. Raises RefusedFileError for one that is protected, or would unpack to too much."""
    import mammoth

    _check_archive(data)
    page = mammoth.convert_to_html(io.BytesIO(data), convert_image=_no_picture).value
    text = html.markdown_of(page)
    if not text:
        raise RefusedFileError("has no text.", "Save it as PDF to attach its pages as pictures.")
    return ParsedFile(text, f"{len(text):,} characters")


def _no_picture(_picture: object) -> list[object]:
    return []


def _check_archive(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = archive.infolist()
    if any(part.flag_bits & _IS_ENCRYPTED for part in parts):
        raise RefusedFileError("is protected by a password.", "Save it without one, and attach that.")
    if not any(part.filename == _BODY for part in parts):
        raise RefusedFileError("is a ZIP archive without a Word document.", "Attach another file.")
    texts = [part for part in parts if part.filename.lower().endswith(_XML)]
    is_bomb = any(part.file_size > max(_SMALL_BYTES, _MAX_RATIO * part.compress_size) for part in texts)
    if len(parts) > _MAX_PARTS or is_bomb or sum(part.file_size for part in texts) > MAX_PART_BYTES:
        raise RefusedFileError(
            f"would unpack to more than {MAX_PART_BYTES >> 20} MiB of text.", "Attach a smaller document."
        )
