"""Keys and words of the chat screen that a person brings along from other programs."""

from __future__ import annotations

import pytest

from app.client.fake import ScriptedClient
from tests.tui.model_scenes import client_with_models


@pytest.mark.parametrize("size", [(80, 24), (60, 18)])
async def test_the_start_screen_says_how_to_leave(open_app, size):
    async with open_app(ScriptedClient(), size=size) as user:
        await user.sees("Ctrl+Q", "quit")


@pytest.mark.parametrize("word", ["/bye", "/exit", "/quit"])
async def test_the_words_of_other_programs_leave_the_app(open_app, word):
    async with open_app(ScriptedClient()) as user:
        await user.asks(word)
        await user.leaves()


async def test_slash_clear_starts_a_new_chat(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.asks("first")
        await user.sees("Hello.", "ready")
        await user.asks("/clear")
        await user.no_longer_sees("Hello.")


@pytest.mark.parametrize("line", ["?", "/?"])
async def test_a_question_mark_alone_shows_the_help(open_app, line):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.asks(line)
        await user.sees("Keys and commands", "Esc closes")
    assert client.requests == []


async def test_a_misspelled_command_is_answered_with_the_likely_one(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.asks("/qiut")
        await user.sees("Unknown command /qiut.", "/quit?")


async def test_slash_model_changes_the_model_by_a_part_of_its_name(open_app):
    client = client_with_models()
    async with open_app(client) as user:
        await user.sees("guide · ready")
        await user.asks("/model qwen3")
        await user.until(lambda: client.loads[-1:] == ["/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf"], "not loaded")
        await user.asks("/model nosuch")
        await user.sees("There is no local model nosuch.")


async def test_slash_model_alone_lists_the_models_though_another_command_begins_like_it(open_app):
    async with open_app(client_with_models()) as user:
        await user.types("/model")
        await user.presses("enter")
        await user.sees("qwen3-0.6b-Q8_0", "Enter starts a chat.")
