"""Models as Ollama describes them: in lists, one by one (/api/show), and as a Modelfile.

Owns these fields, and how a recipe's values are quoted. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, NotRequired, TypeAlias

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.common.answer_text import NO_REASONING, reasoning_tags_of
from app.library.local.model_files import ModelRef
from app.library.local.recipe import Recipe
from app.service.api.ollama.responses import rfc3339_time
from app.service.models.model_file import FileFacts, Senses
from app.service.models.served_model import ServedModel

_NAME_WIDTH = 30  # source: Ollama's ShowHandler
_FOREVER = "9999-12-31T23:59:59Z"
_UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "K"))


Capability: TypeAlias = Literal["audio", "completion", "embedding", "insert", "thinking", "tools", "vision"]


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


def list_entry(ref: ModelRef, facts: FileFacts, recipe: Recipe, senses: Senses) -> ModelEntry:
    """Return the entry of a model in a list. `digest` identifies the file; it is not the hash of its bytes."""
    return {
        **_entry(ref, facts, facts.info.file_bytes),
        "modified_at": rfc3339_time(facts.modified_s),
        "capabilities": _capabilities(_with_recipe(facts, recipe), senses),
    }


def running_entry(model: ServedModel, facts: FileFacts) -> RunningEntry:
    """Return the entry of a loaded model."""
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
    metadata = dict(facts.metadata)
    if model is not None and model.status.facts is not None:
        metadata[f"{facts.info.architecture}.context_length"] = model.status.facts.n_ctx
    response: ShowResponse = {
        "modelfile": _modelfile(ref.id, recipe),
        "parameters": _parameters(recipe),
        "template": f"{_hints(capabilities)}{facts.chat_template}",
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
    """Return the facts of a model that was made with `recipe`."""
    return replace(facts, chat_template=recipe.template or facts.chat_template)


def _entry(ref: ModelRef, facts: FileFacts, n_bytes: int) -> _Entry:
    return {"name": ref.id, "model": ref.id, "size": n_bytes, "digest": facts.identity, "details": _details(facts)}


def _details(facts: FileFacts, parent: str = "") -> ModelDetails:
    """Return the short facts. Clients read `<family>.context_length`, so the family is the architecture."""
    info = facts.info
    details: ModelDetails = {
        "parent_model": parent,
        "format": "gguf",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": _short(info.n_parameters),
        "quantization_level": info.file_type,
    }
    if n_ctx := _length(facts, "context_length"):
        details["context_length"] = n_ctx
    if n_dimensions := _length(facts, "embedding_length"):
        details["embedding_length"] = n_dimensions
    return details


def _length(facts: FileFacts, name: str) -> int:
    """Return a length of the architecture, 0 for one that the file does not give."""
    value = facts.metadata.get(f"{facts.info.architecture}.{name}")
    return value if isinstance(value, int) and value > 0 else 0


def _capabilities(facts: FileFacts, senses: Senses) -> list[Capability]:
    if facts.only_embeds:
        return ["embedding"]
    optional: dict[Capability, bool] = {
        "tools": bool(facts.chat_template),
        "insert": facts.info.has_fim,
        "thinking": reasoning_tags_of(facts.chat_template, "") != NO_REASONING,
        "vision": senses.sees,
        "audio": senses.hears,
    }
    return ["completion", *(name for name, is_there in optional.items() if is_there)]


def _hints(capabilities: list[Capability]) -> str:
    """Return a comment for the template with the words that clients search templates for."""
    words: dict[Capability, str] = {"tools": "tools", "insert": ".Suffix"}
    found = [word for name, word in words.items() if name in capabilities]
    return f"{{# {' '.join(found)} #}}" if found else ""


def _short(count: int) -> str:
    """Return a count as Ollama shortens it: 7.6B, 494.03M."""
    unit, name = next(((unit, name) for unit, name in _UNITS if count >= unit), (1.0, ""))
    return f"{count / unit:.1f}{name}" if name == "B" else f"{count / unit:.2f}{name}"


def _parameters(recipe: Recipe) -> str:
    """Return a line for each parameter, and for each of a list's values."""
    return "\n".join(f"{name:<{_NAME_WIDTH}} {json.dumps(value, ensure_ascii=False)}" for name, value in _each(recipe))


def _modelfile(name: str, recipe: Recipe) -> str:
    """Return the Modelfile that would make the model `name` again."""
    texts = {"TEMPLATE": recipe.template, "SYSTEM": recipe.system, "LICENSE": recipe.license}
    lines = [
        f"FROM {recipe.base or name}",
        *(f'{word} """{text}"""' for word, text in texts.items() if text),
        *(f"PARAMETER {key} {json.dumps(value, ensure_ascii=False)}" for key, value in _each(recipe)),
        *(f'MESSAGE {message["role"]} """{message["content"]}"""' for message in recipe.messages),
    ]
    return "\n".join(lines) + "\n"


def _each(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    for name, value in recipe.parameters.items():
        for item in value if isinstance(value, list) else [value]:
            yield name, item
