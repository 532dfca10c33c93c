"""OpenAI's objects, with llama.cpp's `timings` beside `usage`: their fields and what these may be."""

from __future__ import annotations

from typing import Literal, NotRequired, TypeAlias

from pydantic import NonNegativeFloat, NonNegativeInt
from typing_extensions import TypedDict

from app.service.api.fields import Byte, WithWarnings

__all__ = [
    "CalledFunction",
    "ChatChunk",
    "ChatCompletion",
    "ChatLogprobs",
    "ChatTokenLogprob",
    "Model",
    "ModelList",
    "ModelMeta",
    "TextChunk",
    "TextCompletion",
    "TextLogprobs",
    "Timings",
    "TokenLogprob",
    "Usage",
]

ChatReason: TypeAlias = Literal["stop", "length", "tool_calls"]
TextReason: TypeAlias = Literal["stop", "length"]


class ModelMeta(TypedDict):
    """What llama.cpp's clients look for; the last three are known of a model that is ready."""

    n_ctx_train: NonNegativeInt
    size: NonNegativeInt
    n_vocab: NotRequired[NonNegativeInt]
    n_params: NotRequired[NonNegativeInt]
    n_ctx: NotRequired[NonNegativeInt]


class Model(TypedDict):
    """A model that a request may name; `meta` comes with one that has an engine."""

    id: str
    object: Literal["model"]
    created: NonNegativeInt
    owned_by: Literal["localllm"]
    meta: NotRequired[ModelMeta]


class ModelList(TypedDict):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class PromptTokensDetails(TypedDict):
    """How much of a prompt was computed before."""

    cached_tokens: NonNegativeInt


class Usage(TypedDict):
    """What answers took, in tokens."""

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
    """How many tokens an answer has by now."""

    predicted_n: NonNegativeInt


class TokenLogprob(TypedDict):
    """A token; `bytes` says what `token` cannot where a character is split over several."""

    token: str
    logprob: float
    bytes: list[Byte]


class ChatTokenLogprob(TokenLogprob):
    """A token with its rivals, best first."""

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
    """A call."""

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


class ChatCompletion(WithWarnings):
    """The answers to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: NonNegativeInt
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings


class TextChoice(TypedDict):
    """One of the texts."""

    index: NonNegativeInt
    text: str
    logprobs: TextLogprobs | None
    finish_reason: TextReason


class TextCompletion(WithWarnings):
    """The continuations of texts."""

    id: str
    object: Literal["text_completion"]
    created: NonNegativeInt
    model: str
    choices: list[TextChoice]
    usage: Usage
    timings: Timings


class FunctionArgumentsDelta(TypedDict):
    """What is new in the arguments of a call."""

    arguments: str


class ToolCallChunk(TypedDict):
    """What is new in call `index`; only its first part says which it is."""

    index: NonNegativeInt
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunction | FunctionArgumentsDelta


class ChatDelta(TypedDict, total=False):
    """What is new in an answer."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallChunk]


class ChatChunkChoice(TypedDict):
    """What is new in answer `index`."""

    index: NonNegativeInt
    delta: ChatDelta
    logprobs: NotRequired[ChatLogprobs]
    finish_reason: ChatReason | None


class ChatChunk(WithWarnings):
    """An event of a chat; the very last says [DONE] instead."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: NonNegativeInt
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage]
    timings: NotRequired[Timings | TimingsSoFar]


class TextChunkChoice(TypedDict):
    """What is new in text `index`."""

    index: NonNegativeInt
    text: str
    logprobs: NotRequired[TextLogprobs]
    finish_reason: TextReason | None


class TextChunk(WithWarnings):
    """An event of a text; the very last says [DONE] instead."""

    id: str
    object: Literal["text_completion"]
    created: NonNegativeInt
    model: str
    choices: list[TextChunkChoice]
    usage: NotRequired[Usage]
    timings: NotRequired[Timings | TimingsSoFar]
