"""Documents that clients send whole."""

from __future__ import annotations

from base64 import b64encode

import pytest

from app.protocol.errors import RequestError
from app.service.generation import media
from app.service.generation.media import NO_MEDIA, Document, DocumentReader, PromptMedia, UnreadableError
from tests.app.chat.attachments.files import pdf_of

PDF = b64encode(pdf_of(["Whales are mammals.", "They breathe air."])).decode()
PAPER = Document("paper.pdf", PDF)


async def test_the_text_of_a_pdf_is_named_and_has_its_pages() -> None:
    reader = DocumentReader()
    (text,) = (await reader.read([PAPER])).values()
    assert isinstance(text, str)
    assert text.startswith("paper.pdf:\n```\n")
    assert "Whales are mammals." in text
    assert "They breathe air." in text
    again = await reader.read([PAPER, Document("paper.pdf", f"data:application/pdf;base64,{PDF}")])
    assert {*again.values()} == {text}


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ("?", "not valid Base64"),
        (b64encode(b"%PDF-1.7 no more").decode(), "a.pdf"),
        (b64encode(b"\x89PNG\r\n\x1a\n").decode(), "a.pdf"),
        (b64encode(b"  ").decode(), "no text"),
    ],
)
async def test_a_document_that_cannot_be_read_says_why(data: str, cause: str) -> None:
    (found,) = (await DocumentReader().read([Document("a.pdf", data)])).values()
    assert isinstance(found, RequestError)
    assert cause in found.cause


async def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MAX_REMEMBERED_CHARACTERS", 50)
    reader = DocumentReader()
    for letter in "abc":
        await reader.read([Document(f"{letter}.txt", b64encode(letter.encode() * 40).decode())])
    assert len(reader._texts) == 1


async def test_a_turn_learns_what_it_has_to_read() -> None:
    first = PromptMedia(documents={})
    assert first.document_fault(PAPER) is None
    assert "could not be read" in first.document_part(PAPER).text
    assert first.unread == [PAPER]
    second = PromptMedia(documents={PAPER: "the text"})
    assert second.document_fault(PAPER) is None
    assert second.document_part(PAPER).text == "the text"
    assert second.unread == []
    damaged = PromptMedia(documents={PAPER: RequestError("It is damaged.")})
    assert str(damaged.document_fault(PAPER)) == "It is damaged."
    assert isinstance(NO_MEDIA.document_fault(PAPER), UnreadableError)
