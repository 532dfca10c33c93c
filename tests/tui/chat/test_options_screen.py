"""How a chat is answered, set by a person."""

from __future__ import annotations

from app.chat.presets import Presets
from app.chat.store import ChatStore
from app.client import GenerationOptions
from app.client.fake import ScriptedClient
from tui.chat.repository import SqliteChatRepository


async def _sets(person, *lines: str) -> None:
    """Fill the fields from the first on, and take them."""
    await person.asks("/options")
    await person.sees("How this chat is answered")
    for line in lines:
        await person.types(line)
        await person.presses("down")
    await person.presses("enter")


async def test_options_of_a_chat_go_with_its_questions_and_are_kept_with_it(sitting, tmp_path):
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.sees("ready")
        await _sets(person, "0.5", "", "", "40")
        await person.sees("temperature 0.5, top_k 40")
        await person.asks("hello")
        await person.sees("Hello.")
    assert client.options == [GenerationOptions(temperature=0.5, top_k=40)]
    with ChatStore(tmp_path) as store:
        assert store.chats.get(1).settings.options == {"temperature": 0.5, "top_k": 40}
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.sees("Hello.")
        await person.asks("again")
        await person.sees("again", "48.0 tok/s")
    assert client.options[1] == client.options[0]


async def test_a_value_that_will_not_do_is_told_of_and_changes_nothing(sitting):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.sees("ready")
        await _sets(person, "0.5", "2")
        await person.sees("top_p is 2.", "from 0 to 1")
        await person.presses("escape")
        await person.asks("hello")
        await person.sees("Hello.")
    assert client.options == [GenerationOptions()]


async def test_an_option_is_set_in_the_line_itself(sitting):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.sees("ready")
        await person.asks("/options temperature=0.5 top_k=40")
        await person.sees("temperature 0.5, top_k 40")
        await person.asks("/options warmth=1")
        await person.sees("warmth=1 sets no option.")
        await person.asks("/options temperature=")
        await person.sees("top_k 40")
        await person.asks("hello")
        await person.sees("Hello.")
    assert client.options == [GenerationOptions(top_k=40)]


async def test_options_are_kept_as_a_preset_and_another_chat_answers_as_it_says(sitting, tmp_path):
    client = ScriptedClient()
    async with sitting(client) as person:
        await person.sees("ready")
        await person.asks("/system Be brief.")
        await _sets(person, "0.5", "", "", "", "", "99", "short")
        await person.sees("max_tokens 99; system prompt: Be brief.")
        await person.presses("ctrl+n")
        await person.no_longer_sees("Be brief.")
        await person.asks("/preset")
        await person.sees("short: temperature 0.5, max_tokens 99")
        await person.asks("/preset short")
        await person.asks("hello")
        await person.sees("Hello.")
    assert client.options == [GenerationOptions(temperature=0.5, max_tokens=99)]
    assert [message.content for message in client.requests[0]] == ["Be brief.", "hello"]
    assert list(Presets(tmp_path / "data").all()) == ["short"]


async def test_a_preset_that_is_not_there_is_told_of(sitting):
    async with sitting(ScriptedClient()) as person:
        await person.sees("ready")
        await person.asks("/preset nowhere")
        await person.sees("There is no preset nowhere.")
        await person.asks("/preset")
        await person.sees("There are no presets yet")


async def test_all_fields_are_reached_in_a_small_terminal(sitting):
    async with sitting(ScriptedClient(), size=(60, 20)) as person:
        await person.sees("ready")
        await person.asks("/options")
        await person.sees("temperature", "max_tokens", "preset", "Enter takes all")
