"""Answers and models as Ollama's objects: the engine's answers, models in lists and one by one (/api/show), Modelfiles.

Durations are in nanoseconds.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Generic, Literal, NotRequired, TypeAlias, TypeVar

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.common.answer_text import reasoning_tags_of
from app.engine.messages import Embedded
from app.engine.request import FinishReason
from app.library.local.model_files import ModelRef
from app.library.local.recipe import Recipe
from app.protocol.chat import ToolCall
from app.protocol.sampling import HTTP_NAMES
from app.service.api.fields import WithWarnings
from app.service.api.openai.usage import ChatTokenLogprob, chat_logprobs
from app.service.generation.generation import Answer, Delta
from app.service.http.access_log import RequestRecord
from app.service.models.model_file import FileFacts, Senses
from app.service.models.served_model import ServedModel
from quantizer.gguf.gguf_reader import ArrayRef
from quantizer.gguf.tensor_types import TENSOR_TYPES
from quantizer.gguf.validation import validate_gguf

_NS = 1_000_000_000
_NAME_WIDTH = 30  # source: Ollama's ShowHandler
_FOREVER = "9999-12-31T23:59:59Z"
_UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "K"))

DoneReason: TypeAlias = Literal["stop", "length", "load", "unload"]
Capability: TypeAlias = Literal["audio", "completion", "embedding", "insert", "thinking", "tools", "vision"]


class CalledFunction(TypedDict):
    """A function with its arguments; `index` is that of the call."""

    index: NonNegativeInt
    name: str
    arguments: dict[str, Any]


class CalledTool(TypedDict):
    """A tool call; the `id` came with Ollama 0.12.10, and clients older than that may refuse it."""

    id: NotRequired[str]
    function: CalledFunction


class ResponseMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[CalledTool]]


class Durations(TypedDict, total=False):
    """The time of a request, and the part of it in which its model was loaded."""

    total_duration: NonNegativeInt
    load_duration: NonNegativeInt


class EmbeddingUsage(Durations):
    prompt_eval_count: NotRequired[NonNegativeInt]


class Usage(Durations, total=False):
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


Object = TypeVar("Object", ChatResponse, GenerateResponse)


@dataclass(frozen=True, slots=True)
class OllamaFormatter(ABC, Generic[Object]):
    """The objects made of one answer of the model `model_id`, with the durations of its `record`."""

    model_id: str
    record: RequestRecord
    has_call_ids: bool = True

    def line(self, delta: Delta) -> Object | None:
        """Return the object of new text, None where there are only parts of calls: calls are reported whole."""
        if not (delta.text or delta.reasoning or delta.logprobs):
            return None
        line = self.new(delta.text, delta.reasoning)
        if delta.logprobs:
            line["logprobs"] = chat_logprobs(delta.logprobs)
        return line

    def calls_line(self, answer: Answer) -> Object | None:
        return self.new(calls=answer.calls) if self._tool_calls(answer.calls) else None

    def last_line(self, answer: Answer, warnings: WithWarnings) -> Object:
        return self._finish(self.new(), answer, warnings)

    def whole(self, answer: Answer, warnings: WithWarnings) -> Object:
        whole = self._finish(self.new(answer.text, answer.reasoning, answer.calls), answer, warnings)
        if answer.logprobs:
            whole["logprobs"] = chat_logprobs(answer.logprobs)
        return whole

    def without_text(self, reason: DoneReason, warnings: WithWarnings) -> Object:
        return {**self.new(), "done": True, "done_reason": reason, **warnings}

    @abstractmethod
    def new(self, text: str = "", reasoning: str = "", calls: Sequence[ToolCall] = ()) -> Object:
        """Return an object that is not done."""

    def _finish(self, line: Object, answer: Answer, warnings: WithWarnings) -> Object:
        reason: DoneReason = "length" if answer.end.reason is FinishReason.LENGTH else "stop"
        return {**line, "done": True, "done_reason": reason, **_usage(answer, self.record), **warnings}

    def _tool_calls(self, calls: Sequence[ToolCall]) -> list[CalledTool]:
        """Return calls with their arguments as objects, without a call that the token limit has cut short."""
        whole = [(call, arguments) for call in calls if (arguments := call.arguments_object()) is not None]
        called: list[CalledTool] = []
        for index, (call, arguments) in enumerate(whole):
            function: CalledFunction = {"index": index, "name": call.name, "arguments": arguments}
            called.append({"id": call.call_id, "function": function} if self.has_call_ids else {"function": function})
        return called


class ChatFormatter(OllamaFormatter[ChatResponse]):
    """The objects of /api/chat."""

    __slots__ = ()

    def new(self, text: str = "", reasoning: str = "", calls: Sequence[ToolCall] = ()) -> ChatResponse:
        message: ResponseMessage = {"role": "assistant", "content": text}
        if reasoning:
            message["thinking"] = reasoning
        if tool_calls := self._tool_calls(calls):
            message["tool_calls"] = tool_calls
        return {"model": self.model_id, "created_at": _now(), "message": message, "done": False}


class GenerateFormatter(OllamaFormatter[GenerateResponse]):
    """The objects of /api/generate."""

    __slots__ = ()

    def new(self, text: str = "", reasoning: str = "", calls: Sequence[ToolCall] = ()) -> GenerateResponse:  # noqa: ARG002
        line: GenerateResponse = {"model": self.model_id, "created_at": _now(), "response": text, "done": False}
        if reasoning:
            line["thinking"] = reasoning
        return line


def rfc3339_time(seconds: float) -> str:
    """Return a time since 1970 as Ollama writes times."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _now() -> str:
    return rfc3339_time(datetime.now(UTC).timestamp())


def embedding_usage(embedded: Embedded, record: RequestRecord) -> EmbeddingUsage:
    return {**_durations(record), "prompt_eval_count": embedded.n_tokens}


def _usage(answer: Answer, record: RequestRecord) -> Usage:
    usage, timings = answer.end.usage, answer.end.timings
    return {
        **_durations(record),
        "prompt_eval_count": usage.n_prompt_tokens,
        "prompt_eval_duration": int(timings.prefill_s * _NS),
        "eval_count": usage.n_output_tokens,
        "eval_duration": int(timings.decode_s * _NS),
    }


def _durations(record: RequestRecord) -> Durations:
    return {"total_duration": int(record.took_s * _NS), "load_duration": int(record.load_s * _NS)}


class TensorEntry(TypedDict):
    """A tensor of the file: its type as ggml calls it."""

    name: str
    type: str
    shape: list[NonNegativeInt]


class ModelDetails(TypedDict):
    """The short facts; the family is the architecture. The lengths are left out where the file does not give them."""

    parent_model: str
    format: Literal["gguf"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    context_length: NotRequired[NonNegativeInt]
    embedding_length: NotRequired[NonNegativeInt]


class _Entry(TypedDict):
    name: str
    model: str
    size: NonNegativeInt
    digest: str
    details: ModelDetails


class ModelEntry(_Entry):
    """A model in a list. `digest` identifies the file; it is not the hash of its bytes."""

    modified_at: str
    capabilities: list[Capability]


class RunningEntry(_Entry):
    """A loaded model: `size` is the memory that its plan gives it, `size_vram` the part of that on GPUs."""

    expires_at: str
    size_vram: NonNegativeInt
    context_length: NonNegativeInt


class RecipeMessage(TypedDict):
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
    tensors: NotRequired[list[TensorEntry]]


def contents(path: Path) -> tuple[dict[str, Any], list[TensorEntry]]:
    """Return the lists in the metadata of a file, such as the vocabulary, and its tensors, whose shapes are as Ollama
    has them: the length of a row first. Raises ModelFileError."""
    header = validate_gguf(path)
    arrays: dict[str, Any] = {}
    for key, value in header.metadata.items():
        if isinstance(value, ArrayRef):
            items = header.array(key)  # JSON has no NaN
            arrays[key] = [None if isinstance(each, float) and not isfinite(each) else each for each in items]
    return arrays, [
        {"name": each.name, "type": TENSOR_TYPES[each.type_id].name, "shape": list(each.shape)}
        for each in header.tensors
    ]


def list_entry(ref: ModelRef, facts: FileFacts, recipe: Recipe, senses: Senses) -> ModelEntry:
    """Return the entry of a model in a list. `digest` identifies the file; it is not the hash of its bytes."""
    return {
        **_entry(ref, facts, facts.info.file_bytes),
        "modified_at": rfc3339_time(facts.modified_s),
        "capabilities": _capabilities(_with_recipe(facts, recipe), senses),
    }


def running_entry(model: ServedModel, facts: FileFacts) -> RunningEntry:
    loaded, plan, expires_s = model.status.facts, model.status.plan, model.keep_alive.expires_s
    devices = plan.devices if plan is not None else ()
    return {
        **_entry(model.ref, facts, sum(device.n_bytes for device in devices) or facts.info.file_bytes),
        "expires_at": _FOREVER if expires_s is None else rfc3339_time(expires_s),
        "size_vram": sum(device.n_bytes for device in devices if device.is_gpu),
        "context_length": loaded.n_ctx if loaded else 0,
    }


def show_response(ref: ModelRef, facts: FileFacts, recipe: Recipe, model: ServedModel | None) -> ShowResponse:
    """Return the description of one model; of a loaded one (`model`) with its context in place of the trained one."""
    facts = _with_recipe(facts, recipe)
    capabilities = _capabilities(facts, facts.senses if model is None else model.senses)
    words: dict[Capability, str] = {"tools": "tools", "insert": ".Suffix"}  # which clients search templates for
    found = [word for name, word in words.items() if name in capabilities]
    hints = f"{{# {' '.join(found)} #}}" if found else ""
    metadata = dict(facts.metadata)
    if model is not None and model.status.facts is not None:
        metadata[f"{facts.info.architecture}.context_length"] = model.status.facts.n_ctx
    response: ShowResponse = {
        "modelfile": _modelfile(ref.id, recipe),
        "parameters": "\n".join(
            f"{name:<{_NAME_WIDTH}} {json.dumps(value, ensure_ascii=False)}"
            for name, value in _parameters(facts, recipe)
        ),
        "template": f"{hints}{facts.chat_template}",
        "details": _details(facts, recipe.base),
        "model_info": {**metadata, "general.parameter_count": facts.info.n_parameters},
        "capabilities": capabilities,
        "modified_at": rfc3339_time(facts.modified_s),
    }
    if recipe.system:
        response["system"] = recipe.system
    if recipe.license:
        response["license"] = recipe.license
    if recipe.messages:
        response["messages"] = [{"role": item["role"], "content": item["content"]} for item in recipe.messages]
    return response


def _with_recipe(facts: FileFacts, recipe: Recipe) -> FileFacts:
    return replace(facts, chat_template=recipe.template or facts.chat_template)


def _entry(ref: ModelRef, facts: FileFacts, n_bytes: int) -> _Entry:
    return {"name": ref.id, "model": ref.id, "size": n_bytes, "digest": facts.identity, "details": _details(facts)}


def _details(facts: FileFacts, parent: str = "") -> ModelDetails:
    """Return the short facts. Clients read `<family>.context_length`, so the family is the architecture."""
    info = facts.info
    unit, letter = next(((unit, name) for unit, name in _UNITS if info.n_parameters >= unit), (1.0, ""))
    digits = 1 if letter == "B" else 2  # as Ollama shortens them: 7.6B, 494.03M
    details: ModelDetails = {
        "parent_model": parent,
        "format": "gguf",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": f"{info.n_parameters / unit:.{digits}f}{letter}",
        "quantization_level": info.file_type,
    }
    if n_ctx := _length(facts, "context_length"):
        details["context_length"] = n_ctx
    if n_dimensions := _length(facts, "embedding_length"):
        details["embedding_length"] = n_dimensions
    return details


def _length(facts: FileFacts, name: str) -> int:
    value = facts.metadata.get(f"{facts.info.architecture}.{name}")
    return value if isinstance(value, int) and value > 0 else 0


def _capabilities(facts: FileFacts, senses: Senses) -> list[Capability]:
    if facts.only_embeds:
        return ["embedding"]
    optional: dict[Capability, bool] = {
        "tools": bool(facts.chat_template),
        "insert": facts.info.has_fim,
        "thinking": reasoning_tags_of(facts.chat_template, "").has_reasoning,
        "vision": senses.sees,
        "audio": senses.hears,
    }
    return ["completion", *(name for name, is_there in optional.items() if is_there)]


def _modelfile(name: str, recipe: Recipe) -> str:
    texts = {"TEMPLATE": recipe.template, "SYSTEM": recipe.system, "LICENSE": recipe.license}
    lines = [
        f"FROM {recipe.base or name}",
        *(f'{word} """{text}"""' for word, text in texts.items() if text),
        *(f"PARAMETER {key} {json.dumps(value, ensure_ascii=False)}" for key, value in _each(recipe)),
        *(f'MESSAGE {message["role"]} """{message["content"]}"""' for message in recipe.messages),
    ]
    return "\n".join(lines) + "\n"


def _parameters(facts: FileFacts, recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a recipe, then what the file is sampled with besides."""
    yield from _each(recipe)
    for name, value in facts.sampling.stated.items():
        if (http_name := HTTP_NAMES.get(name, name)) not in recipe.parameters:
            yield http_name, value


def _each(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    for name, value in recipe.parameters.items():
        for item in value if isinstance(value, list) else [value]:
            yield name, item
