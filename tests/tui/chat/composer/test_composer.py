"""Writing a question with what goes with it."""

from __future__ import annotations

import pytest
from textual.events import Key

from app.client.fake import ScriptedClient


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Sit in a folder with a text, a program and noise."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "soup.md").write_text("Salt and leeks.\n")
    (tmp_path / "prog.bin").write_bytes(b"\x7fELF\0")
    (tmp_path / ".secret").write_text("x")
    monkeypatch.chdir(tmp_path)


async def test_a_file_is_picked_after_an_at_sign_and_told_to_the_model(sitting):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.types("What is in @sou")
        await person.sees("@notes/soup.md")
        await person.presses("tab")
        await person.sees("[notes/soup.md · 3 tokens ×]")
        await person.types("it?")
        await person.presses("enter")
        await person.sees("Hello.")
        await person.no_longer_sees("3 tokens")
    assert client.requests[0][0].content == "notes/soup.md:\n```\nSalt and leeks.\n```\n\nWhat is in it?"


async def test_hidden_files_are_not_offered_and_one_that_is_no_text_is_refused_in_words(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.types("@")
        await person.sees("@prog.bin", "@notes/soup.md")
        assert ".secret" not in person.screen_text
        await person.presses("enter")
        await person.sees("prog.bin is no text")


async def test_a_file_that_came_since_the_last_one_was_picked_is_offered(sitting, tmp_path):
    async with sitting(ScriptedClient()) as person:
        await person.types("@sou")
        await person.sees("@notes/soup.md")
        await person.presses("tab")
        await person.sees("[notes/soup.md")
        (tmp_path / "bread.md").write_text("Flour.")
        await person.types("@bre")
        await person.sees("@bread.md")
        await person.presses("tab")
        await person.sees("[bread.md")


async def test_a_file_elsewhere_is_reached_folder_by_folder(sitting, tmp_path, monkeypatch):
    client = ScriptedClient()
    monkeypatch.chdir(tmp_path / "notes")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "bread.md").write_text("Flour.")
    async with sitting(client) as person:
        await person.types("Which? @../mo")
        await person.sees("@../more/")
        await person.presses("tab")
        await person.sees("@../more/bread.md")
        await person.presses("tab")
        await person.sees("[../more/bread.md")
        await person.presses("enter")
        await person.sees("Hello.")
    assert client.requests[0][0].content == "../more/bread.md:\n```\nFlour.\n```\n\nWhich?"


async def test_a_long_paste_goes_beside_the_prompt_and_backspace_takes_it_away(sitting):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.pastes("word\n" * 20)
        await person.sees("[pasted 1 · 20 tokens ×]")
        await person.pastes("word " * 300)
        await person.sees("[pasted 2 · 300 tokens ×]")
        await person.presses("backspace")
        await person.no_longer_sees("pasted 2")
        await person.asks("and?")
        await person.sees("Hello.")
    words = "word\n" * 20
    assert client.requests[0][0].content == f"pasted 1:\n```\n{words}```\n\nand?"


async def test_a_click_takes_an_attachment_away(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.pastes("word\n" * 20)
        await person.sees("pasted 1")
        await person.pilot.click("AttachmentBar Static")
        await person.no_longer_sees("pasted 1")


async def test_commands_are_offered_while_a_slash_word_is_typed(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.types("/sy")
        await person.sees("/system", "Tell the model how to behave")
        await person.presses("tab")
        await person.no_longer_sees("Tell the model how to behave")
        await person.types("Be brief")
        await person.presses("enter")
        await person.sees("System prompt: Be brief")


async def test_arrows_choose_among_offers_and_escape_hides_them(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.types("/")
        await person.sees("/stop", "/retry")
        await person.presses("down", "enter")
        await person.no_longer_sees("/stop")
        assert person.app.screen.query_one("PromptInput").text == "/retry "
        await person.presses("ctrl+u")
        await person.types("/n")
        await person.sees("/new")
        await person.presses("escape")
        await person.no_longer_sees("Start an empty chat")
        assert person.app.screen.query_one("PromptInput").text == "/n"


async def test_a_word_that_is_whole_is_run_by_one_enter(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.types("/help")
        await person.presses("enter")
        await person.sees("Keys and commands")


async def test_enter_in_one_burst_with_a_word_takes_no_offer_for_its_beginning(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.sees("ready")
        for character in "/nosuch":
            person.app.post_message(Key(character, character))
        person.app.post_message(Key("enter", "\r"))
        await person.sees("There is no command /nosuch")
