from __future__ import annotations

from typing import Any

import pytest

from app.service.generation.earlier_turns import REASONING, messages_for

TURN: dict[str, Any] = {"role": "assistant", "content": "Yes.", REASONING: "Hm."}
PLAIN: dict[str, Any] = {"role": "assistant", "content": "Yes."}
HARMONY = "<|channel|>analysis<|message|>"


def call(name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": {}}}


def result(call_id: str | None, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, **({"tool_call_id": call_id} if call_id else {})}


def test_a_template_that_prints_the_first_call_only_gets_one_in_each_message() -> None:
    template = (
        "{% if not message.tool_calls|length == 1 %}{{ raise_exception() }}{% endif %}{{ message.tool_calls[0] }}"
    )
    turns = [
        {**PLAIN, "tool_calls": [call("a"), call("b")]},
        result("b", "2"),
        result("a", "1"),
        {**PLAIN, "tool_calls": [call("c")]},
        result("c", "3"),
    ]
    assert messages_for(template, turns) == [
        {**PLAIN, "tool_calls": [call("a")]},
        result("a", "1"),
        {"role": "assistant", "content": None, "tool_calls": [call("b")]},
        result("b", "2"),
        *turns[3:],
    ], "Llama 3.1 to 3.3 refuse two"
    assert messages_for("{% for c in message.tool_calls %}{% endfor %}{{ message.tool_calls[0] }}", turns) == turns


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% if message.reasoning_content is string %}", {**PLAIN, "reasoning_content": "Hm."}),  # Qwen3, GLM 4.5
        ("{{ message.get('reasoning') or message.get('reasoning_content') }}", {**PLAIN, "reasoning_content": "Hm."}),
        ("{% if message.thinking is defined %}", {**PLAIN, "thinking": "Hm."}),  # LFM2.5
        ("{{ message.reasoning }}", {**PLAIN, "reasoning": "Hm."}),  # Solar Open
        ("{{ message.content.split('</think>') }}", PLAIN),  # QwQ
        (
            "{% if block['type'] == 'thinking' %}",  # Ministral 3
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}],
            },
        ),
    ],
)
def test_reasoning_has_the_name_that_the_template_reads(template: str, message: dict[str, Any]) -> None:
    assert messages_for(template, [TURN]) == [message]
    assert messages_for(template, [PLAIN]) == [PLAIN]


def test_results_without_ids_follow_their_calls_in_order() -> None:
    """Ollama's clients name tools and give no ids."""
    calls = {"role": "assistant", "content": None, REASONING: "Hm.", "tool_calls": [call("one"), call("two")]}
    ordered = messages_for(HARMONY, [calls, result(None, "1"), result(None, "2"), result(None, "3")])
    assert [message.get("content") or message["tool_calls"][0]["id"] for message in ordered] == [
        "one",
        "1",
        "two",
        "2",
        "3",
    ]
    assert [message.get("thinking") for message in ordered] == ["Hm.", None, None, None, None]


def test_messages_are_not_changed_in_place() -> None:
    messages = [{"role": "system", "content": "a"}, {"role": "assistant", "content": "x", "tool_calls": [call("one")]}]
    before = [dict(message) for message in messages]
    messages_for(HARMONY, messages)
    assert messages == before
