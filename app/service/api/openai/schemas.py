"""OpenAI's objects, with llama.cpp's `timings` beside `usage`."""

from __future__ import annotations

from typing import Generic, Literal, NotRequired, TypeAlias, TypeVar

from pydantic import NonNegativeFloat, NonNegativeInt
from typing_extensions import TypedDict

from app.service.api.fields import Byte, WithWarnings

__all__ = [
    "CalledFunction",
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatCompletionMessage",
    "ChatDelta",
    "ChatLogprobs",
    "ChatReason",
    "ChatTokenLogprob",
    "Chunk",
    "ChunkObject",
    "Completion",
    "FunctionArgumentsDelta",
    "Model",
    "ModelList",
    "ModelMeta",
    "PromptTokensDetails",
    "TextChoice",
    "TextChunk",
    "TextChunkChoice",
    "TextCompletion",
    "TextLogprobs",
    "TextReason",
    "Timings",
    "TimingsSoFar",
    "TokenLogprob",
    "ToolCall",
    "ToolCallChunk",
    "Usage",
    "WholeObject",
]

ChatReason: TypeAlias = Literal["stop", "length", "tool_calls"]
TextReason: TypeAlias = Literal["stop", "length"]
WholeObject: TypeAlias = Literal["chat.completion", "text_completion"]
ChunkObject: TypeAlias = Literal["chat.completion.chunk", "text_completion"]

Choice = TypeVar("Choice")


class ModelMeta(TypedDict):
    """The facts that llama.cpp's clients read; the last three only of a model that is ready."""

    n_ctx_train: NonNegativeInt
    size: NonNegativeInt
    n_vocab: NotRequired[NonNegativeInt]
    n_params: NotRequired[NonNegativeInt]
    n_ctx: NotRequired[NonNegativeInt]


class Model(TypedDict):
    """A model that a request may name; `meta` only of one that has an engine."""

    id: str
    object: Literal["model"]
    created: NonNegativeInt
    owned_by: Literal["localllm"]
    meta: NotRequired[ModelMeta]


class ModelList(TypedDict):
    """Every model that a request may name."""

    object: Literal["list"]
    data: list[Model]


class PromptTokensDetails(TypedDict):
    """The cached part of a prompt."""

    cached_tokens: NonNegativeInt


class Usage(TypedDict):
    """The cost of answers in tokens."""

    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt
    total_tokens: NonNegativeInt
    prompt_tokens_details: PromptTokensDetails


class Timings(TypedDict):
    """llama-server's `timings`, and more. `draft_saved_ms` is an estimate."""

    cache_n: NonNegativeInt
    prompt_n: NonNegativeInt
    prompt_ms: NonNegativeFloat
    prompt_per_token_ms: NonNegativeFloat
    prompt_per_second: NonNegativeFloat
    predicted_n: NonNegativeInt
    predicted_ms: NonNegativeFloat
    predicted_per_token_ms: NonNegativeFloat
    predicted_per_second: NonNegativeFloat
    dropped_n: NonNegativeInt
    draft_n: NonNegativeInt
    draft_n_accepted: NonNegativeInt
    draft_saved_ms: float
    tokens_per_pass: NonNegativeFloat
    queue_ms: NonNegativeFloat
    time_to_first_token_ms: NonNegativeFloat


class TimingsSoFar(TypedDict):
    """The number of tokens of an answer so far."""

    predicted_n: NonNegativeInt


class TokenLogprob(TypedDict):
    """A token; `bytes` has what `token` cannot where a character is split over several."""

    token: str
    logprob: float
    bytes: list[Byte]


class ChatTokenLogprob(TokenLogprob):
    """A token with its alternatives, best first."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    """The probabilities of a chat's answer."""

    content: list[ChatTokenLogprob]
    refusal: None


class TextLogprobs(TypedDict):
    """The probabilities of a text, in four lists of the same length; the first token of a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[NonNegativeInt]


class CalledFunction(TypedDict):
    """A function with its arguments as JSON in a text."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatCompletionMessage(TypedDict):
    """A message; `content` is null where there are only calls."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """One of the answers."""

    index: NonNegativeInt
    message: ChatCompletionMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatReason


class TextChoice(TypedDict):
    """One of the texts."""

    index: NonNegativeInt
    text: str
    logprobs: TextLogprobs | None
    finish_reason: TextReason


class FunctionArgumentsDelta(TypedDict):
    """The new part of a call's arguments."""

    arguments: str


class ToolCallChunk(TypedDict):
    """The new part of call `index`; only its first part has id and name."""

    index: NonNegativeInt
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunction | FunctionArgumentsDelta


class ChatDelta(TypedDict, total=False):
    """The new part of a message."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallChunk]


class ChatChunkChoice(TypedDict):
    """The new part of answer `index`."""

    index: NonNegativeInt
    delta: ChatDelta
    logprobs: NotRequired[ChatLogprobs]
    finish_reason: ChatReason | None


class TextChunkChoice(TypedDict):
    """The new part of text `index`."""

    index: NonNegativeInt
    text: str
    logprobs: NotRequired[TextLogprobs]
    finish_reason: TextReason | None


class Completion(WithWarnings, Generic[Choice]):
    """The answers of one call."""

    id: str
    object: WholeObject
    created: NonNegativeInt
    model: str
    choices: list[Choice]
    usage: Usage
    timings: Timings


class Chunk(WithWarnings, Generic[Choice]):
    """An event of a stream; the last one is the word [DONE] instead."""

    id: str
    object: ChunkObject
    created: NonNegativeInt
    model: str
    choices: list[Choice]
    usage: NotRequired[Usage]
    timings: NotRequired[Timings | TimingsSoFar]


ChatCompletion: TypeAlias = Completion[ChatChoice]
TextCompletion: TypeAlias = Completion[TextChoice]
ChatChunk: TypeAlias = Chunk[ChatChunkChoice]
TextChunk: TypeAlias = Chunk[TextChunkChoice]
