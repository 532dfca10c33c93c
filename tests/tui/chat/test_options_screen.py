"""System prompt, sampling options and presets of a chat."""

from __future__ import annotations

from app.chat.presets import Presets
from app.chat.store import ChatStore
from app.client.fake import ScriptedClient
from app.protocol.chat import GenerationOptions
from tui.chat.repository import SqliteChatRepository


async def _sets(user, *lines: str) -> None:
    """Fill the fields from the first on, and take them."""
    await user.asks("/options")
    await user.sees("Sampling options")
    for line in lines:
        await user.types(line)
        await user.presses("down")
    await user.presses("enter")


async def test_options_of_a_chat_are_sent_with_its_questions_and_saved_with_it(open_app, tmp_path):
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("ready")
        await _sets(user, "0.5", "", "", "40")
        await user.sees("temperature 0.5, top_k 40")
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.options == [GenerationOptions(temperature=0.5, top_k=40)]
    with ChatStore(tmp_path) as store:
        assert store.chats.get(1).settings.options == {"temperature": 0.5, "top_k": 40}
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("Hello.")
        await user.asks("again")
        await user.sees("again", "48.0 tok/s")
    assert client.options[1] == client.options[0]


async def test_an_invalid_value_is_reported_and_changes_nothing(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await _sets(user, "0.5", "2")
        await user.sees("top_p is 2.", "from 0 to 1")
        await user.presses("escape")
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.options == [GenerationOptions()]


async def test_an_option_is_set_in_the_line_itself(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/options temperature=0.5 top_k=40")
        await user.sees("temperature 0.5, top_k 40")
        await user.asks("/options warmth=1")
        await user.sees("warmth=1 is not an option.")
        await user.asks("/options temperature=")
        await user.sees("top_k 40")
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.options == [GenerationOptions(top_k=40)]


async def test_options_are_saved_as_a_preset_that_another_chat_applies(open_app, tmp_path):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/system Be brief.")
        await _sets(user, "0.5", "", "", "", "", "99", "short")
        await user.sees("max_tokens 99; system prompt: Be brief.")
        await user.presses("ctrl+n")
        await user.no_longer_sees("Be brief.")
        await user.asks("/preset")
        await user.sees("short: temperature 0.5, max_tokens 99")
        await user.asks("/preset short")
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.options == [GenerationOptions(temperature=0.5, max_tokens=99)]
    assert [message.content for message in client.requests[0]] == ["Be brief.", "hello"]
    assert list(Presets(tmp_path / "data").all()) == ["short"]


async def test_a_missing_preset_is_reported(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.sees("ready")
        await user.asks("/preset nowhere")
        await user.sees("There is no preset nowhere.")
        await user.asks("/preset")
        await user.sees("No presets yet")


async def test_all_fields_are_reached_in_a_small_terminal(open_app):
    async with open_app(ScriptedClient(), size=(60, 20)) as user:
        await user.sees("ready")
        await user.asks("/options")
        await user.sees("temperature", "max_tokens", "preset", "Enter applies")
