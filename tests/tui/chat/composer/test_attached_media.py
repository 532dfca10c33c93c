"""Pictures, sounds and documents: attached, shown with their share of the context, and sent."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from app.protocol.library import LocalModel
from tests.app.chat.attachments.files import pdf_of, picture_of, wav_of
from tests.app.client.scripted_client import READY, ScriptedClient

pytestmark = pytest.mark.slow

SEEING = replace(READY, sees=True, hears=False)
BLIND = replace(READY, sees=False, hears=False)
PAGES = ("Leeks and salt.", "Boil for an hour.", "Serve hot.")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Sit in a folder with a picture, a sound and a document."""
    (tmp_path / "photo.png").write_bytes(picture_of((64, 48)))
    (tmp_path / "song.wav").write_bytes(wav_of(2.0))
    (tmp_path / "paper.pdf").write_bytes(pdf_of(PAGES))
    monkeypatch.chdir(tmp_path)


async def attaches(user, name):
    await user.types(f"@{name}")
    await user.sees(f"\n @{name}")
    await user.presses("tab")


async def test_a_picture_is_counted_shown_and_sent(open_app, tmp_path):
    client = ScriptedClient(model=SEEING)
    async with open_app(client) as user:
        await attaches(user, "photo.png")
        await user.sees("[photo.png · 64 × 48", "64 tokens, 3 % of the context ×]", " + ")
        await user.presses("ctrl+l")
        await user.sees("▀▀▀", "Ctrl+R removes it")
        await user.presses("escape")
        await user.no_longer_sees("Ctrl+R removes it")
        await user.types("what is it?")
        await user.presses("enter")
        await user.sees("Hello.", "[photo.png, 64 × 48", "▀▀▀▀▀▀▀▀")
    (message,) = client.requests[0]
    assert message.content == "@photo.png what is it?"
    (part,) = message.media
    assert (part.mime_type, base64.b64decode(part.base64)) == ("image/png", (tmp_path / "photo.png").read_bytes())


async def test_the_pages_of_a_document_have_numbers_that_an_answer_can_cite(open_app):
    client = ScriptedClient(model=BLIND)
    async with open_app(client) as user:
        await attaches(user, "paper.pdf")
        await user.sees("[paper.pdf · 3 pages · ")
        await user.types("how long?")
        await user.presses("enter")
        await user.sees("Hello.", "[paper.pdf, 3 pages]")
    assert "[Page 2]\n\nBoil for an hour." in client.requests[0][0].content


async def test_pages_can_be_chosen_where_a_document_is_mentioned(open_app):
    client = ScriptedClient(model=SEEING)
    async with open_app(client) as user:
        await user.asks("What is on @paper.pdf#2-3 and @paper.pdf#1,pictures ?")
        await user.sees("Hello.")
    (message,) = client.requests[0]
    assert "[Page 2]" in message.content
    assert "[Page 1]" not in message.content
    assert [part.mime_type for part in message.media] == ["image/png"]


async def test_a_model_that_does_not_see_says_so_and_one_key_switches_to_one_that_does(open_app):
    client = ScriptedClient(model=BLIND)
    client.library.here = [
        LocalModel(id="gemma3:4b", where="library", path="/m/gemma.gguf", n_bytes=4, sees=True),
        LocalModel(id="smolvlm", where="library", path="/m/smol.gguf", n_bytes=9, sees=True, hears=True),
    ]
    async with open_app(client) as user:
        await attaches(user, "photo.png")
        await user.sees("guide does not see pictures. Alt+M switches to gemma3:4b (or smolvlm).")
        await attaches(user, "song.wav")
        await user.sees("see pictures or hear sounds. Alt+M switches to smolvlm.", "[song.wav · 0:02")
        client.model = replace(SEEING, hears=True, id="smolvlm")
        await user.presses("alt+m")
        await user.no_longer_sees("does not")
        await user.sees("smolvlm  ● ready", "64 tokens")
    assert client.loads[-1] == "/m/smol.gguf"


async def test_where_no_local_model_sees_the_way_to_one_is_said(open_app):
    async with open_app(ScriptedClient(model=BLIND)) as user:
        await attaches(user, "photo.png")
        await user.sees("guide does not see pictures. No local model does: F6 downloads one.")
        await user.presses("alt+m")
        await user.sees("Nothing is attached that needs another model.")


async def test_a_file_is_attached_by_a_command(open_app):
    async with open_app(ScriptedClient(model=SEEING)) as user:
        await user.types("/attach pho")
        await user.sees("\n photo.png")
        await user.presses("tab", "enter")
        await user.sees("[photo.png · 64 × 48")
        await user.asks("/attach none.png")
        await user.sees("none.png cannot be read")
        await user.presses("ctrl+u")
        await user.asks("/attach")
        assert user.app.screen.query_one("PromptInput").text == "/attach "


async def test_attachments_stay_with_a_question_that_is_edited_and_asked_again(open_app):
    client = ScriptedClient(model=SEEING)
    async with open_app(client) as user:
        await attaches(user, "photo.png")
        await user.types("what?")
        await user.presses("enter")
        await user.sees("Hello.")
        await user.asks("/edit")
        await user.sees("Editing the question", "[photo.png · 64 × 48")
        await user.types("!")
        await user.presses("enter")
        await user.sees("‹ 2/2 ›")
        await user.presses("ctrl+r")
        await user.until(lambda: len(client.requests) == 3, "no third answer")
    assert [len(request[-1].media) for request in client.requests] == [1, 1, 1]


async def test_of_a_text_that_does_not_fit_a_part_is_chosen(open_app, tmp_path):
    pages = [f"Chapter {number}. " + "word " * 900 for number in range(1, 5)]
    (tmp_path / "book.md").write_text("\n\n".join(f"# Chapter {n}\n\n{text}" for n, text in enumerate(pages, start=1)))
    client = ScriptedClient()
    async with open_app(client) as user:
        await attaches(user, "book.md")
        await user.sees("book.md does not fit: Alt+P searches in it, or takes a part.", "177 %", "too long")
        await user.presses("alt+p")
        await user.sees("What is sent of book.md", "search in it", "part 1 of 4: # Chapter 1", "4 of 4: # Chapter 4")
        await user.presses("down", "down", "down", "enter")
        await user.sees("[book.md · part 3 of 4 · 905 tokens, 44 % of the context ×]", " + ")
        await user.types("which?")
        await user.presses("enter")
        await user.sees("Hello.")
    assert "# Chapter 3" in client.requests[0][0].content
    assert "# Chapter 2" not in client.requests[0][0].content


async def test_a_text_that_does_not_fit_is_searched_for_each_question(open_app, tmp_path):
    words = ("soup", "bicycles", "barometers", "whales")
    pages = [f"# Chapter {n}\n\nOf {word}. " + "word " * 900 for n, word in enumerate(words, start=1)]
    (tmp_path / "book.md").write_text("\n\n".join(pages))
    client = ScriptedClient()
    async with open_app(client) as user:
        await attaches(user, "book.md")
        await user.sees("book.md does not fit")
        await user.presses("alt+p")
        await user.sees("search in it")
        await user.presses("enter")
        await user.sees("[book.md · ", "searched for each question ×]")
        await user.types("which chapter is of bicycles?")
        await user.presses("enter")
        await user.sees("Hello.", "[1] book.md (Chapter 2)")
        await user.asks("/source 1")
        await user.sees("Of bicycles", "Y copies the path")
    asked = client.requests[0][0].content
    assert asked.startswith("book.md, ")
    assert "Of bicycles" in asked
    assert "Of soup" not in asked


async def test_a_file_that_is_only_mentioned_is_not_sent_where_it_cannot_fit_and_can_be_searched(open_app, tmp_path):
    (tmp_path / "book.md").write_text("# Soup\n\n" + "word " * 4000)
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.types("@book.md ")
        await user.sees("too long")
        await user.presses("enter")
        await user.sees("Too long: about", "searches in it")
        await user.presses("ctrl+u")
        await user.types("@book.md soup? ")
        await user.sees("too long")
        await user.presses("alt+p")
        await user.sees("search in it")
        await user.presses("enter")
        await user.sees("searched for each question ×]")
        await user.presses("enter")
        await user.sees("Hello.")
    assert client.requests[0][0].content.startswith("book.md, 20,008 characters, searched: ")


async def test_only_a_text_is_searched_or_has_parts(open_app):
    async with open_app(ScriptedClient(model=SEEING)) as user:
        await attaches(user, "photo.png")
        await user.presses("alt+p")
        await user.sees("No text is attached that has parts.")
        await user.presses("ctrl+u")
        await user.pastes("word\n" * 20)
        await user.asks("/part pasted 1")
        await user.sees("search in it", "all of it: it fits")
