"""The chats, as a person looks for one and tidies up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from textual.events import Key

from app.chat.conversation import Chat, Message, Transcript
from app.chat.store import ChatStore
from app.client.fake import ScriptedClient
from tui.chat.repository import SqliteChatRepository

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    """What the app of `sitting` keeps, seen from another window."""
    with ChatStore(tmp_path / "data") as opened:
        yield opened


def keep(store: ChatStore, title: str, content: str = "hello", *, model: str = "guide", age_days: int = 0) -> Chat:
    moment_ms = int(datetime.now().timestamp() * 1000) - age_days * DAY_MS
    message = Message(id=1, parent_id=None, role="user", content=content, created_ms=moment_ms)
    chat = Chat(id=1, title=title, created_ms=moment_ms, updated_ms=moment_ms, model=model, leaf_id=1)
    return store.transcripts.insert(Transcript(chat, (message,)))


def titles(store: ChatStore) -> list[str]:
    return [chat.title for chat in store.chats.page()]


async def test_chats_are_found_while_words_are_typed_and_enter_goes_on_with_one(sitting, store, tmp_path):
    keep(store, "Dinner", "we cook aubergines with garlic")
    keep(store, "Work", "quantize the model")
    async with SqliteChatRepository(tmp_path / "data") as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.presses("f5")
        await person.sees("Dinner", "Work", "2 chats")
        await person.presses("slash")
        await person.types("auberg")
        await person.sees("we cook aubergines with garlic", "1 chat")
        await person.no_longer_sees("Work")
        await person.presses("down", "enter")
        await person.sees("we cook aubergines with garlic", "Ask something")


def keep_long_chat(store: ChatStore) -> None:
    """Two hundred turns after a question of which there are two versions, the first without what followed."""
    said = [
        Message(id=1, parent_id=None, role="user", content="where do aubergines grow"),
        Message(id=2, parent_id=1, role="assistant", content="In a greenhouse."),
        Message(id=3, parent_id=None, role="user", content="where do melons grow"),
    ]
    said += [
        Message(id=n, parent_id=n - 1, role="assistant" if n % 2 == 0 else "user", content=f"Turn {n}.\n\nOn.")
        for n in range(4, 204)
    ]
    said[7] = replace(said[7], content="A trellis holds them.")
    now_ms = int(datetime.now().timestamp() * 1000)
    chat = Chat(id=1, title="Garden", created_ms=1, updated_ms=now_ms, model="guide", leaf_id=203)
    store.transcripts.insert(Transcript(chat, tuple(said)))


@pytest.mark.parametrize("word", ["greenhouse", "trellis", "203"], ids=["another branch", "far above", "the last one"])
async def test_what_was_found_is_opened_at_its_message(sitting, store, tmp_path, word):
    keep(store, "Another", age_days=1)
    keep_long_chat(store)
    async with SqliteChatRepository(tmp_path / "data") as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("Turn 203.")
        await person.presses("f5")
        await person.sees("2 chats")
        await person.presses("slash")
        await person.types(word)
        # in the field and in the hit; before, what was found is of a part of the word
        await person.until(lambda: person.screen_text.count(word) == 2, f"{word} was not found")
        await person.presses("enter", "enter")
        await person.sees("Ask something")
        await person.until(lambda: word in _selected(person), f"{word} is not selected in view")
        await person.presses("y")
        await person.sees("Copied")
        assert word in person.app.clipboard


def _selected(person) -> str:
    """What is to be seen of the selected message: the rows with its mark."""
    return "\n".join(line for line in person.screen_text.splitlines() if line.startswith(" ┃"))


async def test_escape_empties_the_search_and_again_goes_to_the_chat(sitting, store):
    keep(store, "Dinner")
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5", "slash")
        await person.types("zzz")
        await person.sees("No chat is like that.")
        await person.presses("escape")
        await person.sees("Dinner")
        await person.presses("escape")
        await person.sees("Ask something")


async def test_letters_are_letters_while_the_search_is_typed_and_commands_on_the_list(sitting, store):
    keep(store, "Dinner")
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("Dinner", "Rename")
        await person.presses("slash")
        await person.no_longer_sees("Rename")
        await person.types("pad")
        await person.sees("pad")
    assert titles(store) == ["Dinner"]
    assert not store.chats.page()[0].is_pinned


async def test_a_chat_is_renamed_but_not_to_nothing(sitting, store):
    keep(store, "Old")
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("Old")
        await person.presses("r", *["backspace"] * 3, "enter")
        await person.sees("A chat needs a title.")
        await person.types("New")
        await person.presses("enter")
        await person.no_longer_sees("Rename the chat")
        await person.sees("New")
    assert titles(store) == ["New"]


async def test_a_deleted_chat_comes_back_with_u(sitting, store):
    keep(store, "Precious")
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("1 chat")
        await person.presses("u")
        await person.sees("Nothing was deleted here.")
        await person.presses("x")
        await person.sees("“Precious” is deleted.", "No chat is kept yet")
        assert titles(store) == []
        await person.presses("u")
        await person.sees("1 chat")
    assert titles(store) == ["Precious"]


async def test_pinned_chats_come_first_and_archived_ones_have_their_own_list(sitting, store):
    keep(store, "First", age_days=2)
    keep(store, "Second", age_days=1)
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("First", "Second")
        await person.presses("down", "p")
        await person.sees("◆ First")
        assert titles(store) == ["First", "Second"]
        await person.presses("a")
        await person.sees("“First” is archived.", "1 chat")
        await person.presses("shift+tab", "enter", "down", "enter", "tab")
        await person.sees("First [archived]")
        await person.presses("a")
        await person.sees("“First” is back in the list.")
    assert [chat.is_archived for chat in store.chats.page()] == [False, False]


async def test_the_list_is_narrowed_by_model_and_age(sitting, store):
    keep(store, "Old", model="qwen", age_days=40)
    keep(store, "New", model="guide")
    async with sitting(ScriptedClient(), size=(120, 40)) as person:
        await person.presses("f5")
        await person.sees("Old", "New")
        await person.pilot.click("#model")
        await person.presses("end", "enter")
        await person.no_longer_sees("New")
        await person.presses("tab", "enter", "down", "down", "enter")
        await person.sees("No chat is like that.")


async def test_a_duplicate_stands_beside_its_original(sitting, store):
    keep(store, "Twice")
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("1 chat")
        await person.presses("d")
        await person.sees("2 chats")
    assert titles(store) == ["Twice", "Twice"]


@pytest.mark.parametrize(("ending", "expected"), [("md", "# Soup"), ("json", '"title": "Soup"'), ("html", "<title>")])
async def test_a_chat_is_exported_as_the_name_ends(sitting, store, tmp_path, ending, expected):
    keep(store, "Soup", "hot")
    path = tmp_path / f"soup.{ending}"
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("Soup")
        await person.presses("e", "ctrl+a", "ctrl+k")
        await person.pastes(str(path))
        await person.presses("enter")
        await person.sees("Written to")
    assert expected in path.read_text()


async def test_an_export_that_cannot_be_leaves_the_line_to_be_mended(sitting, store, tmp_path):
    keep(store, "Soup")
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("Soup")
        await person.presses("e", "ctrl+a", "ctrl+k")
        await person.pastes("soup.docx")
        await person.presses("enter")
        await person.sees("soup.docx does not end as an export does.")
        await person.presses("escape")
        await person.no_longer_sees("Export the chat")


async def test_chats_of_a_file_are_taken_in_and_what_was_left_out_is_told(sitting, store, tmp_path):
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([{"messages": [{"role": "user", "content": "a borrowed question"}]}, {"no": "chat"}]))
    async with sitting(ScriptedClient(), size=(120, 40)) as person:
        await person.presses("f5", "i")
        await person.pastes(str(path))
        await person.presses("enter")
        await person.sees("Chats taken in: 1.", "Left out: 1. First: chat 1", "a borrowed question")
    assert len(titles(store)) == 1


def keep_many(store: ChatStore, n_chats: int) -> None:
    for number in range(n_chats):
        keep(store, f"Number {number:03}", "needle", age_days=n_chats - number)


async def test_more_chats_come_when_the_person_gets_near_the_end(sitting, store):
    keep_many(store, 120)
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("Number 119", "50 chats so far")
        await person.presses("pagedown", "pagedown")
        await person.sees("100 chats so far")


@pytest.mark.parametrize("typed", ["", "needle"], ids=["the list", "what was found"])
async def test_end_goes_to_the_last_of_all_chats_and_home_to_the_first(sitting, store, typed):
    keep_many(store, 420)
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("50 chats so far")
        if typed:
            await person.presses("slash", *typed)
            await person.sees("needle", "50 chats so far")
            await person.presses("enter")
        await person.presses("end")
        await person.sees("420 chats", "Number 000")
        chats = person.app.screen.chat_list
        assert chats.row.chat.title == "Number 000"
        await person.presses("home")
        await person.sees("Number 419")
        assert chats.row.chat.title == "Number 419"
        await person.presses("up")
        assert chats.row.chat.title == "Number 000"


async def test_a_list_that_was_whole_is_whole_when_it_is_read_again(sitting, store):
    keep_many(store, 60)
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5", "end")
        await person.sees("60 chats", "Number 000")
        await person.presses("p")
        await person.sees("◆ Number 000")
        assert "so far" not in person.screen_text


async def test_pages_that_are_not_here_yet_are_gone_down_all_the_same(sitting, store):
    keep_many(store, 200)
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("50 chats so far")
        chats = person.app.screen.chat_list
        for _ in range(7):
            person.app.post_message(Key("pagedown", None))
        for _ in range(3):
            person.app.post_message(Key("down", None))
        place = 7 * chats.size.height + 3
        await person.until(lambda: chats.highlighted == place, f"row {place} was never come to")


async def test_who_turns_back_on_the_way_to_the_end_is_not_led_there(sitting, store):
    keep_many(store, 120)
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("50 chats so far")
        for key in ("end", "up"):
            person.app.post_message(Key(key, None))
        await person.sees("100 chats so far")
        assert person.app.screen.chat_list.row.chat.title == "Number 071"


async def test_a_search_reads_no_more_than_a_page_after_a_long_list(sitting, store):
    keep_many(store, 120)
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5", "end")
        await person.sees("120 chats", "Number 000")
        await person.presses("slash", *"needle")
        await person.sees("50 chats so far")


async def test_a_chat_that_moves_while_the_list_is_read_stands_on_it_once(sitting, store):
    keep_many(store, 120)
    store.chats.pin(100, True)
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("◆ Number 099", "50 chats so far")
        store.chats.pin(100, False)
        store.chats.rename(1, "The last one")
        await person.presses("end")
        await person.sees("The last one", "120 chats")


async def test_what_a_chat_is_called_reaches_the_terminal_as_plain_text(sitting, store):
    keep(store, "[red]not markup[/red]\x1b[31m\x9b2J\u202e end", "needle \x1b]8;;http://bad\x07[b]link[/b]")
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("[red]not markup[/red][31m2J end")
        await person.presses("slash")
        await person.types("needle")
        await person.sees("needle ]8;;http://bad[b]link[/b]")


async def test_a_damaged_store_is_told_and_the_screen_stays(sitting, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "chats.db").write_bytes(b"no database" * 1000)
    async with sitting(ScriptedClient(), size=(120, 40)) as person:
        await person.presses("f5")
        await person.sees("no database", "Search every chat")


async def test_words_in_one_burst_after_the_slash_are_searched_for_and_command_nothing(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.presses("f5")
        await person.sees("No chat is kept yet")
        for key in ("slash", "z", "e", "b", "x", "d"):
            person.app.post_message(Key(key, "/" if key == "slash" else key))
        await person.sees("zebxd")
