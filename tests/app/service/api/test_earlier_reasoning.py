"""The reasoning of earlier answers, as the clients of each dialect send it back, in what a template is given."""

from __future__ import annotations

from typing import Any

import pytest

from app.service.api.anthropic.requests import MessagesBody
from app.service.api.ollama.requests import OllamaChatBody
from app.service.api.openai.requests import ChatCompletionBody
from app.service.api.responses.requests import ResponsesBody
from app.service.generation.message_order import TAKES_ALL, in_order
from tests.app.service.template_messages import message_of, messages_of

ASKED = {"role": "user", "content": "hi"}
FUNCTION = {"name": "now", "arguments": "{}"}
CALL = {"id": "abc", "type": "function", "function": {"name": "now", "arguments": {}}}
RESULT = {"role": "tool", "tool_call_id": "abc", "content": "noon"}
EXPECTED = [
    ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "I look."},
    RESULT,
    {"role": "assistant", "content": "It is noon.", "reasoning_content": "So."},
    ASKED,
]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_chat_completions_take_it_from_the_ai_sdk_and_from_openrouter(name: str) -> None:
    """@ai-sdk/openai-compatible and qwen-code send the former, OpenRouter's and vLLM's clients the latter."""
    calls = [{"id": "abc", "type": "function", "function": FUNCTION}]
    messages = [
        ASKED,
        {"role": "assistant", "content": None, name: "I look.", "tool_calls": calls},
        RESULT,
        {"role": "assistant", "content": "It is noon.", name: "So."},
        ASKED,
    ]
    assert ChatCompletionBody.model_validate({"messages": messages}).turn().messages == messages_of(EXPECTED)


def test_chat_completions_take_mistral_s_parts() -> None:
    """mistralai 1.9 (ThinkChunk)."""
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "So."}]},
        {"type": "text", "text": "It is noon."},
    ]
    body = {"messages": [ASKED, {"role": "assistant", "content": parts}, ASKED]}
    assert ChatCompletionBody.model_validate(body).turn().messages[1] == message_of(EXPECTED[3])


def test_ollama_s_chat_takes_it_from_its_python_client() -> None:
    """ollama 0.6 appends the whole message of a response, whose calls have no ids."""
    messages = [
        ASKED,
        {"role": "assistant", "content": "", "thinking": "I look.", "tool_calls": [{"function": CALL["function"]}]},
        {"role": "tool", "tool_name": "now", "content": "noon"},
        {"role": "assistant", "content": "It is noon.", "thinking": "So."},
        ASKED,
    ]
    made = OllamaChatBody.model_validate({"messages": messages}).turn().messages
    assert [message.reasoning for message in made] == ["", "I look.", "", "So.", ""]


def test_messages_take_it_from_claude_code() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "I look.", "signature": ""},
        {"type": "tool_use", "id": "toolu_abc", "name": "now", "input": {}},
    ]
    messages = [
        ASKED,
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_abc", "content": "noon"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "redacted_thinking", "data": "x"},
                {"type": "thinking", "thinking": "So.", "signature": "x"},
                {"type": "text", "text": "It is noon."},
            ],
        },
        ASKED,
    ]
    body = {"messages": messages, "max_tokens": 9}
    assert MessagesBody.model_validate(body).turn().messages == messages_of(EXPECTED)


def test_responses_take_it_from_the_agents_sdk() -> None:
    """openai-agents 0.6 sends every item of the output back, reasoning before the call or message that it led to."""
    items = [
        ASKED,
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "abc", **FUNCTION},
        {"type": "function_call_output", "call_id": "abc", "output": "noon"},
        {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "So."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is noon."}]},
        ASKED,
    ]
    assert ResponsesBody.model_validate({"input": items}).turn().messages == messages_of(EXPECTED)


def test_a_thought_that_no_answer_followed_is_dropped() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
    made = ResponsesBody.model_validate({"input": [ASKED, thought, ASKED]}).turn().messages
    assert in_order(made, TAKES_ALL) == [message_of(ASKED)] * 2
