"""System prompt, sampling options and presets of a chat."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.chat.conversation import ChatSettings
from app.chat.presets import Presets
from app.chat.repository import SqliteChatRepository
from app.chat.sampling_options import BASIC_OPTIONS, CHAT_OPTIONS, MORE_OPTIONS
from app.chat.store.chat_store import ChatStore
from app.protocol.chat import GenerationOptions
from app.protocol.errors import RequestError
from app.protocol.sampling import model_sampling
from tests.app.client.scripted_client import READY, ScriptedClient


async def _sets(user, **texts: str) -> None:
    """Go down the form as a person does, unfold what is needed, fill the fields in, and apply them behind the last."""
    await user.asks("/options")
    await user.sees("Options of the answers")
    is_unfolded = bool(texts.keys() - {*BASIC_OPTIONS, "preset"})
    rest = [option.name for option in CHAT_OPTIONS if option.name not in BASIC_OPTIONS] if is_unfolded else []
    names = [*BASIC_OPTIONS, "more", *rest, "preset"]
    for name in names[: 1 + max(map(names.index, texts))]:
        if name == "more" and is_unfolded:
            await user.presses("enter")
        if name in texts:
            await user.pastes(texts[name])
        await user.presses("down")
    await user.presses("up", "enter")


async def _finds(user, words: str) -> None:
    """Look for an option, and go to the first that is found."""
    await user.presses("ctrl+f")
    await user.types(words)
    await user.presses("down")


@pytest.mark.slow
async def test_options_of_a_chat_are_sent_with_its_questions_and_saved_with_it(open_app, tmp_path):
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("ready")
        await _sets(user, temperature="0.5", top_k="40")
        await user.sees("temperature 0.5, top_k 40")
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.options == [GenerationOptions(temperature=0.5, top_k=40)]
    with ChatStore(tmp_path) as store:
        assert store.chats.get(1).settings.options == {"temperature": 0.5, "top_k": 40}
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("Hello.")
        await user.asks("again")
        await user.sees("again", "48 tokens a second")
    assert client.options[1] == client.options[0]


@pytest.mark.slow
async def test_an_invalid_value_is_reported_and_changes_nothing(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await _sets(user, temperature="0.5", top_p="2")
        await user.sees("top_p is 2.", "from 0 to 1")
        await user.presses("escape")
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.options == [GenerationOptions()]


@pytest.mark.slow
async def test_a_number_that_nobody_uses_is_taken_and_noted_in_the_form_and_in_the_line(open_app):
    client = ScriptedClient()
    note = "temperature 9 is unusual, 0 to 2 is common"
    async with open_app(client, (120, 40)) as user:
        await user.sees("ready")
        await user.asks("/options")
        await user.sees("Options of the answers", "0 always takes the likeliest token")
        await user.types("9")
        await user.sees(note)
        await user.presses("backspace", "1")
        await user.no_longer_sees(note)
        await user.presses("backspace", "9", "enter")
        await user.sees(f"Note: {note}. temperature 9.0")
        await user.asks("/options temperature=0.9")
        await user.sees("· temperature 0.9")
        await user.asks("/options temperature=9")
        await user.sees(f"Note: {note}. temperature 9.0")
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.options == [GenerationOptions(temperature=9.0)]


@pytest.mark.slow
async def test_an_option_is_set_in_the_line_itself(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/options temperature=0.5 top_k=40")
        await user.sees("temperature 0.5, top_k 40")
        await user.asks("/options warmth=1")
        await user.sees("warmth=1 is not an option.")
        await user.presses("ctrl+u")
        await user.asks("/options temperature=")
        await user.sees("top_k 40")
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.options == [GenerationOptions(top_k=40)]


@pytest.mark.slow
async def test_options_are_saved_as_a_preset_that_another_chat_applies(open_app, tmp_path):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/system Be brief.")
        await _sets(user, temperature="0.5", max_tokens="99", preset="short")
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
        await user.presses("ctrl+u")
        await user.asks("/preset")
        await user.sees("/preset NAME, one of:", "precise: temperature 0.2", "/options saves another.")


@pytest.mark.slow
async def test_all_fields_are_reached_in_a_small_terminal(open_app):
    async with open_app(ScriptedClient(), size=(60, 20)) as user:
        await user.sees("ready")
        await user.asks("/options")
        await user.sees("temperature", "max_tokens", "preset", "Enter applies")


@pytest.mark.slow
async def test_every_sampler_and_a_stop_string_are_typed_into_the_form_and_sent(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await _sets(user, stop="END", dry_multiplier="0.8", mirostat="2", repeat_penalty="1.1", penalty_last_n="9")
        await user.sees('repeat_penalty 1.1, stop ["END"]')
        await user.asks("hello")
        await user.sees("Hello.")
    samplers = {"repeat_penalty": 1.1, "repeat_last_n": 9, "dry_multiplier": 0.8, "mirostat": 2}
    assert client.options == [GenerationOptions(stop=("END",), samplers=samplers)]


@pytest.mark.slow
async def test_a_schema_is_pasted_with_its_line_breaks_and_shown_again(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/options")
        await user.sees("Options of the answers")
        await _finds(user, "schema")
        await user.pastes('{\n  "type": "object"\n}')
        await user.presses("enter")
        await user.sees('json_schema { "type": "object" }')
        await user.asks("/options")
        await user.sees('"type": "object"')
        await user.presses("enter")
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.schemas == [{"type": "object"}]
    assert client.options == [GenerationOptions(json_schema={"type": "object"})]


@pytest.mark.slow
async def test_a_schema_that_the_service_refuses_is_reported_in_the_form_at_once(open_app, tmp_path):
    client = ScriptedClient()
    client.schema_error = RequestError("The schema's type is 'thing'.", "Known: object, array.")
    file = tmp_path / "schema.json"
    file.write_text('{"type": "thing"}')
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/options")
        await user.sees("Options of the answers")
        await _finds(user, "schema")
        for text, reason in (
            (str(file), "The schema's type is 'thing'."),
            ("{type: 1}", "json_schema is not JSON"),
            (str(tmp_path / "none.json"), "none.json cannot be read"),
        ):
            await user.pastes(text)
            await user.presses("enter")
            await user.sees(reason)
            await user.presses("ctrl+u", "ctrl+k")
        await user.presses("escape")
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.options == [GenerationOptions()]


async def test_a_schema_of_a_file_is_set_in_the_line_itself(open_app, tmp_path):
    client = ScriptedClient()
    (tmp_path / "schema.json").write_text('{"type": "array"}')
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks(f'/options json_schema={tmp_path / "schema.json"} stop=["a b", "c"]')
        await user.sees('json_schema {"type": "array"}')
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.options == [GenerationOptions(json_schema={"type": "array"}, stop=("a b", "c"))]


async def test_a_new_chat_begins_with_the_default_preset_and_system_prompt_of_the_settings(open_app, tmp_path):
    Presets(tmp_path / "data").save("short", ChatSettings("", {"max_tokens": 9}))
    client = ScriptedClient()
    async with open_app(client, settings={"system": "Be brief.", "preset": "short"}) as user:
        await user.sees("ready")
        await user.asks("hello")
        await user.sees("Hello.")
        await user.asks("/system clear")
        await user.presses("ctrl+n")
        await user.asks("again")
        await user.until(lambda: len(client.requests) == 2, "the second question was not sent")
    assert [[message.content for message in request] for request in client.requests] == [
        ["Be brief.", "hello"],
        ["Be brief.", "again"],
    ]
    assert client.options == [GenerationOptions(max_tokens=9)] * 2


@pytest.mark.slow
async def test_a_stored_chat_keeps_its_own_settings_beside_other_defaults(open_app, tmp_path):
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("ready")
        await user.asks("hello")
        await user.sees("Hello.")
    settings = {"system": "Be brief."}
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(client, repository=repository, settings=settings) as user,
    ):
        await user.sees("ready", "Hello.")
        await user.asks("again")
        await user.until(lambda: len(client.requests) == 2, "the question was not sent")
    assert [message.content for message in client.requests[1]] == ["hello", "Hello.", "again"]


async def test_a_default_preset_that_is_missing_is_reported_and_the_system_prompt_still_counts(open_app):
    client = ScriptedClient()
    async with open_app(client, settings={"system": "Be brief.", "preset": "gone"}) as user:
        await user.sees("There is no preset gone.")
        await user.asks("hello")
        await user.sees("Hello.")
    assert [message.content for message in client.requests[0]] == ["Be brief.", "hello"]


SAMPLING = model_sampling((("model", {"temperature": 0.25}), ("catalogue", {"top_p": 0.9, "dry_multiplier": 0.5})))


@pytest.mark.slow
async def test_an_empty_field_shows_the_effective_value_and_whose_it_is(open_app):
    async with open_app(ScriptedClient(model=replace(READY, sampling=SAMPLING))) as user:
        await user.sees("ready")
        await user.asks("/options")
        await user.sees("0.25 · model", "0.9 · catalogue", "40 · localllm", "until the model ends", "random")
        await user.sees("0 always takes the likeliest token")  # what the focused field means
        await user.presses("down")
        await user.sees("share of probability that is kept")


@pytest.mark.slow
async def test_another_engine_does_not_say_what_it_samples_with(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.sees("ready")
        await user.asks("/options")
        await user.sees("the engine's default")


@pytest.mark.slow
async def test_the_usual_options_come_first_and_a_key_shows_the_others(open_app):
    async with open_app(ScriptedClient(model=replace(READY, sampling=SAMPLING)), size=(100, 60)) as user:
        await user.sees("ready")
        await user.asks("/options")
        await user.sees(*BASIC_OPTIONS, f"▸ {len(CHAT_OPTIONS) - len(BASIC_OPTIONS)} more options", "preset")
        await user.no_longer_sees("dry_multiplier")
        await user.presses(*["down"] * len(BASIC_OPTIONS), "enter")
        await user.sees("▾ less", "Against repetition", "0.5 · catalogue", "Enter shows or hides them.")
        await user.presses("enter")
        await user.no_longer_sees("dry_multiplier")


@pytest.mark.slow
async def test_a_changed_option_is_shown_and_bright_though_the_others_are_folded(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/options mirostat=2 temperature=0.5")
        await user.asks("/options")
        await user.sees("mirostat", "more options")
        changed = {row.option for row in user.app.screen.query(".-changed")}
        assert changed == {"mirostat", "temperature"}
        await user.presses("ctrl+u")
        await user.until(lambda: len(user.app.screen.query(".-changed")) == 1, "an emptied field is not changed")


@pytest.mark.slow
async def test_an_option_is_found_by_its_name_or_its_meaning_though_it_is_folded(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/options")
        await user.presses("ctrl+f")
        await user.types("repeated seq")
        await user.sees("dry_multiplier")
        await user.no_longer_sees("top_k")
        await user.presses("down")
        await user.types("0.8")
        await user.presses("enter")
        await user.sees("dry_multiplier 0.8")
        await user.asks("hello")
        await user.sees("Hello.")
    assert client.options == [GenerationOptions(samplers={"dry_multiplier": 0.8})]


async def test_the_line_of_options_says_what_an_answer_is_sampled_with(open_app):
    async with open_app(ScriptedClient(model=replace(READY, sampling=SAMPLING)), size=(140, 40)) as user:
        await user.sees("ready")
        await user.asks("/options top_k=7")
        await user.sees("top_k 7; by default temperature 0.25 (model), top_p 0.9 (catalogue), min_p 0.05 (localllm)")


def test_every_option_is_in_one_group_of_the_form():
    grouped = [*BASIC_OPTIONS, *(name for names in MORE_OPTIONS.values() for name in names)]
    assert sorted(grouped) == sorted(option.name for option in CHAT_OPTIONS)
    assert len(BASIC_OPTIONS) == 8
