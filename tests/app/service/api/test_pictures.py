"""A picture that no model here sees is a note in the conversation, and an error only as what the user has just sent.

The bodies are those that the named clients send, without the tools and texts that matter to nobody.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from app.protocol.errors import RequestError
from app.service.api.anthropic.requests import MessagesBody
from app.service.api.app_state import MAX_REMEMBERED, RefusedContent
from app.service.api.messages import refuse_unreadable_question
from app.service.api.ollama.requests import OllamaChatBody
from app.service.api.openai.requests import ChatCompletionBody
from app.service.api.responses.requests import ResponsesBody
from app.service.generation.media import note_of_unreadable
from tests.app.running import RunningService

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
URL = f"data:image/png;base64,{PNG}"
NOTE = note_of_unreadable("image")
BLOCK: dict[str, Any] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
PART = {"type": "image_url", "image_url": {"url": URL, "detail": "auto"}}
BODIES = {
    "/v1/messages": MessagesBody,
    "/v1/responses": ResponsesBody,
    "/v1/chat/completions": ChatCompletionBody,
    "/api/chat": OllamaChatBody,
}

LIMITS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"max_output_tokens": 2},
    "/api/chat": {"options": {"num_predict": 2}},
}


def _called(name: str, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


# Client and version, route, body; the picture comes from a tool or is older than the question.
CONVERSATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "Claude Code 2.1 reads a PNG": (
        "/v1/messages",
        {
            "max_tokens": 32000,
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Look at a.png"}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {"tool_use_id": "toolu_1", "type": "tool_result", "content": [BLOCK]},
                        {"type": "text", "text": "<system-reminder>x</system-reminder>"},
                    ],
                },
            ],
        },
    ),
    "Claude Code 2.1 reads a PDF": (
        "/v1/messages",
        {
            "max_tokens": 32000,
            "messages": [
                {"role": "user", "content": "Look at a.pdf"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {"tool_use_id": "toolu_1", "type": "tool_result", "content": "PDF file read: /a.pdf"},
                        {
                            "type": "document",
                            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjc="},
                        },
                    ],
                },
            ],
        },
    ),
    "Claude Code 2.1 goes on after a pasted picture": (
        "/v1/messages",
        {
            "max_tokens": 32000,
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "What is this?"}, BLOCK]},
                {"role": "assistant", "content": [{"type": "text", "text": "A picture."}]},
                {"role": "user", "content": "Thanks."},
            ],
        },
    ),
    "Codex 0.60 shows a picture by view_image": (
        "/v1/responses",
        {
            "store": False,
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look at a.png"}]},
                {"type": "function_call", "name": "view_image", "arguments": '{"path":"a.png"}', "call_id": "c1"},
                {"type": "function_call_output", "call_id": "c1", "output": "attached local image path"},
                {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": URL}]},
            ],
        },
    ),
    "Codex 0.98 shows a picture by view_image": (
        "/v1/responses",
        {
            "store": False,
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look at a.png"}]},
                {"type": "function_call", "name": "view_image", "arguments": '{"path":"a.png"}', "call_id": "c1"},
                {
                    "type": "function_call_output",
                    "call_id": "c1",
                    "output": [{"type": "input_image", "image_url": URL, "detail": "high"}],
                },
            ],
        },
    ),
    "Codex 0.98 goes on after a refused picture": (
        "/v1/responses",
        {
            "store": False,
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "<image>"},
                        {"type": "input_image", "image_url": URL},
                        {"type": "input_text", "text": "</image>"},
                    ],
                },
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Then without."}]},
            ],
        },
    ),
    "qwen-code 0.5 reads a picture": (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "Look at a.png"},
                _called("read_file", absolute_path="/a.png"),
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a.png"}, PART]},
            ]
        },
    ),
    "pi 0.50 adds a tool's picture as the user": (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "Look at a.png"},
                _called("read", path="a.png"),
                {"role": "tool", "tool_call_id": "c1", "content": "(see attached image)"},
                {"role": "user", "content": [{"type": "text", "text": "Attached image(s) from tool result:"}, PART]},
            ]
        },
    ),
    "Open WebUI 0.6 goes on after a picture": (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "What is this?"}, PART]},
                {"role": "assistant", "content": "A picture."},
                {"role": "user", "content": "Thanks."},
            ]
        },
    ),
    "Ollama's Python client 0.6 goes on after a picture": (
        "/api/chat",
        {
            "messages": [
                {"role": "user", "content": "What is this?", "images": [PNG]},
                {"role": "assistant", "content": "A picture."},
                {"role": "user", "content": "Thanks."},
            ]
        },
    ),
    "Cline 3 has a tool's picture": (
        "/api/chat",
        {
            "messages": [
                {"role": "user", "content": "Look at a.png"},
                {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
                {"role": "tool", "tool_name": "f", "content": "a.png", "images": [PNG]},
            ]
        },
    ),
}

# The same as a question: an answer about a picture that was never seen would mislead.
QUESTIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "Claude Code 2.1": (
        "/v1/messages",
        {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, BLOCK]}]},
        "picture",
    ),
    "a reminder of Claude Code 2.1 behind it": (
        "/v1/messages",
        {"max_tokens": 9, "messages": [{"role": "user", "content": [BLOCK]}, {"role": "system", "content": "x"}]},
        "picture",
    ),
    "Codex 0.98": (
        "/v1/responses",
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": URL}]}]},
        "picture",
    ),
    "OpenAI's client 2": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [PART]}]},
        "picture",
    ),
    "audio of OpenAI's client 2": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": PNG}}]}]},
        "sound",
    ),
    "Ollama's client 0.6": (
        "/api/chat",
        {"messages": [{"role": "user", "content": "What is this?", "images": [PNG]}]},
        "picture",
    ),
}


@pytest.mark.parametrize("client", CONVERSATIONS)
def test_an_older_picture_is_a_note_where_it_was(client: str) -> None:
    path, body = CONVERSATIONS[client]
    messages = BODIES[path].model_validate(body).turn().messages
    notes = [message for message in messages if "not readable for this model" in message.content]
    assert len(notes) == 1
    assert PNG not in repr(messages)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", CONVERSATIONS)
def test_a_conversation_with_an_older_picture_goes_on(service: RunningService, client: str, stream: bool) -> None:
    path, body = CONVERSATIONS[client]
    response = service.http.post(path, json=body | LIMITS.get(path, {"max_tokens": 2}) | {"stream": stream})
    assert response.status_code == 200, response.text
    told = "A picture or file of the conversation is only named to the model, which reads text."
    assert response.headers["x-localllm-warning"] == told, "nothing else is worth a word"
    assert told in response.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", QUESTIONS)
def test_a_picture_as_the_question_is_refused(service: RunningService, client: str, stream: bool) -> None:
    path, body, word = QUESTIONS[client]
    never_seen = json.loads(json.dumps(body).replace(PNG, b64encode(f"{client} {stream}".encode()).decode()))
    response = service.http.post(path, json=never_seen | {"stream": stream})
    assert response.status_code == 400
    assert word in response.text


def test_a_picture_that_claude_code_keeps_is_refused_once(service: RunningService) -> None:
    """Claude Code 2.1.197: after a 400 the next question is added to the message with the picture, for ever."""
    other = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "b3RoZXI="}}

    def status(content: list[dict[str, Any]], **more: Any) -> int:
        reminder = {"role": "system", "content": "Available agent types."}
        messages = [{"role": "user", "content": content}, reminder]
        body = {"messages": messages, "max_tokens": 2, **more}
        return service.http.post("/v1/messages?beta=true", json=body).status_code

    fresh = [{"type": "text", "text": "What is this?"}, {**BLOCK, "source": {**BLOCK["source"], "data": "b25jZQ=="}}]
    assert status(fresh) == 400
    assert status([*fresh, {"type": "text", "text": "Then without it."}], stream=True) == 200
    assert status([*fresh, {"type": "text", "text": "Then without it.\n"}, {"type": "text", "text": "Third."}]) == 200
    assert status([*fresh, other]) == 400, "another one"


def test_tokens_are_counted_with_a_picture(service: RunningService) -> None:
    """Claude Code 2.1 counts the tokens of single messages for its /context."""
    body = {"messages": [{"role": "user", "content": [BLOCK]}]}
    assert service.http.post("/v1/messages/count_tokens", json=body).json()["input_tokens"] > 0


def test_the_memory_of_refused_content_is_bounded() -> None:
    refused = RefusedContent()
    for number in range(MAX_REMEMBERED + 1):
        refused.add(f"{number}")
    assert not refused.is_known("0")
    assert refused.is_known("1")
    refused.add("1")
    refused.add("new")
    assert refused.is_known("1")
    assert not refused.is_known("2")


def test_the_note_stands_between_the_texts_around_a_picture() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, PART, {"type": "text", "text": "c"}]
    messages = [{"role": "user", "content": parts}, {"role": "user", "content": "d"}]
    turn = ChatCompletionBody.model_validate({"messages": messages}).turn()
    assert turn.messages[0].content == f"ab\n{NOTE}\nc"


def test_the_note_names_a_file() -> None:
    parts = [{"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}]
    body = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "x"}]}
    assert "[file a.pdf: not readable" in ChatCompletionBody.model_validate(body).turn().messages[0].content


def test_a_document_of_text_and_a_search_result_are_text() -> None:
    """What Anthropic's client 0.7x sends for `document` blocks of plain text, and for results of one's own search."""
    blocks = [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "grass"}, "title": "Hues"},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "sky"}]}},
        {
            "type": "search_result",
            "source": "https://a.example",
            "title": "Snow",
            "content": [{"type": "text", "text": "white"}],
        },
        {"type": "text", "text": "What is green?"},
    ]
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": blocks}]}
    (message,) = MessagesBody.model_validate(body).turn().messages
    assert message.content == "Hues\ngrass\n\nsky\n\nSnow\nhttps://a.example\nwhite\n\nWhat is green?"


def test_what_anthropics_servers_added_is_a_note() -> None:
    """A conversation that began with Anthropic's own models: its searches are no calls of the client."""
    content = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": {"type": "error"}},
        {"type": "text", "text": "So it is."},
    ]
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": [{"type": "text", "text": "y"}]},
    ]
    turn = MessagesBody.model_validate({"max_tokens": 9, "messages": messages}).turn()
    assert "web_search_tool_result" in turn.messages[1].content
    assert "So it is." in turn.messages[1].content


def test_a_tool_that_claude_code_found_is_named() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "Grep"}]}
    call = {"type": "tool_use", "id": "t", "name": "ToolSearch", "input": {"query": "grep"}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    turn = MessagesBody.model_validate({"max_tokens": 9, "messages": messages}).turn()
    assert turn.messages[-1].content == "Grep"


@pytest.mark.parametrize(
    ("turns", "is_refused"),
    [
        ([], False),
        ([("user", ())], False),
        ([("user", ("image",))], True),
        ([("user", ("image",)), ("system", ())], True),
        ([("tool", ()), ("user", ("image",))], False),
        ([("tool", ()), ("user", ("image",)), ("user", ("image",))], False),
        ([("tool", ()), ("assistant", ()), ("user", ("image",))], True),
        ([("user", ("image",)), ("assistant", ())], False),
        ([("assistant", ("image",))], False),
        ([("tool", ("image",))], False),
    ],
)
def test_only_what_a_user_has_just_sent_is_refused(turns: list[tuple[str, tuple[str, ...]]], is_refused: bool) -> None:
    faults = [(role, [RequestError(kind) for kind in kinds]) for role, kinds in turns]
    if is_refused:
        with pytest.raises(RequestError, match="image"):
            refuse_unreadable_question(faults)
    else:
        refuse_unreadable_question(faults)
