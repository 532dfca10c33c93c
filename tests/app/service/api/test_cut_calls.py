from __future__ import annotations

from typing import Any

import pytest

from app.service.api.cut_calls import take_back_cut_calls
from app.service.api.ollama.requests import OllamaChatBody
from app.service.api.responses.requests import ResponsesBody

CUT = '{"city": "Å'
TEXT = f"Incomplete call of get_weather: {CUT}"


def call(call_id: str, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def asking(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


QUESTION = {"role": "user", "content": "Weather?"}


def test_messages_without_a_cut_call_are_untouched() -> None:
    messages = [QUESTION, asking(call("a", {"city": "Åre"})), result("a", "snow"), QUESTION, QUESTION]
    assert take_back_cut_calls(messages) is messages


def test_the_result_of_a_cut_call_is_the_users_and_comes_after_those_of_whole_ones() -> None:
    messages = [
        QUESTION,
        asking(call("a", CUT), call("b", {"city": "Åre"})),
        result("a", "not JSON"),
        result("b", "snow"),
        {"role": "user", "content": "Well?"},
    ]
    assert take_back_cut_calls(messages) == [
        QUESTION,
        {"role": "assistant", "content": TEXT, "tool_calls": [call("b", {"city": "Åre"})]},
        result("b", "snow"),
        {"role": "user", "content": "Result of the call of get_weather: not JSON\n\nWell?"},
    ]


def test_the_last_result_may_be_that_of_a_cut_call() -> None:
    mended = take_back_cut_calls([QUESTION, asking(call("a", CUT)), result("a", "not JSON")])
    assert [message["role"] for message in mended] == ["user", "assistant", "user"]
    assert "tool_calls" not in mended[1]


@pytest.mark.parametrize("output", ["not JSON", [{"type": "input_text", "text": "not JSON"}]])
def test_codex_sends_a_call_that_was_cut_and_what_it_says_to_that(output: Any) -> None:
    """Codex 0.98 answers arguments that it cannot parse with a function_call_output."""
    body = {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "function_call", "name": "get_weather", "arguments": CUT, "call_id": "a"},
            {"type": "function_call_output", "call_id": "a", "output": output},
        ]
    }
    assert ResponsesBody.model_validate(body).turn().messages == [
        QUESTION,
        {"role": "assistant", "content": TEXT},
        {"role": "user", "content": "Result of the call of get_weather: not JSON"},
    ]


def test_arguments_as_text_are_taken_by_ollamas_dialect_too() -> None:
    body = {
        "messages": [QUESTION, asking(call("", CUT)), {"role": "tool", "tool_name": "get_weather", "content": "no"}]
    }
    mended = OllamaChatBody.model_validate(body).turn().messages
    assert [message["role"] for message in mended] == ["user", "assistant", "user"]
