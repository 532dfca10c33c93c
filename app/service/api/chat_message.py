"""A message of a conversation as OpenAI words it, others too -> as chat templates know it.

Owns roles and forms of content. Knows nothing of what is asked about the messages.
"""

from __future__ import annotations

from typing import Any, Literal

from app.service.api.bodies import Body, Text
from app.service.api.function_tools import CallBody
from quantizer.errors import RequestError

__all__ = ["ChatMessage", "ContentPart"]

_TEXT_TYPES = ("text", "input_text", "output_text")


class ContentPart(Body):
    type: str
    text: Text = ""


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[ContentPart] | None = None
    name: Text | None = None
    tool_calls: list[CallBody] | None = None
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
