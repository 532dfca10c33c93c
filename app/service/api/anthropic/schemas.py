"""Anthropic's objects: their fields and what these may be."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.service.api.fields import WithWarnings

__all__ = ["MessageResponse", "MessageUsage", "TokenCount"]


class ThinkingBlock(TypedDict):
    """What a model thought aloud."""

    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class TextBlock(TypedDict):
    """What it said."""

    type: Literal["text"]
    text: str


class ToolUseBlock(TypedDict):
    """What it calls."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


AnyBlock: TypeAlias = ThinkingBlock | TextBlock | ToolUseBlock


class MessageUsage(TypedDict):
    """What an answer took, in tokens; `input_tokens` are those that were computed."""

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
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(TypedDict):
    """How many tokens a prompt has."""

    input_tokens: NonNegativeInt
