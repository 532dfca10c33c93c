"""Messages in the form of chat templates, in which tests write them shortest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from app.protocol.chat import Message, ToolCall
from app.service.generation.prompt import template_message


def as_dicts(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return `messages` as templates are given them."""
    return [template_message(message) for message in messages]


def message_of(fields: Mapping[str, Any]) -> Message:
    """Return the message of a template's `fields`; arguments of calls are an object or a text."""
    calls = [
        ToolCall(call["id"], call["function"]["name"], _text(call["function"]["arguments"]))
        for call in fields.get("tool_calls", ())
    ]
    return Message(
        fields["role"],
        fields.get("content") or "",
        calls=tuple(calls),
        reasoning=fields.get("reasoning_content", ""),
        call_id=fields.get("tool_call_id", ""),
        name=fields.get("name", ""),
    )


def messages_of(several: Iterable[Mapping[str, Any]]) -> list[Message]:
    return [message_of(fields) for fields in several]


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
