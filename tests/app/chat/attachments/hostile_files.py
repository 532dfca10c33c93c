"""Files that are made to harm who reads them."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

from tests.app.chat.attachments.files import docx_of, paragraph, pdf_of

__all__ = ["docx_with", "flate_pdf", "locked_pdf", "nested_forms_pdf", "picture_that_declares"]

_WORDS = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def picture_that_declares(width: int, height: int, pixels: bytes = bytes(100)) -> bytes:
    """Return a PNG with this size in its header."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(pixels)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def docx_with(document: str, prologue: str = "") -> bytes:
    """Return a Word document whose body is the XML `document`, after `prologue`."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(docx_of(paragraph("x")))) as model:
        parts = {info.filename: model.read(info) for info in model.infolist()}
    parts["word/document.xml"] = (
        f"<?xml version='1.0'?>{prologue}<w:document {_WORDS}><w:body>{document}</w:body></w:document>".encode()
    )
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return written.getvalue()


def _pdf(objects: list[bytes], trailer: bytes = b"") -> bytes:
    written, offsets = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(written))
        written += b"%d 0 obj\n" % number + body + b"\nendobj\n"
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        trailer,
        len(written),
    )
    return written + b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + table + end


def _stream(data: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), entries, data)


_PAGE = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R %s >>"
_HEAD = (b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>")


def flate_pdf(n_mib: int) -> bytes:
    """Return a PDF whose page unpacks to `n_mib` MiB of blanks; packed twice, gigabytes are kilobytes."""
    packer = zlib.compressobj(9)
    head, block = (packer.compress(b" " * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    packed = zlib.compress(head + block * (n_mib - 1) + packer.flush(), 9)
    return _pdf([*_HEAD, _PAGE % b"", _stream(packed, b"/Filter [/FlateDecode /FlateDecode]")])


def nested_forms_pdf(depth: int, width: int) -> bytes:
    """Return a PDF whose page draws a form that draws the next one `width` times, to `depth`."""
    objects = [*_HEAD, _PAGE % b"/Resources << /XObject << /F 5 0 R >> >>", _stream(b"/F Do")]
    for level in range(depth):
        resources = b"/Resources << /XObject << /F %d 0 R >> >>" % (6 + level)
        drawn = b"/F Do " * width
        objects.append(_stream(drawn, b"/Type /XObject /Subtype /Form /BBox [0 0 612 792] " + resources))
    objects.append(_stream(b"0 0 600 700 re f", b"/Type /XObject /Subtype /Form /BBox [0 0 612 792]"))
    return _pdf(objects)


def repeated_page_pdf(n_pages: int, n_lines: int) -> bytes:
    """Return a PDF that names one page of `n_lines` lines of text, packed, `n_pages` times: 35 kB for 4,999 pages of
    20,000 lines."""
    text = b"BT /F1 1 Tf 10 10 Td " + b"(%s) Tj " % (b"a" * 60) * n_lines + b"ET"
    kids = b" ".join([b"3 0 R"] * n_pages)
    return _pdf(
        [
            _HEAD[0],
            b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, n_pages),
            _PAGE % b"/Resources << /Font << /F1 5 0 R >> >>",
            _stream(zlib.compress(text, 9), b"/Filter /FlateDecode"),
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        ]
    )


def locked_pdf() -> bytes:
    """Return a PDF that needs a password nobody knows."""
    secret = b"<" + b"5a" * 32 + b">"
    locked = b"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O %s /U %s >> /ID [<00> <00>]" % (secret, secret)
    return _pdf([*_HEAD, _PAGE % b"", _stream(b"")], locked)


def looping_pdf() -> bytes:
    """Return a PDF whose pages contain themselves."""
    return pdf_of(["a"]).replace(b"/Kids [5 0 R]", b"/Kids [2 0 R]")
