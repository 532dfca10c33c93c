"""A message of a conversation as OpenAI words it, others too -> as chat templates know it.

Owns roles and forms of content. Knows nothing of what is asked about the messages.

Messages in an order that strict chat templates take, where a dialect has no such rule.

Knows nothing of dialects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from app.service.api.fields import Body, Text
from app.service.api.function_tools import ToolCallBody
from quantizer.errors import RequestError

__all__ = ["PARAGRAPH_BREAK", "ChatMessage", "ContentPart", "alternate_roles"]

_TEXT_TYPES = ("text", "input_text", "output_text")


class ContentPart(Body):
    type: str
    text: Text = ""


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[ContentPart] | None = None
    name: Text | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: Text | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates know it. Raises RequestError for content that is not text."""
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self._text()}
        if self.role == "assistant" and self.tool_calls:
            calls = [call.for_template() for call in self.tool_calls]
            return {**message, "content": message["content"] or None, "tool_calls": calls}
        if self.role == "tool":
            told = {"name": self._tool_name(), "tool_call_id": self.tool_call_id}
            return {**message, **{name: value for name, value in told.items() if value is not None}}
        return message

    def _tool_name(self) -> str | None:
        return self.name

    def _text(self) -> str:
        if isinstance(self.content, list):
            return "".join(_text_of(part) for part in self.content)
        return self.content or ""


def _text_of(part: ContentPart) -> str:
    if part.type not in _TEXT_TYPES:
        cause = f"A message has content of type {part.type[:40]!r}, which no model here takes."
        raise RequestError(cause, "Send text.")
    return part.text


PARAGRAPH_BREAK = "\n\n"

Message = dict[str, Any]


def alternate_roles(messages: Iterable[Message]) -> list[Message]:
    """Return `messages` with the system first and nobody twice in a row but tools.

    What the system says later on is told by the user.
    """
    ordered: list[Message] = []
    for message in messages:
        is_late = message["role"] == "system" and any(earlier["role"] != "system" for earlier in ordered)
        following = {**message, "role": "user"} if is_late else message
        if ordered and _is_same_speaker(ordered[-1], following):
            ordered[-1] = _joined(ordered[-1], following)
        else:
            ordered.append(following)
    return ordered


def _is_same_speaker(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two messages can be one; what is said after a call is not said before it."""
    is_before_calls = "tool_calls" not in one or not other["content"]
    return one["role"] == other["role"] != "tool" and is_before_calls


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> Message:
    texts = filter(None, (one["content"], other["content"]))
    calls = [*one.get("tool_calls", ()), *other.get("tool_calls", ())]
    message = {**other, "content": PARAGRAPH_BREAK.join(texts)}
    return {**message, "content": message["content"] or None, "tool_calls": calls} if calls else message
