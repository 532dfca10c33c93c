"""Calls of tools by a real, small model, in each API that can demand one, and after a result."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.running import RunningService
from tests.real.dialects import WITH_TOOLS, Asked, ask

TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tell the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
QUESTION = "What is the weather in Rome in celsius?"


@pytest.mark.parametrize("dialect", WITH_TOOLS)
def test_a_demanded_call_has_the_tools_name_and_arguments_of_its_schema(smollm: RunningService, dialect: str) -> None:
    answer = ask(smollm.http, dialect, Asked(QUESTION, tool=TOOL, max_tokens=200))
    for name, arguments in answer.calls:
        assert name == "get_weather"
        assert set(arguments) == {"city", "unit"}
        assert arguments["unit"] in {"celsius", "fahrenheit"}
    assert answer.calls[0][1]["city"] == "Rome"


@pytest.mark.parametrize("dialect", WITH_TOOLS)
def test_no_two_calls_are_equal(smollm: RunningService, dialect: str) -> None:
    calls = ask(smollm.http, dialect, Asked(QUESTION, tool=TOOL, max_tokens=200)).calls
    assert len({repr(call) for call in calls}) == len(calls)


@pytest.mark.parametrize("dialect", WITH_TOOLS)
def test_a_call_that_is_cut_leaves_no_text(smollm: RunningService, dialect: str) -> None:
    answer = ask(smollm.http, dialect, Asked(QUESTION, tool=TOOL, max_tokens=12))
    assert (answer.text, answer.calls) == ("", ())


@pytest.mark.parametrize("dialect", ["openai", "responses", "lmstudio v0"])
def test_without_parallel_calls_there_is_one(smollm: RunningService, dialect: str) -> None:
    asked = Asked(QUESTION, tool=TOOL, max_tokens=200)
    assert len(ask(smollm.http, dialect, asked, parallel_tool_calls=False).calls) == 1


def test_a_call_that_may_be_made_is_a_call_or_a_text(smollm: RunningService) -> None:
    body = {"tools": [{"type": "function", "function": TOOL}], "max_tokens": 60, "temperature": 1.0}
    for seed in range(4):
        messages = [{"role": "user", "content": QUESTION}]
        answer = smollm.http.post("/v1/chat/completions", json=body | {"messages": messages, "seed": seed}).json()
        message = answer["choices"][0]["message"]
        assert message["content"] or message["tool_calls"]
        assert "tool_call>" not in (message["content"] or "")


def test_an_answer_after_a_result_reads_the_result(smollm: RunningService) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Rome", "unit": "celsius"}'}
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": "It is 31 degrees and windy in Rome."},
    ]
    body = {"messages": messages, "max_tokens": 40, "temperature": 0}
    answer = smollm.http.post("/v1/chat/completions", json=body).json()
    # Rounding decides which of the two it repeats: it differs with the threads and with what of the prompt was cached.
    assert any(word in answer["choices"][0]["message"]["content"] for word in ("31", "windy"))
