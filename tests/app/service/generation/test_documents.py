"""Documents that clients send whole."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import psutil
import pytest

from app.protocol.errors import RequestError
from app.service.generation import media
from app.service.generation.media import NO_MEDIA, Document, DocumentReader, PromptMedia, UnreadableError
from tests.app.chat.attachments.files import docx_of, paragraph, pdf_of
from tests.app.chat.attachments.hostile_files import repeated_page_pdf
from tests.app.child_processes import children_that_run

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


def _heavy(name: str) -> Document:
    return Document(name, b64encode(repeated_page_pdf(4_999, 5_000)).decode())


@pytest.mark.slow
async def test_what_the_documents_of_a_request_take_is_bounded_in_all() -> None:
    found = await DocumentReader(total_s=0.6).read([_heavy(f"{number}.pdf") for number in range(3)])
    assert [isinstance(each, RequestError) and "takes too long" in each.cause for each in found.values()] == [True] * 3


@pytest.mark.slow
async def test_an_honest_document_is_read_beside_two_heavy_ones_of_another_client() -> None:
    reader = DocumentReader(total_s=1e9)
    heavy = [asyncio.create_task(reader.read([_heavy(name)], "at 192.0.2.1")) for name in ("a.pdf", "b.pdf")]
    await asyncio.sleep(0)
    honest = Document("letter.docx", b64encode(docx_of(paragraph("Dear whales"))).decode())
    (text,) = (await reader.read([honest], "at 192.0.2.2")).values()
    assert "Dear whales" in str(text)
    assert not any(task.done() for task in heavy)
    for task in heavy:
        task.cancel()
    await asyncio.wait(heavy)
    assert all(task.cancelled() for task in heavy)


@pytest.mark.slow
async def test_the_reader_ends_with_its_request() -> None:
    reading = asyncio.create_task(DocumentReader(total_s=1e9).read([_heavy("a.pdf")]))
    while not (found := await asyncio.to_thread(children_that_run, "attachments.parse")):  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.02)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    gone, _ = await asyncio.to_thread(psutil.wait_procs, found, 30)
    assert gone == found
