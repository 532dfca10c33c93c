"""The objects of /v1/responses."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.service.api.fields import WithWarnings
from app.service.api.openai.schemas import PromptTokensDetails

__all__ = [
    "FunctionCallItem",
    "ItemStatus",
    "MessageItem",
    "OutputText",
    "ReasoningItem",
    "ReasoningText",
    "ResponseObject",
    "ResponseStatus",
    "ResponseUsage",
]

ItemStatus: TypeAlias = Literal["in_progress", "completed"]
ResponseStatus: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class ReasoningText(TypedDict):
    """The text of a thought."""

    type: Literal["reasoning_text"]
    text: str


class OutputText(TypedDict):
    """The text of a message."""

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
    """A tool call; `arguments` are JSON in a text."""

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
    """The cost of a response in tokens."""

    input_tokens: NonNegativeInt
    input_tokens_details: PromptTokensDetails
    output_tokens: NonNegativeInt
    output_tokens_details: ReasoningTokens
    total_tokens: NonNegativeInt


class IncompleteDetails(TypedDict):
    """The reason why a response is cut short."""

    reason: Literal["max_output_tokens"]


class ResponseError(TypedDict):
    """The reason why a response failed."""

    code: str
    message: str


class ResponseObject(WithWarnings):
    """The next items of a conversation. Nothing is stored."""

    id: str
    object: Literal["response"]
    created_at: NonNegativeInt
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[ReasoningItem | MessageItem | FunctionCallItem]
    parallel_tool_calls: Literal[True]
    tool_choice: Literal["auto"]
    tools: list[None]
    store: Literal[False]
    usage: ResponseUsage | None
