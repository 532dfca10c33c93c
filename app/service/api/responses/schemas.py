"""The objects of /v1/responses: their fields and what these may be."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.service.api.fields import WithWarnings
from app.service.api.openai.schemas import PromptTokensDetails

__all__ = ["ResponseObject", "ResponseUsage"]

ItemStatus: TypeAlias = Literal["in_progress", "completed"]


class ReasoningText(TypedDict):
    """What a model thought aloud."""

    type: Literal["reasoning_text"]
    text: str


class OutputText(TypedDict):
    """What it said."""

    type: Literal["output_text"]
    text: str
    annotations: list[None]
    logprobs: list[None]


class ReasoningItem(TypedDict):
    """Thoughts; there is no summary of them."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[None]
    content: list[ReasoningText]


class MessageItem(TypedDict):
    """A message."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class FunctionCallItem(TypedDict):
    """A call; `arguments` are JSON in a text."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ReasoningTokens(TypedDict):
    """Thoughts are not counted by themselves."""

    reasoning_tokens: Literal[0]


class ResponseUsage(TypedDict):
    """What a response took, in tokens."""

    input_tokens: NonNegativeInt
    input_tokens_details: PromptTokensDetails
    output_tokens: NonNegativeInt
    output_tokens_details: ReasoningTokens
    total_tokens: NonNegativeInt


class IncompleteDetails(TypedDict):
    """Why a response is cut short."""

    reason: Literal["max_output_tokens"]


class ResponseObject(WithWarnings):
    """The next items of a conversation. Nothing is stored."""

    id: str
    object: Literal["response"]
    created_at: NonNegativeInt
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[ReasoningItem | MessageItem | FunctionCallItem]
    parallel_tool_calls: Literal[True]
    tool_choice: Literal["auto"]
    tools: list[None]
    store: Literal[False]
    usage: ResponseUsage
