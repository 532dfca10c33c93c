"""The first row and the last: where one is, and what one can press now."""

from __future__ import annotations

import pytest

from app.chat.backend import ConnectionState
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply
from tests.tui.conftest import InlineSession
from tests.tui.model_scenes import client_with_models
from tui.design.header import model_facts


def rows(text: str) -> list[str]:
    return text.splitlines()


@pytest.mark.slow
async def test_first_row_names_the_screen_and_the_model_with_its_state(open_app: InlineSession) -> None:
    async with open_app(ScriptedClient()) as user:
        await user.sees("● ready")
        assert rows(user.screen_text)[0].split() == ["localllm", "·", "Chat", "guide", "●", "ready"]
        await user.presses("f5")
        await user.sees("localllm · Chats")


@pytest.mark.slow
async def test_other_screens_stand_in_the_first_row_where_there_is_room(open_app: InlineSession) -> None:
    async with open_app(ScriptedClient(), size=(140, 30)) as user:
        await user.sees("F6 Models", "F10 Settings", "● ready")
        await user.pilot.click(offset=(rows(user.screen_text)[0].index("Jobs") + 1, 0))
        await user.sees("localllm · Jobs")


@pytest.mark.slow
async def test_keys_of_the_chat_change_with_what_happens(open_app: InlineSession) -> None:
    client = ScriptedClient(ScriptedReply(deltas=("One", " two"), pause_after=1))
    async with open_app(client) as user:
        await user.sees("● ready", "enter send")
        await user.asks("Count")
        await user.sees("esc stop")
        client.resume()
        await user.sees("enter send")
        await user.presses("ctrl+up")
        await user.sees("again", "y copy", "esc back")


async def test_click_on_a_key_presses_it(open_app: InlineSession) -> None:
    async with open_app(ScriptedClient(), size=(140, 30)) as user:
        await user.sees("f6 models")
        await user.pilot.click(offset=(rows(user.screen_text)[-1].index("f6 models") + 4, 29))
        await user.sees("localllm · Models")


async def test_narrow_screen_keeps_help_among_the_keys(open_app: InlineSession) -> None:
    async with open_app(ScriptedClient(), size=(34, 20)) as user:
        await user.sees("enter send", "f1 help")


@pytest.mark.parametrize(
    ("state", "n_cells", "facts"),
    [
        (ConnectionState(model="qwen3", phase="ready"), 40, "qwen3  ● ready"),
        (ConnectionState(model="qwen3", phase="loading", progress=0.43), 40, "qwen3  ◌ loading 43%"),
        (ConnectionState(model="a-very-long-name-of-a-model-Q4_K_M"), 12, "◌ starting"),
        (ConnectionState(model="qwen3", phase="failed"), 3, "✕"),
    ],
)
def test_state_of_the_model_fits_its_room(state: ConnectionState, n_cells: int, facts: str) -> None:
    assert model_facts(state, n_cells).plain == facts


async def test_first_row_is_written_again_for_another_width(open_app: InlineSession) -> None:
    async with open_app(ScriptedClient(), size=(50, 20)) as user:
        await user.presses("f8")
        await user.sees("localllm · Jobs", "No jobs.")
        assert "F6 Models" not in user.screen_text
        await user.pilot.resize_terminal(140, 20)
        await user.sees("F6 Models")
        await user.pilot.resize_terminal(18, 20)
        await user.sees("localllm · Jobs")


@pytest.mark.slow
async def test_click_on_help_behind_keys_that_do_not_fit_opens_the_help(open_app: InlineSession) -> None:
    async with open_app(ScriptedClient(), size=(44, 20)) as user:
        await user.sees("enter send", "f1 help")
        assert "f6 models" not in user.screen_text
        await user.pilot.click(offset=(rows(user.screen_text)[-1].index("help"), 19))
        await user.sees("Keys and commands")


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 56, 72, 80, 100])
async def test_keys_that_do_not_fit_are_left_out_whole_from_the_least_important(
    open_app: InlineSession, width: int
) -> None:
    async def keys(n_columns: int) -> list[str]:
        async with open_app(client_with_models(), size=(n_columns, 24)) as user:
            await user.presses("f6")
            await user.sees("guide", "f1 help")
            return rows(user.screen_text)[-1].strip().split("   ")

    *others, last = await keys(220)
    *shown, help_key = await keys(width)
    assert (shown, help_key) == (others[: len(shown)], last)
    assert 0 < len(shown) < len(others)
