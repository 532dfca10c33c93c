"""The history screen."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from textual.events import Key

from app.chat.conversation import Chat, Message, Transcript
from app.chat.files import export_to, read_chats
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from tests.app.client.scripted_client import ScriptedClient
from tests.patience import PATIENCE_S
from tui.history.chat_list import fetch_rows

pytestmark = pytest.mark.slow

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    """What the app of `open_app` keeps, seen from another window."""
    with ChatStore(tmp_path / "data") as opened:
        yield opened


def keep(store: ChatStore, title: str, content: str = "hello", *, model: str = "guide", age_days: int = 0) -> Chat:
    moment_ms = int(datetime.now().timestamp() * 1000) - age_days * DAY_MS
    message = Message(id=1, parent_id=None, role="user", content=content, created_ms=moment_ms)
    chat = Chat(id=1, title=title, created_ms=moment_ms, updated_ms=moment_ms, model=model, leaf_id=1)
    return store.transcripts.insert(Transcript(chat, (message,)))


def titles(store: ChatStore) -> list[str]:
    return [chat.title for chat in store.chats.page()]


async def test_chats_are_found_while_words_are_typed_and_enter_opens_one(open_app, store, tmp_path):
    keep(store, "Dinner", "we cook aubergines with garlic")
    keep(store, "Work", "quantize the model")
    async with (
        SqliteChatRepository(tmp_path / "data") as repository,
        open_app(ScriptedClient(), repository=repository) as user,
    ):
        await user.presses("f5")
        await user.sees("Dinner", "Work", "2 chats")
        await user.presses("slash")
        await user.types("auberg")
        await user.sees("we cook aubergines with garlic", "1 chat")
        await user.no_longer_sees("Work")
        await user.presses("down", "enter")
        await user.sees("we cook aubergines with garlic", "Ask something")


async def test_who_comes_back_sees_all_chats_and_who_answers_a_dialog_still_the_search(open_app, store, tmp_path):
    keep(store, "Dinner", "we cook aubergines")
    keep(store, "Work", "quantize the model")
    async with (
        SqliteChatRepository(tmp_path / "data") as repository,
        open_app(ScriptedClient(), repository=repository) as user,
    ):
        await user.presses("f5")
        await user.sees("2 chats")
        await user.presses("slash")
        await user.types("auberg")
        await user.sees("we cook aubergines", "1 chat")
        await user.presses("enter", "r")
        await user.sees("Rename the chat")
        await user.presses("escape")
        await user.sees("auberg", "1 chat")
        await user.presses("f8")
        await user.no_longer_sees("auberg")
        keep(store, "Later")
        await user.presses("f5")
        await user.sees("Later", "Work", "Dinner", "3 chats")


def keep_long_chat(store: ChatStore) -> None:
    """Two hundred turns after a question of which there are two versions, the first without what followed."""
    messages = [
        Message(id=1, parent_id=None, role="user", content="where do aubergines grow"),
        Message(id=2, parent_id=1, role="assistant", content="In a greenhouse."),
        Message(id=3, parent_id=None, role="user", content="where do melons grow"),
    ]
    messages += [
        Message(id=n, parent_id=n - 1, role="assistant" if n % 2 == 0 else "user", content=f"Turn {n}.\n\nOn.")
        for n in range(4, 204)
    ]
    messages[7] = replace(messages[7], content="A trellis holds them.")
    now_ms = int(datetime.now().timestamp() * 1000)
    chat = Chat(id=1, title="Garden", created_ms=1, updated_ms=now_ms, model="guide", leaf_id=203)
    store.transcripts.insert(Transcript(chat, tuple(messages)))


@pytest.mark.parametrize("word", ["greenhouse", "trellis", "203"], ids=["another branch", "far above", "the last one"])
async def test_what_was_found_is_opened_at_its_message(open_app, store, tmp_path, word):
    keep(store, "Another", age_days=1)
    keep_long_chat(store)
    async with (
        SqliteChatRepository(tmp_path / "data") as repository,
        open_app(ScriptedClient(), repository=repository) as user,
    ):
        await user.sees("Turn 203.")
        await user.presses("f5")
        await user.sees("2 chats")
        await user.presses("slash")
        await user.types(word)
        # in the field and in the hit; before, what was found is of a part of the word
        n_seen = 3 if word == "203" else 2  # it is the number of messages too
        await user.until(lambda: user.screen_text.count(word) == n_seen, f"{word} was not found")
        await user.presses("enter", "enter")
        await user.sees("Ask something")
        await user.until(lambda: word in _selected(user), f"{word} is not selected in view")
        await user.presses("y")
        await user.sees("│ y ")  # what is typed goes to the prompt


def _selected(user) -> str:
    """What is to be seen of the selected message: the rows with its mark."""
    return "\n".join(line for line in user.screen_text.splitlines() if line.startswith(" ┃"))


async def test_letters_are_text_in_the_search_which_escape_empties_before_it_goes_to_the_chat(open_app, store):
    keep(store, "Dinner")
    async with open_app(ScriptedClient()) as user:
        await user.presses("f5")
        await user.sees("Dinner", "r rename")
        await user.presses("slash")
        await user.no_longer_sees("r rename")
        await user.types("pad")
        await user.sees("pad", "No chat matches.")
        await user.presses("escape")
        await user.sees("Dinner")
        await user.presses("escape")
        await user.sees("Ask something")
    assert titles(store) == ["Dinner"]
    assert not store.chats.page()[0].is_pinned


@pytest.mark.parametrize("key", ["r", "R"])
async def test_a_chat_is_renamed_but_not_to_nothing_and_its_duplicate_is_listed_next_to_it(open_app, store, key):
    keep(store, "Old")
    async with open_app(ScriptedClient()) as user:
        await user.presses("f5")
        await user.sees("Old")
        await user.presses(key, *["backspace"] * 3, "enter")
        await user.sees("The title is empty.")
        await user.types("New")
        await user.presses("enter")
        await user.no_longer_sees("Rename the chat")
        await user.sees("New", "1 chat")
        assert titles(store) == ["New"]
        await user.presses("d")
        await user.sees("2 chats")
    assert titles(store) == ["New", "New"]


async def test_a_deleted_chat_is_forgotten_by_the_service_and_comes_back_with_u(open_app, store):
    keep(store, "Precious")
    (chat,) = store.chats.page()
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.presses("f5")
        await user.sees("1 chat")
        await user.presses("u", "x")  # a key that has nothing to act on is dead
        await user.sees("“Precious” is deleted.", "No chats yet")
        assert titles(store) == []
        await user.until(lambda: bool(client.forgotten_keys), "the service was not asked")
        await user.presses("u")
        await user.sees("1 chat")
    assert titles(store) == ["Precious"]
    assert client.forgotten_keys == [chat.prompt_cache_key]


async def test_pinned_chats_come_first_and_archived_ones_have_their_own_list(open_app, store):
    keep(store, "First", age_days=2)
    keep(store, "Second", age_days=1)
    async with open_app(ScriptedClient()) as user:
        await user.presses("f5")
        await user.sees("First", "Second")
        await user.presses("down", "p")
        await user.sees("◆ First")
        assert titles(store) == ["First", "Second"]
        await user.presses("a")
        await user.sees("“First” is archived.", "1 chat")
        await user.presses("shift+tab", "enter", "down", "enter", "tab")
        await user.sees("First [archived]")
        await user.presses("a")
        await user.sees("“First” is unarchived.")
    assert [chat.is_archived for chat in store.chats.page()] == [False, False]


async def test_the_list_is_narrowed_by_model_and_age(open_app, store):
    keep(store, "Old", model="qwen", age_days=40)
    keep(store, "New", model="guide")
    async with open_app(ScriptedClient(), size=(120, 40)) as user:
        await user.presses("f5")
        await user.sees("Old", "New")
        await user.pilot.click("#model")
        await user.presses("end", "enter")
        await user.no_longer_sees("New")
        await user.presses("tab", "enter", "down", "down", "enter")
        await user.sees("No chat matches.")


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that takes five pieces of a document, and the others once this is set."""
    goes_on = threading.Event()

    def export_slowly(path: Path, pieces: Iterable[str]) -> None:
        def slow() -> Iterator[str]:
            for number, piece in enumerate(pieces):
                yield piece
                if number == 4:
                    goes_on.wait(PATIENCE_S)

        export_to(path, slow())

    monkeypatch.setattr("tui.history.stored_chats.export_to", export_slowly)
    monkeypatch.setattr("tui.history.stored_chats._QUICK_S", 0.01)
    yield goes_on
    goes_on.set()


@pytest.mark.parametrize("ending", ["md", "json", "html"])
async def test_a_long_export_shows_how_far_it_is_and_leaves_a_whole_file(open_app, store, tmp_path, slow_disk, ending):
    keep_long_chat(store)
    path = tmp_path / f"garden.{ending}"
    async with (
        SqliteChatRepository(tmp_path / "data") as repository,
        open_app(ScriptedClient(), repository=repository) as user,
    ):
        await user.presses("f5")
        await user.sees("Garden")
        await user.sends_at_once("e", "ctrl+u", *str(path), "enter")
        await user.sees("Export the chat", "▰▱", "%", "Esc stops")
        assert not path.exists()
        slow_disk.set()
        await user.sees("Exported to")
        await user.no_longer_sees("Esc stops")
    assert "Turn 203." in path.read_text()
    if ending == "json":
        (chat,) = read_chats(path)
        assert len(chat.transcript.messages) == 203


async def test_escape_stops_a_long_export_and_no_file_is_left(open_app, store, tmp_path, slow_disk):
    keep_long_chat(store)
    (tmp_path / "out").mkdir()
    async with (
        SqliteChatRepository(tmp_path / "data") as repository,
        open_app(ScriptedClient(), repository=repository) as user,
    ):
        await user.sees("ready", "Turn 203.")
        await user.asks(f"/export {tmp_path / 'out' / 'garden.md'}")
        await user.sees("Export the chat", "Esc stops")
        await user.presses("escape")
        await user.sees("stopping")
        slow_disk.set()
        await user.sees("The export was stopped. No file was written.")
        await user.no_longer_sees("Export the chat")
    assert list((tmp_path / "out").iterdir()) == []


async def test_a_chat_is_exported_as_the_name_ends_and_one_that_cannot_be_leaves_the_line(open_app, store, tmp_path):
    keep(store, "Soup", "hot")
    async with open_app(ScriptedClient()) as user:
        await user.presses("f5")
        await user.sees("Soup")
        for ending, expected in (("md", "# Soup"), ("json", '"title": "Soup"'), ("html", "<title>")):
            path = tmp_path / f"soup.{ending}"
            await user.presses("e", "ctrl+a", "ctrl+k")
            await user.pastes(str(path))
            await user.presses("enter")
            await user.no_longer_sees("Export the chat")
            await user.sees("Exported to")
            assert expected in path.read_text()
        await user.presses("e", "ctrl+a", "ctrl+k")
        await user.pastes("soup.docx")
        await user.presses("enter")
        await user.sees("soup.docx has no known extension.")
        await user.presses("escape")
        await user.no_longer_sees("Export the chat")


async def test_chats_of_a_file_are_imported_and_skipped_ones_are_reported(open_app, store, tmp_path):
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([{"messages": [{"role": "user", "content": "a borrowed question"}]}, {"no": "chat"}]))
    async with open_app(ScriptedClient(), size=(120, 40)) as user:
        await user.presses("f5", "i")
        await user.pastes(str(path))
        await user.presses("enter")
        await user.sees("Imported 1 chat. Not taken over: chat 1", "a borrowed question")
    assert len(titles(store)) == 1


def keep_many(store: ChatStore, n_chats: int) -> None:
    for number in range(n_chats):
        keep(store, f"Number {number:03}", "needle", age_days=n_chats - number)


async def test_more_chats_are_loaded_near_the_end_of_the_list(open_app, store):
    keep_many(store, 120)
    async with open_app(ScriptedClient()) as user:
        await user.presses("f5")
        await user.sees("Number 119", "50 chats shown, more below")
        await user.presses("pagedown", "pagedown")
        await user.sees("100 chats shown, more below")


@pytest.mark.parametrize("typed", ["", "needle"], ids=["the list", "what was found"])
async def test_end_goes_to_the_last_of_all_chats_and_home_to_the_first(open_app, store, typed):
    keep_many(store, 420)
    async with open_app(ScriptedClient()) as user:
        await user.presses("f5")
        await user.sees("50 chats shown, more below")
        if typed:
            await user.presses("slash", *typed)
            await user.sees("needle", "50 chats shown, more below")
            await user.presses("enter")
        await user.presses("end")
        await user.sees("420 chats", "Number 000")
        chats = user.app.screen.chat_list
        assert chats.row.chat.title == "Number 000"
        await user.presses("home")
        await user.sees("Number 419")
        assert chats.row.chat.title == "Number 419"
        await user.presses("up")
        assert chats.row.chat.title == "Number 000"


async def test_a_list_that_was_whole_is_whole_when_it_is_read_again(open_app, store):
    keep_many(store, 60)
    async with open_app(ScriptedClient()) as user:
        await user.presses("f5")
        await user.sees("50 chats shown, more below")
        await user.presses("end")
        await user.sees("60 chats", "Number 000")
        await user.presses("p")
        await user.sees("◆ Number 000")
        assert "so far" not in user.screen_text


async def test_pages_that_are_not_loaded_yet_can_be_scrolled_to(open_app, store):
    keep_many(store, 200)
    async with open_app(ScriptedClient()) as user:
        await user.presses("f5")
        await user.sees("50 chats shown, more below")
        chats = user.app.screen.chat_list
        for _ in range(7):
            user.app.post_message(Key("pagedown", None))
        for _ in range(3):
            user.app.post_message(Key("down", None))
        place = 7 * chats.size.height + 3
        # Headings on the way are no chats, and take up to three rows of a page.
        await user.until(
            lambda: place - 3 * (chats.option_count - len(chats.rows)) <= (chats.row_index or 0) <= place,
            f"row {place} was never come to",
        )


async def test_who_turns_back_on_the_way_to_the_end_is_not_led_there(open_app, store, monkeypatch):
    keep_many(store, 120)
    may_read = asyncio.Event()

    async def slow(*arguments):
        await may_read.wait()
        return await fetch_rows(*arguments)

    async with open_app(ScriptedClient()) as user:
        await user.presses("f5")
        await user.sees("50 chats shown, more below")
        monkeypatch.setattr("tui.history.screen.fetch_rows", slow)
        await user.presses("end", "up")
        may_read.set()
        await user.sees("120 chats")
        assert user.app.screen.chat_list.row.chat.title == "Number 071"


async def test_a_search_reads_no_more_than_a_page_after_a_long_list(open_app, store):
    keep_many(store, 120)
    async with open_app(ScriptedClient()) as user:
        await user.presses("f5", "end")
        await user.sees("120 chats", "Number 000")
        await user.presses("slash", *"needle")
        await user.sees("50 chats shown, more below")


async def test_a_chat_that_moves_while_the_list_is_read_is_listed_once(open_app, store):
    keep_many(store, 120)
    store.chats.pin(100, True)
    async with open_app(ScriptedClient()) as user:
        await user.presses("f5")
        await user.sees("◆ Number 099", "50 chats shown, more below")
        store.chats.pin(100, False)
        store.chats.rename(1, "The last one")
        await user.presses("end")
        await user.sees("The last one", "120 chats")


async def test_what_a_chat_is_called_reaches_the_terminal_as_plain_text(open_app, store):
    keep(store, "[red]not markup[/red]\x1b[31m\x9b2J\u202e end", "needle \x1b]8;;http://bad\x07[b]link[/b]")
    async with open_app(ScriptedClient()) as user:
        await user.presses("f5")
        await user.sees("[red]not markup[/red][31m2J end")
        await user.presses("slash")
        await user.types("needle")
        await user.sees("needle ]8;;http://bad[b]link[/b]")


async def test_a_damaged_store_is_reported_and_the_screen_stays(open_app, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "chats.db").write_bytes(b"not a database" * 1000)
    async with open_app(ScriptedClient(), size=(120, 40)) as user:
        await user.presses("f5")
        await user.sees("The chats cannot be read.", "search every chat")
        said = " ".join(user.screen_text.split())  # where its lines break depends on the length of the folder's path
        assert "The file is not a database." in said
        assert "restore a backup" in said


async def test_words_in_one_burst_after_the_slash_are_searched_for_and_command_nothing(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.presses("f5")
        await user.sees("No chats yet")
        for key in ("slash", "z", "e", "b", "x", "d"):
            user.app.post_message(Key(key, "/" if key == "slash" else key))
        await user.sees("zebxd")
