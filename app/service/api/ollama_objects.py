"""Ollama's objects: their fields and what these may be. Times that something took are in nanoseconds."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from app.service.api.objects import Advised, Count
from app.service.api.openai_objects import RankedToken

__all__ = [
    "Capability",
    "ChatAnswer",
    "ChatFrame",
    "ChatLoaded",
    "Embedding",
    "Embeddings",
    "GenerateAnswer",
    "GenerateFrame",
    "GenerateLoaded",
    "ModelDescription",
    "ModelDetails",
    "ModelEntry",
    "Models",
    "RunningEntry",
    "RunningModels",
    "Success",
    "Told",
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
    size: Count
    digest: str
    details: ModelDetails


class Models(TypedDict):
    """Every model that a request may name."""

    models: list[ModelEntry]


class RunningEntry(TypedDict):
    """A model that is loaded. What part of it is on a GPU is not told."""

    name: str
    model: str
    size: Count
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: Literal[0]
    context_length: Count


class RunningModels(TypedDict):
    """The models that are loaded."""

    models: list[RunningEntry]


class RecipeMessage(TypedDict):
    """A message that every conversation of a model begins with."""

    role: str
    content: str


class ModelDescription(TypedDict):
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


class AnsweredMessage(TypedDict):
    """What a model says."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[Call]]


class Frame(TypedDict):
    """What every line has."""

    model: str
    created_at: str


class Ended(Advised):
    """Why an answer ended and what it took."""

    done: Literal[True]
    done_reason: Literal["stop", "length"]
    total_duration: Count
    load_duration: Literal[0]
    prompt_eval_count: Count
    prompt_eval_duration: Count
    eval_count: Count
    eval_duration: Count


class Loaded(Advised):
    """The model was loaded, or let go."""

    done: Literal[True]
    done_reason: LoadReason


class Going(TypedDict):
    """There is more to come."""

    done: Literal[False]


class _Said(Frame):
    message: AnsweredMessage


class _Written(Frame):
    response: str
    thinking: NotRequired[str]


class _Ranked(TypedDict, total=False):
    logprobs: list[RankedToken]


class ChatAnswer(_Said, _Ranked, Ended):
    """The next message of a conversation; the last line of a stream is one without words."""


class ChatFrame(_Said, _Ranked, Going):
    """What is new in it."""


class ChatLoaded(_Said, Loaded):
    """The answer to a conversation without messages."""


class GenerateAnswer(_Written, _Ranked, Ended):
    """The answer to a prompt; the last line of a stream is one without words."""


class GenerateFrame(_Written, _Ranked, Going):
    """What is new in it."""


class GenerateLoaded(_Written, Loaded):
    """The answer to no prompt."""


class Embeddings(TypedDict):
    """A vector for each input."""

    model: str
    embeddings: list[list[float]]
    prompt_eval_count: NotRequired[Count]


class Embedding(TypedDict):
    """The vector of one prompt, empty for an empty one."""

    embedding: list[float]


class Success(TypedDict):
    """A model is there that was fetched or made."""

    status: Literal["success"]


class Told(TypedDict):
    """How far that is."""

    status: str
    digest: NotRequired[str]
    total: NotRequired[Count]
    completed: NotRequired[Count]
