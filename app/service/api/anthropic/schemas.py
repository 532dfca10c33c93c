"""Anthropic's objects."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.service.api.fields import WithWarnings

__all__ = ["AnyBlock", "MessageResponse", "MessageUsage", "StopReason", "TokenCount"]


class ThinkingBlock(TypedDict):
    """A thought."""

    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class TextBlock(TypedDict):
    """Text."""

    type: Literal["text"]
    text: str


class ToolUseBlock(TypedDict):
    """A tool call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
AnyBlock: TypeAlias = ThinkingBlock | TextBlock | ToolUseBlock


class MessageUsage(TypedDict):
    """The cost of an answer in tokens; `input_tokens` counts the computed ones."""

    input_tokens: NonNegativeInt
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: NonNegativeInt
    output_tokens: NonNegativeInt


class MessageResponse(WithWarnings):
    """The next message of a conversation."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnyBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(TypedDict):
    """The number of tokens of a prompt."""

    input_tokens: NonNegativeInt
