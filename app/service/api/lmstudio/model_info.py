"""Models as LM Studio's SDK describes them, and what both its SDK and its REST API say of a file.

Owns these fields. Knows nothing of HTTP. Source: lmstudio-js 2.0.0, `modelInfoBaseSchema`, `llmInstanceInfoSchema`.
"""

from __future__ import annotations

import time
from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from app.library.local.model_files import ModelRef
from app.service.models.model_catalog import FileFacts
from app.service.models.senses import Senses
from app.service.models.served_model import ServedModel

Domain: TypeAlias = Literal["embedding", "llm"]

_UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "K"))


class SdkQuantization(TypedDict):
    """A quantization type with its whole bits a weight."""

    name: str
    bits: int


class SdkModelInfo(TypedDict):
    """A model; what an `embedding` one has not, is left out. `path` is relative to the models folder."""

    type: Domain
    modelKey: str
    format: Literal["gguf"]
    displayName: str
    publisher: str
    path: str
    sizeBytes: int
    indexedModelIdentifier: str
    deviceIdentifier: None
    paramsString: str
    architecture: str
    quantization: SdkQuantization
    maxContextLength: int
    vision: NotRequired[bool]
    trainedForToolUse: NotRequired[bool]


class SdkInstanceInfo(SdkModelInfo):
    """A loaded model. An instance is known by the id of its model: each has one at most."""

    identifier: str
    instanceReference: str
    ttlMs: int | None
    lastUsedTime: int | None
    contextLength: int


def domain_of(facts: FileFacts) -> Domain:
    """Return what a model is for: those that write can embed too."""
    return "embedding" if facts.only_embeds else "llm"


def publisher_of(ref: ModelRef) -> str:
    """Return who published a model, as far as its folder says."""
    return ref.repo.partition("/")[0] or "localllm"


def path_of(ref: ModelRef) -> str:
    """Return the path of a model in the models folder, without that folder."""
    return "/".join(filter(None, (ref.repo, ref.path.name)))


def display_name(ref: ModelRef, facts: FileFacts) -> str:
    """Return the name for people."""
    return facts.info.name or ref.path.stem


def parameters_text(facts: FileFacts) -> str:
    """Return the number of parameters in LM Studio's way: 7B, 1.5B, 135M."""
    count = facts.info.n_parameters
    unit, letter = next(((unit, letter) for unit, letter in _UNITS if count >= unit), (1, ""))
    value = count / unit
    return f"{value:.1f}".removesuffix(".0") + letter if value < 10 else f"{value:.0f}{letter}"


def model_info(ref: ModelRef, facts: FileFacts, domain: Domain, senses: Senses) -> SdkModelInfo:
    """Return the description of a model, which has `senses`."""
    info: SdkModelInfo = {
        "type": domain,
        "modelKey": ref.id,
        "format": "gguf",
        "displayName": display_name(ref, facts),
        "publisher": publisher_of(ref),
        "path": path_of(ref),
        "sizeBytes": facts.info.file_bytes,
        "indexedModelIdentifier": path_of(ref),
        "deviceIdentifier": None,
        "paramsString": parameters_text(facts),
        "architecture": facts.info.architecture,
        "quantization": {"name": facts.info.file_type, "bits": round(facts.info.bits_per_weight)},
        "maxContextLength": facts.info.n_ctx_train,
    }
    if domain == "llm":
        info |= {"vision": senses.sees, "trainedForToolUse": facts.info.has_tools}
    return info


def instance_info(model: ServedModel, facts: FileFacts, domain: Domain, identifier: str = "") -> SdkInstanceInfo:
    """Return the description of a loaded model, under the name `identifier` that its client gave it, if any."""
    loaded, expires_s = model.status.facts, model.keep_alive.expires_s
    idle_s = time.monotonic() - model.engine.last_used_s
    instance: Any = {
        **model_info(model.ref, facts, domain, model.senses),
        "identifier": identifier or model.ref.id,
        "instanceReference": model.ref.id,
        "ttlMs": None if expires_s is None else max(0, round((expires_s - time.time()) * 1000)),
        "lastUsedTime": round((time.time() - idle_s) * 1000),
        "contextLength": loaded.n_ctx if loaded else facts.info.n_ctx_train,
    }
    return instance  # type: ignore[no-any-return]  # a union of TypedDicts has no type of its own
