"""Ollama's objects, named as in Ollama's Python client. Durations are in nanoseconds."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.service.api.fields import WithWarnings
from app.service.api.openai.schemas import ChatTokenLogprob

__all__ = [
    "Capability",
    "ChatResponse",
    "DoneReason",
    "EmbedResponse",
    "EmbeddingsResponse",
    "GenerateResponse",
    "ListResponse",
    "ModelDetails",
    "ModelEntry",
    "ProcessResponse",
    "ProgressResponse",
    "ResponseMessage",
    "RunningEntry",
    "ShowResponse",
    "StatusResponse",
    "ToolCall",
    "Usage",
    "Version",
]

Capability: TypeAlias = Literal["completion", "embedding", "insert", "thinking", "tools"]
DoneReason: TypeAlias = Literal["stop", "length", "load", "unload"]


class Version(TypedDict):
    """The version of the API."""

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
    """A model in a list. `digest` identifies the file; it is not the hash of its bytes."""

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
    """A loaded model. The part of it on a GPU is not reported."""

    name: str
    model: str
    size: NonNegativeInt
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: Literal[0]
    context_length: NonNegativeInt


class ProcessResponse(TypedDict):
    """The loaded models."""

    models: list[RunningEntry]


class RecipeMessage(TypedDict):
    """A message that every conversation of a model begins with."""

    role: str
    content: str


class ShowResponse(TypedDict):
    """The description of one model; the last three fields only of one that was created with them."""

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


class ToolCall(TypedDict):
    """A tool call, which has no id in Ollama's dialect."""

    function: CalledFunction


class ResponseMessage(TypedDict):
    """A message of a model."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class Usage(TypedDict, total=False):
    """The cost of an answer."""

    total_duration: NonNegativeInt
    load_duration: Literal[0]
    prompt_eval_count: NonNegativeInt
    prompt_eval_duration: NonNegativeInt
    eval_count: NonNegativeInt
    eval_duration: NonNegativeInt


class _Response(WithWarnings, Usage):
    """The fields of a whole answer and of a line of a stream; the cost and the reason only when it is `done`."""

    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[DoneReason]
    logprobs: NotRequired[list[ChatTokenLogprob]]


class ChatResponse(_Response):
    """The next message of a conversation, or the new part of it."""

    message: ResponseMessage


class GenerateResponse(_Response):
    """The answer to a prompt, or the new part of it."""

    response: str
    thinking: NotRequired[str]


class EmbedResponse(TypedDict):
    """A vector for each input."""

    model: str
    embeddings: list[list[float]]
    prompt_eval_count: NotRequired[NonNegativeInt]


class EmbeddingsResponse(TypedDict):
    """The vector of one prompt, empty for an empty one."""

    embedding: list[float]


class StatusResponse(TypedDict):
    """The end of fetching or creating a model."""

    status: Literal["success"]


class ProgressResponse(TypedDict):
    """The progress of fetching or creating a model."""

    status: str
    digest: NotRequired[str]
    total: NotRequired[NonNegativeInt]
    completed: NotRequired[NonNegativeInt]
