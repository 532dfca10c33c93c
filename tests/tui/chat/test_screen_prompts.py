"""Prompt templates and the prompt library on the chat screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.chat.conversation import ChatSettings, MessageContent
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.protocol.errors import NoTemplateError
from app.tools.approval import ToolSettings
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply

BASE_MODEL = ScriptedReply(ending=NoTemplateError("base has no chat template.", "Use /v1/completions with it."))


def _library(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "prompts"
    folder.mkdir(parents=True)
    (folder / "summary.md").write_text("Summarize {{text}} in {{n}} lines.\n")
    (folder / "code review.txt").write_text("Review this\x1b[31m code.")
    return folder


@pytest.mark.slow
async def test_a_base_model_says_how_to_talk_with_it_and_then_continues_the_text(open_app, tmp_path):
    client = ScriptedClient(BASE_MODEL, ScriptedReply(deltas=(" a time.",)))
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("ready")
        await user.asks("Once upon")
        await user.sees("base has no chat template.", "/template completion")
        assert "/v1/completions" not in user.screen_text
        await user.asks("/template completion")
        await user.sees("Template: completion", "a time.")
        await user.asks("The dragon")
        await user.until(lambda: len(client.prompts) == 2, "the second text was not sent")
    assert client.prompts == ["Once upon", "Once upon a time.\nThe dragon"]
    assert [options.max_tokens for options in client.options] == [None, 256, 256]
    with ChatStore(tmp_path) as store:
        assert store.chats.get(1).settings.options == {"template": "completion"}


async def test_a_template_says_that_tools_are_not_offered_with_it(open_app, tmp_path):
    with ChatStore(tmp_path) as store:
        chat = store.chats.create(title="tools", settings=ChatSettings(tools=ToolSettings(("files",))))
        store.messages.add(chat.id, None, MessageContent(role="user", content="Hi"))
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("ready")
        await user.asks("/template completion")
        await user.sees("offered none")


@pytest.mark.slow
async def test_a_template_is_chosen_from_a_list_and_formats_the_chat(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/template")
        await user.sees(
            "completion: the model continues your text", "chatml", "llama3", "gemma", "model: the model's own"
        )
        await user.presses("down", "enter")
        await user.sees("Template: chatml")
        await user.asks("hello")
        await user.sees("Hello.")
        await user.asks("/template model")
        await user.sees("The model's own template.")
        await user.asks("again")
        await user.until(lambda: len(client.requests) == 1, "no chat without a template")
    assert client.prompts == ["<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"]
    assert client.options[0].stop == ("<|im_end|>", "<|im_start|>")
    assert client.options[1].stop is None


async def test_an_unknown_template_is_refused_with_those_there_are(open_app):
    async with open_app(ScriptedClient(), size=(120, 40)) as user:
        await user.sees("ready")
        await user.asks("/template none")
        await user.sees("template is none.", "completion,", "alpaca")


async def test_a_prompt_of_the_library_is_put_into_the_composer_with_its_first_placeholder_selected(open_app, tmp_path):
    _library(tmp_path)
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/prompt summary")
        await user.sees("Summarize {{text}} in {{n}} lines.")
        assert client.requests == []
        await user.types("it")
        await user.sees("Summarize it in {{n}} lines.")


@pytest.mark.slow
async def test_a_prompt_with_an_unfilled_placeholder_is_sent_only_by_a_second_enter(open_app, tmp_path):
    _library(tmp_path)
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/prompt summary")
        await user.sees("Summarize {{text}} in {{n}} lines.")
        await user.types("it")
        await user.presses("enter")
        await user.sees("{{n}} is not filled in. Enter again sends it so.")
        assert client.requests == []
        await user.types("3")  # it is selected
        await user.sees("Summarize it in 3 lines.")
        await user.presses("enter")
        await user.sees("Hello.")
        await user.asks("/prompt summary")
        await user.sees("Summarize {{text}} in {{n}} lines.")
        await user.presses("enter")
        await user.sees("{{text}} is not filled in.")
        await user.presses("enter")
        await user.until(lambda: len(client.requests) == 2, "the second Enter did not send")
        await user.asks("What does {{n}} or {{ user.name }} mean in Jinja?")  # n was the library's
        await user.sees("{{n}} is not filled in.")
        await user.presses("enter")
        await user.until(lambda: len(client.requests) == 3, "the second Enter did not send")
        await user.asks("What does {{ user.name }} mean in Jinja?")
        await user.until(lambda: len(client.requests) == 4, "braces of the person's own were held back")
    assert client.requests[0][-1].content == "Summarize it in 3 lines."
    assert client.requests[1][-1].content == "Summarize {{text}} in {{n}} lines."


@pytest.mark.slow
async def test_a_preset_whose_system_prompt_has_placeholders_asks_for_them(open_app, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "presets.toml").write_text('[tutor]\nsystem = "Teach {{subject}} to {{whom}}."\n')
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.sees("ready")
        await user.asks("/preset tutor")
        await user.sees("/system Teach {{subject}} to {{whom}}.")
        await user.types("Latin")
        await user.presses("tab")
        await user.types("me")
        await user.presses("enter")
        await user.sees("System prompt: Teach Latin to me.")
        await user.asks("Go on")
        await user.sees("Hello.")
    assert client.requests[0][0].content == "Teach Latin to me."


@pytest.mark.slow
async def test_prompts_are_listed_and_their_names_completed(open_app, tmp_path):
    _library(tmp_path)
    async with open_app(ScriptedClient()) as user:
        await user.sees("ready")
        await user.asks("/prompt")
        await user.sees("/prompt NAME, one of:", "code review", "summary")
        await user.presses("ctrl+n")
        await user.types("/prompt ")
        await user.sees("summary")
        await user.presses("enter")
        await user.sees("/prompt NAME, one of:")
        await user.types("/prompt co")
        await user.presses("tab")
        await user.sees("/prompt code review")
        await user.presses("enter")
        await user.sees("Review this[31m code.")
        await user.presses("ctrl+u")
        await user.asks("/prompt nowhere")
        await user.sees("There is no prompt nowhere.")


@pytest.mark.slow
async def test_prompts_and_presets_that_ship_are_listed_behind_the_persons_own(open_app, tmp_path):
    _library(tmp_path)
    async with open_app(ScriptedClient(), size=(200, 44)) as user:
        await user.sees("ready")
        await user.asks("/prompt")
        await user.sees("summary", "translate (ships with localllm)", str(tmp_path / "data" / "prompts"))
        await user.asks("/preset")
        await user.sees("precise: temperature 0.2 (ships with localllm)", "/options saves another.")
        await user.asks("/preset precise")
        await user.sees("precise: temperature 0.2")


@pytest.mark.slow
async def test_tab_goes_from_one_variable_of_a_prompt_to_the_next(open_app):
    async with open_app(ScriptedClient(), size=(120, 30)) as user:
        await user.sees("ready")
        await user.asks("/prompt translate")
        await user.sees("into {{language}}.")
        await user.types("Latin")
        await user.presses("tab")
        await user.types("Hello")
        await user.sees("into Latin.", "Hello")
        assert "{{" not in user.screen_text
