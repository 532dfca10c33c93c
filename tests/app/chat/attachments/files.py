"""Documents, pictures and sounds for tests, made here: none is kept in the repository."""

from __future__ import annotations

import io
import json
import wave
import zipfile
from collections.abc import Sequence

from PIL import Image

__all__ = ["docx_of", "notebook_of", "paragraph", "pdf_of", "picture_of", "wav_of"]

_TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="xml" ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.'
    'document.main+xml"/></Types>'
)
_RELATIONS = (
    '<?xml version="1.0"?><Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
    'Target="word/document.xml"/></Relationships>'
)
_DOCUMENT = (
    '<?xml version="1.0"?><w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
    "<w:body>{}</w:body></w:document>"
)


def pdf_of(pages: Sequence[str], size: tuple[float, float] = (612, 792), catalog: str = "") -> bytes:
    """Return a PDF with a line of ASCII text on each page; `catalog` are more entries of its catalog."""
    objects = ["", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for text in pages:
        stream = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET" if text else ""
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {size[0]} {size[1]}] "
            f"/Contents {len(objects)} 0 R /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[0] = f"<< /Type /Catalog /Pages 2 0 R {catalog} >>"
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    return _assembled(objects)


def _assembled(objects: Sequence[str]) -> bytes:
    written, offsets = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(written))
        written += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(written)}\n%%EOF\n"
    return written + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{trailer}".encode()


def docx_of(body: str, *, compress: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a Word document with `body`, the XML of its paragraphs."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", compress) as archive:
        archive.writestr("[Content_Types].xml", _TYPES)
        archive.writestr("_rels/.rels", _RELATIONS)
        archive.writestr("word/document.xml", _DOCUMENT.format(body))
    return written.getvalue()


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def picture_of(size: tuple[int, int] = (64, 48), format_: str = "PNG", **options: object) -> bytes:
    """Return a picture of one color."""
    written = io.BytesIO()
    Image.new("RGB", size, (200, 30, 60)).save(written, format_, **options)
    return written.getvalue()


def wav_of(seconds: float, rate: int = 8_000) -> bytes:
    """Return a silent sound."""
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(2 * int(seconds * rate)))
    return written.getvalue()


def notebook_of(*cells: dict[str, object]) -> bytes:
    """Return a Jupyter notebook."""
    return json.dumps({"nbformat": 4, "metadata": {"language_info": {"name": "python"}}, "cells": cells}).encode()
