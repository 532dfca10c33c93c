"""Answers with their models and figures, and two of them side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.protocol.chat import ToolCall
from quantizer.system.errors import EngineError
from tests.app.chat.tool_chats import backend_of, calling
from tests.app.client.scripted_client import COMPLETED, ScriptedReply
from tests.tui.chat.test_chat_model import ManyModels
from tests.tui.model_scenes import client_with_models

FIRST = ScriptedReply(deltas=("The guide's answer.",))
FAST = replace(COMPLETED, decode_tokens_per_s=99.0)
SECOND = ScriptedReply(deltas=("Another answer.",), ending=FAST)
QWEN = "qwen3-0.6b-Q8_0"
READ = ToolCall("r", "read", "{}")


def _client(*replies: ScriptedReply) -> ManyModels:
    client = ManyModels(*replies)
    client.library.here = client_with_models().library.here
    return client


def _row(user, text: str) -> int:
    return next(number for number, row in enumerate(user.screen_text.splitlines()) if text in row)


async def test_an_answer_names_its_model_and_shows_its_figures_on_request(open_app):
    async with open_app(_client(FIRST)) as user:
        await user.asks("hello")
        await user.sees("The guide's answer.", "guide  ● ready")
        line = user.screen_text.splitlines()[_row(user, "The guide's answer.") + 2]
        assert line.strip() == "guide · 48 tokens a second · first word after 0.2 s · 12 tokens"
        await user.asks("/figures")
        await user.sees("guide · 48 tokens a second · first word after 0.2 s · 12 tokens · 40 read")
        await user.asks("/figures")
        await user.no_longer_sees("40 read")


async def test_a_stopped_answer_names_its_model(open_app):
    async with open_app(_client(ScriptedReply(deltas=("Half",), pause_after=1))) as user:
        await user.asks("hello")
        await user.sees("Half")
        await user.presses("escape")
        await user.sees("guide · stopped")


@pytest.mark.slow
@pytest.mark.parametrize(("size", "is_beside"), [((120, 40), True), ((80, 24), False)])
async def test_two_models_answer_one_question_side_by_side_or_one_below_the_other(open_app, tmp_path, size, is_beside):
    client = _client(FIRST, SECOND)
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(client, size=size, repository=repository) as user,
    ):
        await user.asks("hello")
        await user.sees("The guide's answer.", "guide  ● ready")
        await user.asks("/compare QWEN")
        await user.sees(
            "The guide's answer.", "Another answer.", "guide · 48 tokens a second", f"{QWEN} · 99 tokens a second"
        )
        assert (_row(user, "The guide's answer.") == _row(user, "Another answer.")) is is_beside
        await user.sees("2/2")
        await user.asks("/compare")
        await user.no_longer_sees("The guide's answer.")
        await user.asks("/compare")
        await user.sees("The guide's answer.", "Another answer.")
    assert client.asked == ["guide", QWEN]
    assert client.requests[0] == client.requests[1]
    with ChatStore(tmp_path) as store:
        chat = store.chats.latest()
        question, first, second = store.messages.of(chat.id)
    assert chat.model == "guide"
    assert first.parent_id == second.parent_id == question.id
    assert [first.model, second.model] == ["guide", QWEN]


@pytest.mark.slow
async def test_the_next_question_goes_to_the_model_of_the_chat(open_app):
    client = _client(FIRST, SECOND, FIRST)
    async with open_app(client) as user:
        await user.asks("hello")
        await user.sees("guide  ● ready")
        await user.asks("/compare qwen")
        await user.sees("Another answer.")
        await user.asks("on")
        await user.until(lambda: len(client.asked) == 3, "nothing was asked")
    assert client.asked == ["guide", QWEN, "guide"]


@pytest.mark.slow
async def test_a_comparison_that_fails_shows_the_error_beside_the_first_answer(open_app):
    client = _client(FIRST, ScriptedReply(deltas=("Half",), ending=EngineError("It died.")))
    async with open_app(client, size=(80, 34)) as user:
        await user.asks("hello")
        await user.sees("guide  ● ready")
        await user.asks("/compare qwen")
        await user.sees("The guide's answer.", "It died.", "incomplete", "guide  ● ready")


@pytest.mark.slow
async def test_after_a_comparison_that_failed_or_was_stopped_the_chat_goes_on_with_the_answer_before(
    open_app, tmp_path
):
    died = EngineError("It died.", "Ask again.")
    client = _client(
        FIRST,
        ScriptedReply(ending=died),
        ScriptedReply(deltas=("Half",), ending=died),
        ScriptedReply(deltas=("Quarter",), pause_after=1),
        SECOND,
    )
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(client, size=(120, 40), repository=repository) as user,
    ):
        await user.asks("hello")
        await user.sees("The guide's answer.", "guide  ● ready")
        await user.asks("/compare qwen")
        await user.sees(f"{QWEN} gave no answer. It died. Ask again.", "The guide's answer.", "guide  ● ready")
        assert "2/2 ›" not in user.screen_text
        await user.asks("/compare qwen")
        await user.sees("Half", "incomplete", "‹ 1/2 ›", "guide  ● ready")
        await user.asks("/compare qwen")
        await user.sees("Quarter")
        await user.presses("escape")
        await user.sees("‹ 1/3 ›", "stopped", "guide  ● ready")
        await user.asks("and now?")
        await user.sees("Another answer.")
    assert [message.content for message in client.requests[-1]] == ["hello", "The guide's answer.", "and now?"]
    with ChatStore(tmp_path) as store:
        messages = store.messages.of(store.chats.latest().id)
    assert [message.content for message in messages if message.role == "assistant"] == [
        "The guide's answer.",
        "Half",
        "Quarter",
        "Another answer.",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "answer"), [("1", "The guide's answer."), ("2", "Another answer.")])
async def test_the_names_stand_on_top_and_a_key_goes_on_with_one_of_the_answers(open_app, tmp_path, key, answer):
    client = _client(FIRST, SECOND, ScriptedReply(deltas=("Third.",)))
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(client, size=(120, 40), repository=repository, settings={"sidebar": "off"}) as user,
    ):
        await user.asks("hello")
        await user.sees("The guide's answer.", "guide  ● ready")
        await user.asks("/compare QWEN")
        await user.sees("1  guide", f"2  {QWEN}  ▶ the chat goes on here", "2 continue with this one", "guide  ● ready")
        assert _row(user, "1  guide") == _row(user, f"2  {QWEN}") < _row(user, "Another answer.")
        await user.presses("ctrl+up", key)
        await user.no_longer_sees("continue with this one")
        await user.sees("The chat goes on with this answer.", answer, "enter send")
        await user.asks("and now?")
        await user.sees("Third.")
    assert [message.content for message in client.requests[-1]] == ["hello", answer, "and now?"]


@pytest.mark.slow
async def test_a_click_goes_on_with_an_answer(open_app):
    client = _client(FIRST, SECOND)
    async with open_app(client, size=(120, 40)) as user:
        await user.asks("hello")
        await user.sees("The guide's answer.", "guide  ● ready")
        await user.asks("/compare QWEN")
        await user.sees("1 continue with this one", "guide  ● ready")
        row = _row(user, "1 continue with this one")
        column = user.screen_text.splitlines()[row].index("1 continue")
        await user.pilot.click(offset=(column + 4, row))
        await user.no_longer_sees("Another answer.")
        await user.sees("The guide's answer.")


async def test_comparing_says_what_it_needs(open_app):
    client = _client(FIRST)
    async with open_app(client) as user:
        await user.asks("/compare qwen")
        await user.sees("There is no answer to compare.")
        await user.presses("ctrl+u")
        await user.asks("hello")
        await user.sees("guide  ● ready", "The guide's answer.")
        await user.asks("/compare")
        await user.sees("There is one answer only")
        await user.asks("/compare nosuch")
        await user.sees("no local model")
    assert len(client.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("word", ["model", "compare"])
async def test_a_model_to_chat_or_compare_with_is_completed_with_its_size_and_sent_by_one_enter(open_app, word):
    client = _client(FIRST, SECOND)
    async with open_app(client) as user:
        await user.asks("hello")
        await user.sees("guide  ● ready")
        await user.types(f"/{word} ")
        await user.sees("qwen3-0.6b-Q8_0       639 MB Q8_0", "llama-3.3-70b")
        await user.types("0.6")
        await user.no_longer_sees("llama-3.3-70b")
        await user.presses("enter")
        await user.sees(*(["Another answer."] if word == "compare" else [f"{QWEN}  ● ready"]))


@pytest.mark.slow
async def test_answers_that_call_tools_are_compared_by_what_they_say_in_the_end(open_app):
    client = _client(calling(READ), FIRST, calling(READ), SECOND)
    async with open_app(client, size=(120, 40), tools=backend_of()) as user:
        await user.asks("/tools on fake")
        await user.sees("tools on")
        await user.asks("hello")
        await user.sees("The guide's answer.", "guide  ● ready")
        await user.asks("/compare QWEN")
        await user.sees(
            "The guide's answer.", "Another answer.", "guide · 48 tokens a second", f"{QWEN} · 99 tokens a second"
        )
        assert _row(user, "The guide's answer.") == _row(user, "Another answer.")
        assert _row(user, "✓") < _row(user, "Another answer.")
        assert "wrote nothing" not in user.screen_text
        await user.asks("/compare")
        await user.no_longer_sees("The guide's answer.")
        await user.asks("/compare")
        await user.sees("The guide's answer.", "Another answer.")
    assert client.asked == ["guide", "guide", QWEN, QWEN]
