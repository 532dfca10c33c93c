"""Ollama's objects: their fields and what these may be. Times that something took are in nanoseconds."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.service.api.fields import WithWarnings
from app.service.api.openai.schemas import ChatTokenLogprob

__all__ = [
    "Capability",
    "ChatLoadResponse",
    "ChatResponse",
    "ChatResponseChunk",
    "EmbedResponse",
    "EmbeddingsResponse",
    "GenerateLoadResponse",
    "GenerateResponse",
    "GenerateResponseChunk",
    "ListResponse",
    "ModelDetails",
    "ModelEntry",
    "ProcessResponse",
    "ProgressResponse",
    "RunningEntry",
    "ShowResponse",
    "StatusResponse",
    "Version",
]

Capability: TypeAlias = Literal["completion", "embedding", "insert", "thinking", "tools"]
LoadReason: TypeAlias = Literal["load", "unload"]


class Version(TypedDict):
    """The version whose API is spoken."""

    version: str


class ModelDetails(TypedDict):
    """The short facts; the family is the architecture."""

    parent_model: str
    format: Literal["gguf"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ModelEntry(TypedDict):
    """A model in a list. `digest` tells files apart; it is not the hash of what is in them."""

    name: str
    model: str
    modified_at: str
    size: NonNegativeInt
    digest: str
    details: ModelDetails


class ListResponse(TypedDict):
    """Every model that a request may name."""

    models: list[ModelEntry]


class RunningEntry(TypedDict):
    """A model that is loaded. What part of it is on a GPU is not told."""

    name: str
    model: str
    size: NonNegativeInt
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: Literal[0]
    context_length: NonNegativeInt


class ProcessResponse(TypedDict):
    """The models that are loaded."""

    models: list[RunningEntry]


class RecipeMessage(TypedDict):
    """A message that every conversation of a model begins with."""

    role: str
    content: str


class ShowResponse(TypedDict):
    """All that is told of one model; the last three of one that was made with them."""

    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[Capability]
    modified_at: str
    system: NotRequired[str]
    license: NotRequired[str]
    messages: NotRequired[list[RecipeMessage]]


class CalledFunction(TypedDict):
    """A function with its arguments."""

    name: str
    arguments: dict[str, Any]


class Call(TypedDict):
    """A call, which has no id at Ollama's."""

    function: CalledFunction


class ResponseMessage(TypedDict):
    """What a model says."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[Call]]


class ResponseFields(TypedDict):
    """What every line has."""

    model: str
    created_at: str


class Ended(WithWarnings):
    """Why an answer ended and what it took."""

    done: Literal[True]
    done_reason: Literal["stop", "length"]
    total_duration: NonNegativeInt
    load_duration: Literal[0]
    prompt_eval_count: NonNegativeInt
    prompt_eval_duration: NonNegativeInt
    eval_count: NonNegativeInt
    eval_duration: NonNegativeInt


class Loaded(WithWarnings):
    """The model was loaded, or let go."""

    done: Literal[True]
    done_reason: LoadReason


class Going(TypedDict):
    """There is more to come."""

    done: Literal[False]


class _Said(ResponseFields):
    message: ResponseMessage


class _Written(ResponseFields):
    response: str
    thinking: NotRequired[str]


class _Ranked(TypedDict, total=False):
    logprobs: list[ChatTokenLogprob]


class ChatResponse(_Said, _Ranked, Ended):
    """The next message of a conversation; the last line of a stream is one without words."""


class ChatResponseChunk(_Said, _Ranked, Going):
    """What is new in it."""


class ChatLoadResponse(_Said, Loaded):
    """The answer to a conversation without messages."""


class GenerateResponse(_Written, _Ranked, Ended):
    """The answer to a prompt; the last line of a stream is one without words."""


class GenerateResponseChunk(_Written, _Ranked, Going):
    """What is new in it."""


class GenerateLoadResponse(_Written, Loaded):
    """The answer to no prompt."""


class EmbedResponse(TypedDict):
    """A vector for each input."""

    model: str
    embeddings: list[list[float]]
    prompt_eval_count: NotRequired[NonNegativeInt]


class EmbeddingsResponse(TypedDict):
    """The vector of one prompt, empty for an empty one."""

    embedding: list[float]


class StatusResponse(TypedDict):
    """A model is there that was fetched or made."""

    status: Literal["success"]


class ProgressResponse(TypedDict):
    """How far that is."""

    status: str
    digest: NotRequired[str]
    total: NotRequired[NonNegativeInt]
    completed: NotRequired[NonNegativeInt]
