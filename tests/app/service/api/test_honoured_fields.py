"""Fields that change what the model reads, in the words of the SDKs that have them."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.chat import Message
from app.protocol.errors import RequestError
from app.service.api.anthropic.requests import MessagesBody
from app.service.api.openai.requests import ChatCompletionBody
from app.service.api.responses.requests import ResponsesBody

ASK = [{"role": "user", "content": "Hi"}]
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]}
DOCUMENT = {
    "type": "document",
    "title": "Trees",
    "context": "From a school.",
    "source": {"type": "text", "data": "Oak."},
}
SHORT = Message("system", "Keep your answers short.")


def of_chat(**fields: Any) -> list[Message]:
    return [*ChatCompletionBody.model_validate({"messages": ASK, **fields}).turn().messages]


def of_anthropic(messages: list[dict[str, Any]], **fields: Any) -> list[Message]:
    return [*MessagesBody.model_validate({"messages": messages, "max_tokens": 9, **fields}).turn().messages]


def test_verbosity_is_said_behind_the_instructions() -> None:
    system = {"role": "system", "content": "Be kind."}
    instructed = [Message("system", "Be kind."), SHORT, Message("user", "Hi")]
    assert of_chat(messages=[system, *ASK], verbosity="low") == instructed
    responses = ResponsesBody.model_validate({"input": "Hi", "instructions": "Be kind.", "text": {"verbosity": "low"}})
    assert [*responses.turn().messages] == instructed
    assert of_chat(verbosity="medium") == of_chat() == [Message("user", "Hi")]
    with pytest.raises(RequestError, match="verbosity is 'chatty'"):
        of_chat(verbosity="chatty")


def test_only_allowed_tools_are_offered() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    body = ChatCompletionBody.model_validate({"messages": ASK, "tools": tools, "tool_choice": choice})
    options = body.turn().tools
    assert [tool.name for tool in options.tools] == ["g"]
    assert options.must_call


def test_a_refusal_of_an_earlier_answer_is_read() -> None:
    refused = {"role": "assistant", "content": None, "refusal": "I will not."}
    assert of_chat(messages=[*ASK, refused, *ASK])[1] == Message("assistant", "I will not.")


@pytest.mark.parametrize(
    ("result", "read"),
    [
        ({"content": "exit code 1", "is_error": True}, "Error: exit code 1"),
        ({"content": "<tool_use_error>no</tool_use_error>", "is_error": True}, "<tool_use_error>no</tool_use_error>"),
        ({"content": "exit code 1"}, "exit code 1"),
    ],
)
def test_the_result_of_a_failed_call_says_so(result: dict[str, Any], read: str) -> None:
    answer = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", **result}]}
    assert of_anthropic([*ASK, CALL, answer])[-1].content == read


def test_what_is_said_of_a_document_goes_before_it() -> None:
    assert of_anthropic([{"role": "user", "content": [DOCUMENT]}])[0].content == "Trees\nFrom a school.\nOak."


def test_examples_of_a_tools_input_are_in_its_description() -> None:
    tool = {"name": "f", "description": "Does.", "input_schema": {}, "input_examples": [{"a": 1}, {"a": 2}]}
    body = MessagesBody.model_validate({"messages": ASK, "max_tokens": 9, "tools": [tool]})
    assert body.turn().tools.tools[0].description == 'Does.\nExamples of its input:\n{"a": 1}\n{"a": 2}'


def test_a_system_message_for_one_turn_is_read_in_that_turn_only() -> None:
    note = {"role": "system", "content": "Now in French.", "clear_at": "next_user_message"}
    assert "Now in French." in [message.content for message in of_anthropic([*ASK, note])]
    later = [*ASK, note, {"role": "assistant", "content": "Salut"}, *ASK]
    assert "Now in French." not in [message.content for message in of_anthropic(later)]
    kept = [*ASK, {**note, "clear_at": "never"}, {"role": "assistant", "content": "Salut"}, *ASK]
    assert "Now in French." in [message.content for message in of_anthropic(kept)]
