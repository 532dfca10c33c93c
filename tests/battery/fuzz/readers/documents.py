"""Readers of attached documents, as the child that parses them uses them, a few pages at most."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.battery.fuzz.target import Form, Reader, Target

__all__ = ["TARGETS"]

_PACKAGES = ("app.chat.attachments",)


def _document(folder: Path, parser: str, unpacked: Callable[[bytes], bytes] = bytes) -> Reader:
    from app.chat.attachments.parse import load_parser, read_document
    from app.chat.attachments.parsing import MAX_CHARACTERS, PageChoice, RefusedFileError
    from app.common.terminal import printable_line

    parse = load_parser(parser)

    def read(data: bytes) -> None:
        try:
            parsed = read_document(parse, unpacked(data), PageChoice(), lambda: None)
        except RefusedFileError as error:
            assert error.cause.endswith((".", "…")) and error.remedy.endswith("."), f"half a sentence: {error.cause}"
            assert error.cause == printable_line(error.cause) and len(error.cause) < 300, (
                f"a cause of {len(error.cause)} characters"
            )
            return
        assert parsed.text or parsed.pictures, "it was read and says nothing"
        assert len(parsed.text) <= MAX_CHARACTERS
        assert "\0" not in parsed.text
        assert parsed.detail

    return read


def _as_docx(body: bytes) -> bytes:
    """Return a Word document with this `word/document.xml`."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", _CONTENT_TYPES)
        archive.writestr("_rels/.rels", _RELATIONS)
        archive.writestr("word/document.xml", body)
    return written.getvalue()


_CONTENT_TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/word/document.xml" ContentType='
    '"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
)
_RELATIONS = (
    '<?xml version="1.0"?><Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"'
    ' Target="word/document.xml"/></Relationships>'
)
_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def _bodies() -> list[bytes]:
    paragraph = "<w:p><w:pPr><w:pStyle w:val='Heading1'/></w:pPr><w:r><w:t>Title</w:t></w:r></w:p>"
    table = "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    inside = (paragraph, table, paragraph + "<w:p><w:r><w:br/><w:tab/><w:t>x</w:t></w:r></w:p>")
    return [f'<?xml version="1.0"?><w:document {_W}><w:body>{each}</w:body></w:document>'.encode() for each in inside]


_WORD_ELEMENTS = (
    "<w:p>", "</w:p>", "<w:r>", "</w:r>", "<w:t>", "</w:t>", "<w:tbl>", "<w:tr>", "<w:tc>", "<w:gridSpan w:val='9'/>",
    "<w:vMerge/>", "<w:hyperlink w:anchor='a'>", "<w:footnoteReference w:id='1'/>", "<w:commentReference w:id='0'/>",
    "<w:numPr><w:ilvl w:val='0'/><w:numId w:val='1'/></w:numPr>", "<w:fldChar w:fldCharType='begin'/>",
    "<w:instrText>HYPERLINK \"a\"</w:instrText>", "<w:sdt>", "<w:drawing>", "<!DOCTYPE a [<!ENTITY b 'c'>]>", "&b;",
)  # fmt: skip


def _docx_files() -> list[bytes]:
    return [*map(_as_docx, _bodies()), b"PK\x05\x06" + bytes(18)]


def _pdfs() -> list[bytes]:
    def pdf(*pages: str, catalogue: bytes = b"") -> bytes:
        kids = b" ".join(b"%d 0 R" % (3 + 2 * number) for number in range(len(pages)))
        objects = [
            b"<</Type/Catalog/Pages 2 0 R%s>>" % catalogue,
            b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, len(pages)),
        ]
        for number, words in enumerate(pages):
            drawn = b"BT /F 9 Tf 9 9 Td (%s) Tj ET" % words.encode()
            objects.append(
                b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents %d 0 R/Resources<</Font<</F "
                b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>>>" % (4 + 2 * number)
            )
            objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(drawn), drawn))
        written = b"%PDF-1.4\n"
        for number, body in enumerate(objects, 1):
            written += b"%d 0 obj%s endobj\n" % (number, body)
        return written + b"trailer<</Root 1 0 R>>"

    return [pdf("Hello"), pdf("one", "two"), pdf(""), pdf("a", catalogue=b"/Outlines<</First 9 0 R>>/Names<<>>")]


def _pages() -> list[bytes]:
    return [
        b"<html><head><title>T</title></head><body><h1>A</h1><p>b <b>c</b></p><ul><li>d<ol><li>e</ol></ul>",
        b"<table><tr><th>a</th></tr><tr><td colspan=2>b</td></tr></table><pre>x</pre><a href='u'>l</a><img alt='p'>",
        "\ufeff<meta charset='utf-16'><p>é&#x1F600;&nbsp;</p><script>s</script>".encode(),
    ]


_HTML_WORDS = (
    "<table>", "<tr>", "<td>", "<td colspan=99>", "<th>", "<ul>", "<ol start=9>", "<li>", "<pre>", "<code>", "<a href='x'>",
    "<img alt='a'>", "<br>", "<h1>", "<blockquote>", "<!--", "-->", "<![CDATA[", "<?x", "&#0;", "&amp", "<p", "</p>",
    "<title>", "<meta charset=utf-7>", "<b>", "</b>", "<details>", "<dl><dt>",
)  # fmt: skip


def _notebooks() -> list[bytes]:
    code = {
        "cell_type": "code",
        "source": ["a\n", "b"],
        "outputs": [
            {"text": "1"}, {"data": {"text/plain": ["2"]}}, {"ename": "E", "evalue": "v"}, {"text": "\x1b[31mr\x1b[0m"}
        ],
    }  # fmt: skip
    text = {"cell_type": "markdown", "source": "# T\n```"}
    new = {"cells": [text, code], "metadata": {"language_info": {"name": "python"}}, "nbformat": 4}
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": "a", "outputs": []}]}], "nbformat": 3}
    return [json.dumps(each).encode() for each in (new, old, {"cells": []})]


def _tables() -> list[bytes]:
    return [b"a,b\n1,2\n", b"a;b\n'1;2\n", b'"a\n|b"\t\n\tc', "\ufeffa|b".encode("utf-16"), b'a,"b""c"\r\n,,\r\n']


TARGETS = (
    Target("pdf", partial(_document, parser="pdf"), _PACKAGES, _pdfs, Form.BYTES, base_s=1.0),
    Target("docx", partial(_document, parser="docx"), _PACKAGES, _docx_files, Form.BYTES),
    Target(
        "docx_body", partial(_document, parser="docx", unpacked=_as_docx), _PACKAGES, _bodies, Form.TEXT, _WORD_ELEMENTS
    ),
    Target("html", partial(_document, parser="html"), _PACKAGES, _pages, Form.TEXT, _HTML_WORDS),
    Target("web_page", partial(_document, parser="web page"), _PACKAGES, _pages, Form.TEXT, _HTML_WORDS),
    Target("notebook", partial(_document, parser="notebook"), _PACKAGES, _notebooks),
    Target(
        "table", partial(_document, parser="table"), _PACKAGES, _tables, Form.BYTES, (",", '"', "\n", ";", "\t", "|")
    ),
)
