"""Keys in one burst, as ssh and a slow terminal send them: none is lost behind a key that opens or focuses a field."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from textual.events import Key
from textual.widgets import Input

from app.chat.repository import SqliteChatRepository
from tests.app.client.scripted_client import ScriptedClient
from tests.tui.model_scenes import client_with_models
from tui.key_queue import KeyQueue

# The keys that open a screen, what it shows then, and the keys that lead into a field.
_FIELDS = [
    ("chats", "f5", "Chats", "slash"),
    ("chats by ctrl+f", "f5", "Chats", "ctrl+f"),
    ("rename a chat", "f5", "A question", "r ctrl+u"),
    ("export a chat", "f5", "A question", "e ctrl+u"),
    ("import chats", "f5", "A question", "i"),
    ("models", "f6", "qwen3-0.6b", "slash"),
    ("models by ctrl+f", "f6", "qwen3-0.6b", "ctrl+f"),
    ("import a model", "f6", "qwen3-0.6b", "i ctrl+u"),
    ("plan a model", "f7", "Plan", "m ctrl+u"),
    ("plan for a machine", "f7", "Plan", "w ctrl+u"),
    ("a setting", "f10", "Settings", "enter ctrl+u"),
    ("the palette", "", "ready", "ctrl+p"),
    ("the palette elsewhere", "f8", "Jobs", "ctrl+p"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("opening", "seen", "keys"), [row[1:] for row in _FIELDS], ids=[row[0] for row in _FIELDS])
async def test_a_word_in_one_burst_with_the_key_that_opens_its_field_arrives_whole(
    open_app, tmp_path, opening, seen, keys
):
    repository = SqliteChatRepository(tmp_path / "data")
    async with repository, open_app(client_with_models(), repository=repository) as user:
        await user.asks("A question")
        await user.sees("Hello.", "ready")
        await user.presses(*opening.split())
        await user.sees(seen)
        await user.sends_at_once(*keys.split(), *"delta q")
        await user.until(
            lambda: isinstance(user.app.focused, Input) and user.app.focused.value == "delta q", "letters were lost"
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "typed"),
    [("f6 slash", "delta"), ("f5 slash", "delta"), ("f5 ctrl+f", "delta"), ("f6 ctrl+p", "delta")],
)
async def test_a_screen_that_is_opened_for_the_first_time_in_the_same_burst_loses_nothing(open_app, keys, typed):
    async with open_app(client_with_models()) as user:
        await user.sees("ready")
        await user.sends_at_once(*keys.split(), *typed)
        await user.until(
            lambda: isinstance(user.app.focused, Input) and user.app.focused.value == typed, "letters were lost"
        )


@pytest.mark.slow
async def test_a_field_that_closes_by_enter_leaves_the_keys_behind_it_to_the_list(open_app, tmp_path):
    repository = SqliteChatRepository(tmp_path / "data")
    async with repository, open_app(client_with_models(), repository=repository) as user:
        await user.asks("A question")
        await user.sees("Hello.", "ready")
        await user.presses("f5")
        await user.sees("A question")
        await user.sends_at_once("r", "ctrl+u", *"Zebras", "enter", "r")
        await user.sees("Rename the chat")
        await user.sends_at_once("ctrl+u", *"Zebras and lions", "enter", "slash", *"lions")
        await user.sees("Zebras and lions")
        await user.until(lambda: getattr(user.app.focused, "value", "") == "lions", "letters were lost")


@pytest.mark.slow
async def test_a_query_and_enter_in_one_burst_with_the_palette_run_what_was_typed(open_app):
    async with open_app(client_with_models()) as user:
        await user.sees("ready")
        await user.sends_at_once("ctrl+p", *"metrics", "enter")
        await user.until(lambda: user.app.current_mode == "metrics", "not opened")
        await user.sends_at_once("ctrl+p", *"chat with qwen3", "enter")
        await user.until(lambda: user.app.current_mode == "chat", "not opened")


@pytest.mark.slow
async def test_a_form_takes_each_value_of_a_burst_into_its_own_field(open_app):
    async with open_app(client_with_models(), size=(100, 40)) as user:
        await user.sees("ready")
        await user.asks("/options")
        await user.sees("temperature")
        fields = [field for field in user.app.screen.focus_chain if isinstance(field, Input) and field.id][:3]
        fields[0].focus()
        await user.until(lambda: fields[0].has_focus, "not focused")
        await user.sends_at_once("1", "tab", "2", "2", "tab", "3")
        await user.until(lambda: [field.value for field in fields] == ["1", "22", "3"], "values were mixed up")


@pytest.mark.slow
async def test_keys_behind_one_whose_work_takes_long_are_kept_in_order(open_app):
    """The app is busy, as with the first visit of a screen: letters wait, and come in their order."""
    async with open_app(client_with_models()) as user:
        await user.sees("ready")
        await user.sends_at_once(*"one", "f6", "slash", *"two", "escape", "escape", *" three")
        await user.until(lambda: user.app.current_mode == "chat", "not back")
        await user.until(lambda: user.app.screen.prompt.text == "one three", "letters were lost")


@pytest.mark.parametrize("key", ["a", "end", "f6", "enter"])
async def test_keys_pressed_while_the_app_ends_go_nowhere(open_app, key):
    """A key may be on its way when the last screen is gone: with it, any further one."""
    async with open_app(ScriptedClient()) as user:
        await user.sees("ready")
        user.app.exit()
        while not user.app._closed:
            user.pilot.app.post_message(Key(key, key if len(key) == 1 else None))
            await asyncio.sleep(0)
    assert user.app.failure is None


@pytest.mark.parametrize(
    ("behind_s", "receiver", "passed"),  # how long behind the pause that ends a burst the key was read
    [(-0.2, None, []), (-0.01, None, []), (0.01, None, ["d"]), (-0.2, Input(), ["d"])],
)
async def test_a_key_of_the_burst_of_a_refused_one_is_dropped_however_late_it_is_handled(behind_s, receiver, passed):
    """The machine is busy: a key is handled long after it was read."""
    handled = []

    async def dispatch(event):
        handled.append(event.key)

    queue = KeyQueue(SimpleNamespace(focused=receiver, call_later=lambda _: None), dispatch)
    queue.drop_typed_ahead()
    event = Key("d", "d")
    event.time = queue._drops_until_s + behind_s
    await asyncio.sleep(0.25)  # longer than that pause
    await queue.add(event)
    assert handled == passed
    if queue._settling is not None:
        queue._settling.cancel()
