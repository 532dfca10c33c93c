"""Models as LM Studio describes them, and how its SDK and its REST API load and unload one.

Options given at loading last until the model is unloaded. Source: lmstudio-js 2.0.0, `modelInfoBaseSchema`,
`llmInstanceInfoSchema`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from app.engine.messages import EngineConfig
from app.library.local.model_files import ModelRef
from app.protocol.errors import RequestError
from app.service.models.manager import ModelManager
from app.service.models.model_catalog import FileFacts
from app.service.models.model_file import Senses
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
    return "/".join(filter(None, (ref.repo, ref.path.name)))


def display_name(ref: ModelRef, facts: FileFacts) -> str:
    return facts.info.name or ref.path.stem


def parameters_text(facts: FileFacts) -> str:
    """Return the number of parameters in LM Studio's way: 7B, 1.5B, 135M."""
    count = facts.info.n_parameters
    unit, letter = next(((unit, letter) for unit, letter in _UNITS if count >= unit), (1, ""))
    value = count / unit
    return f"{value:.1f}".removesuffix(".0") + letter if value < 10 else f"{value:.0f}{letter}"


def model_info(ref: ModelRef, facts: FileFacts, domain: Domain, senses: Senses) -> SdkModelInfo:
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


_PROGRESS_INTERVAL_S = 0.1


async def begin_loading(
    models: ModelManager, model: ServedModel, change: Callable[[EngineConfig], EngineConfig] | None
) -> None:
    """Begin to load `model`, with its options changed; one that is loaded so already stays as it is.

    Raises RequestError where loading it anew would end running answers.
    """
    config = model.engine.config
    if change is None or change(config) == config:
        model.load()
        return
    if model.engine.n_running or model.keep_alive.is_used:
        raise RequestError(f"{model.ref.id} is in use.", "Stop its answers, or wait for them.")
    await models.reload(model.ref.id, change, until_unloaded=True)


async def loading(model: ServedModel) -> AsyncGenerator[float, None]:
    """Yield the progress of loading `model` whenever it has grown, to its end. Raises the error of loading."""
    ready = asyncio.ensure_future(model.ready())
    last = -1.0
    try:
        while not ready.done():
            if (progress := model.engine.status.progress) > last:
                last = progress
                yield progress
            await asyncio.wait({ready}, timeout=_PROGRESS_INTERVAL_S)
        ready.result()
    finally:
        ready.cancel()


def unload(model: ServedModel) -> None:
    """Unload an idle model until its next use. Raises RequestError for one that is busy."""
    if model.is_busy:
        raise RequestError(f"{model.ref.id} is in use.", "Stop its answers, or wait for them.")
    model.keep_alive.release()
