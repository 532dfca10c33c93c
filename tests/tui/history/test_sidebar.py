"""The chats at the side of the open one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.protocol.chat import ToolCall
from tests.app.chat.tool_chats import backend_of, calling
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply
from tests.tui.history.test_screen import keep

WIDE, NARROW = (120, 30), (80, 24)
HELLO = ScriptedReply(deltas=("Hello.",))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    with ChatStore(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def window(open_app, tmp_path):
    """Open the app with what is stored, in a terminal of a size."""

    class Window:
        def __init__(self, size=WIDE, client=None, **given):
            self._repository = SqliteChatRepository(tmp_path / "data")
            client = client or ScriptedClient(HELLO)
            self._app = open_app(client, size=size, repository=self._repository, **given)

        async def __aenter__(self):
            await self._repository.__aenter__()
            return await self._app.__aenter__()

        async def __aexit__(self, *error):
            await self._app.__aexit__(*error)
            await self._repository.__aexit__(*error)

    return Window


def _column(user) -> str:
    """The cells of the chats at the side, row by row."""
    return "\n".join(row[:28] for row in user.screen_text.splitlines())


async def test_a_wide_terminal_lists_the_chats_by_day_beside_the_open_one(window, store):
    keep(store, "Old soup", age_days=400)
    keep(store, "Yesterday's bread", age_days=1)
    keep(store, "Dinner")
    async with window() as user:
        await user.sees("Chats", "Today", "Yesterday", "▌Dinner", "Old soup")
        column = _column(user)
        assert [word for word in ("Today", "Dinner", "Yesterday\n", "bread", "Old soup") if word in column]
        assert column.index("Dinner") < column.index("bread") < column.index("Old soup")


@pytest.mark.parametrize(
    ("size", "setting", "is_shown"),
    [
        ((110, 24), "auto", True),
        ((109, 24), "auto", False),
        ((80, 24), "on", True),
        ((160, 40), "off", False),
    ],
)
async def test_it_is_shown_by_the_width_and_the_setting(window, store, size, setting, is_shown):
    keep(store, "Dinner")
    async with window(size, settings={"sidebar": setting}) as user:
        await user.sees("hello", "ready", *(["▌Dinner"] if is_shown else []))
        assert ("▌Dinner" in user.screen_text) is is_shown


@pytest.mark.slow
async def test_ctrl_o_gives_it_the_keys_opens_hides_and_remembers(window, store, tmp_path):
    keep(store, "Bread", "how to bake", age_days=1)
    keep(store, "Dinner", "what to cook")
    async with window() as user:
        await user.sees("▌Dinner", "what to cook", "ready")
        await user.presses("ctrl+o")
        await user.sees("enter open", "r rename")
        await user.presses("down", "enter")
        await user.sees("▌Bread", "how to bake", "enter send")
        await user.presses("ctrl+o", "ctrl+o")
        await user.no_longer_sees("▌Bread")
        await user.types("x")
        await user.sees("│ x ")
    assert (tmp_path / "config.toml").read_text().split() == ["sidebar", "=", '"off"']
    async with window(settings={"sidebar": "off"}) as user:
        await user.sees("what to cook", "ready")
        await user.presses("ctrl+o")
        await user.sees("▌Dinner")
    assert (tmp_path / "config.toml").read_text().split() == ["sidebar", "=", '"auto"']


@pytest.mark.slow
async def test_in_a_narrow_terminal_it_lies_over_the_chat_until_it_is_left(window, store):
    keep(store, "Bread", "how to bake", age_days=1)
    keep(store, "Dinner", "what to cook")
    async with window(NARROW) as user:
        await user.sees("what to cook", "ready")
        assert "▌Dinner" not in user.screen_text
        await user.presses("ctrl+o")
        await user.sees("▌Dinner", "Bread", "enter open")
        await user.presses("escape")
        await user.no_longer_sees("▌Dinner")
        await user.presses("ctrl+o")
        await user.sees("▌Dinner")
        await user.presses("down", "enter")
        await user.sees("how to bake", "enter send")
        assert "▌Bread" not in user.screen_text


async def test_a_click_opens_a_chat(window, store):
    keep(store, "Bread", "how to bake", age_days=1)
    keep(store, "Dinner", "what to cook")
    async with window() as user:
        await user.sees("▌Dinner", "Bread", "ready")
        rows = user.screen_text.splitlines()
        y = next(number for number, row in enumerate(rows) if "Bread" in row)
        await user.pilot.click(offset=(5, y))
        await user.sees("▌Bread", "how to bake")


@pytest.mark.slow
async def test_chats_are_filtered_renamed_deleted_and_restored_there(window, store):
    keep(store, "Bread", "how to bake", age_days=1)
    keep(store, "Dinner", "aubergines")
    async with window() as user:
        await user.sees("▌Dinner", "ready")
        await user.presses("ctrl+o", "slash")
        await user.types("bake")
        await user.until(lambda: "Dinner" not in _column(user), "the filter leaves nothing out")
        await user.presses("escape")
        await user.until(lambda: "Dinner" in _column(user), "the filter was not ended")
        await user.presses("home", "r")
        await user.sees("Rename the chat")
        await user.types("!")
        await user.presses("enter")
        await user.sees("▌Dinner!")
        await user.presses("delete")
        await user.sees("“Dinner!” is deleted.", "What can you do?")
        assert "Dinner!" not in _column(user)
        await user.presses("u")
        await user.until(lambda: "Dinner!" in _column(user), "it was not restored")
        await user.types("q")  # no command of the list: it is for the prompt
        await user.sees("│ q ")
    assert [chat.title for chat in store.chats.page()] == ["Dinner!", "Bread"]


@pytest.mark.slow
async def test_it_shows_what_answers_what_asks_and_what_was_not_seen(window, store):
    write = ToolCall("w", "write", "{}")
    slow = ScriptedReply(deltas=("Half.", "Whole."), pause_after=1)
    client = ScriptedClient(slow, calling(write), HELLO)
    async with window(client=client, tools=backend_of()) as user:
        await user.asks("slow one")
        await user.sees("Half.")
        await user.presses("ctrl+n")
        await user.until(lambda: any(sign in _column(user) for sign in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"), "nothing turns")
        client.resume()
        await user.until(lambda: "● now" in _column(user), "no sign of the answer")
        await user.asks("/tools on fake")
        await user.sees("tools: fake")
        await user.asks("asking one")
        await user.sees("! now")
        await user.presses("ctrl+o", "down", "enter")
        await user.sees("▌slow one", "Whole.")
        assert "● now" not in _column(user)


@pytest.mark.slow
async def test_an_esc_there_stops_no_answer(window, store):
    client = ScriptedClient(ScriptedReply(deltas=("Half.", "Whole."), pause_after=1))
    async with window(client=client) as user:
        await user.asks("slow one")
        await user.sees("Half.")
        await user.presses("ctrl+o", "escape")
        await user.sees("enter send next")
        client.resume()
        await user.sees("Whole.")


@pytest.mark.slow
async def test_the_open_chat_is_renamed_and_exported_from_the_prompt(window, store, tmp_path):
    async with window() as user:
        await user.asks("/rename Soup")
        await user.sees("This chat is not stored yet")
        await user.presses("ctrl+u")
        await user.asks("hello")
        await user.sees("Hello.", "ready", "▌hello")
        await user.asks("/rename Soup for two")
        await user.sees("The chat is called “Soup for two”.", "▌Soup for two")
        await user.asks(f"/export {tmp_path / 'soup.md'}")
        await user.sees("Exported to")
        await user.asks("/export")
        await user.sees("Export the chat", "Soup-for-two.md")
        await user.presses("escape")
        await user.asks("/rename")
        await user.sees("Rename the chat")
    assert "Hello." in (tmp_path / "soup.md").read_text()


@pytest.mark.slow
async def test_nothing_is_read_of_many_chats_but_the_first_page(window, store):
    for number in range(120):
        keep(store, f"Number {number}", age_days=1)
    async with window() as user:
        await user.sees("Number 119", "ready")
        chats = user.app.screen.query_one("SidebarList")
        assert len(chats.rows) == 50
        await user.presses("ctrl+o", "end")
        await user.sees("Number 0 ")
        assert len(chats.rows) == 120
