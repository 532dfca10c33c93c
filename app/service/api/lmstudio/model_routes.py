"""Models as LM Studio describes, loads and unloads them in its SDK and its REST API, and the routes of /api/v1/models.

Options given at loading last until the model is unloaded. Source: LM Studio's documentation of its REST API, version
0.4 (list, load, unload, download, download-status); lmstudio-js 2.0.0, `modelInfoBaseSchema`, `llmInstanceInfoSchema`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import Field, NonNegativeFloat, NonNegativeInt, StrictBool, StrictInt, StrictStr
from starlette.requests import Request
from typing_extensions import TypedDict

from app.common.answer_text import reasoning_tags_of
from app.engine.messages import EngineConfig
from app.library.local.model_files import ModelRef
from app.library.local.resolve import UnknownModelError
from app.options.jobs import PullOptions
from app.protocol.errors import RequestError
from app.protocol.job import Job
from app.service.api.app_state import app_state, model_of, unload
from app.service.api.fields import Body, WithWarnings
from app.service.api.lmstudio.sdk_requests import change_of_loading
from app.service.generation.thinking import Thinking
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse, while_connected
from app.service.models.manager import ModelManager
from app.service.models.model_file import FileFacts, Senses
from app.service.models.served_model import ServedModel

router = Router(prefix="/api/v1/models")

Domain: TypeAlias = Literal["embedding", "llm"]
SdkObject: TypeAlias = dict[str, Any]  # of a websocket
ReasoningOption: TypeAlias = Literal["off", "on", "low", "medium", "high"]
Name = Annotated[StrictStr, Field(min_length=1, max_length=1024, pattern=r"^[^\x00]+$")]
_UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "K"))
_PROGRESS_INTERVAL_S = 0.1
_HUB = "https://huggingface.co/"
_JOB_PREFIX = "job_"
# Under the keys of the SDK's configuration.
_OPTIONS = {
    "context_length": "llm.load.contextLength",
    "eval_batch_size": "llm.load.llama.evalBatchSize",
    "flash_attention": "flash_attention",
    "num_experts": "num_experts",
    "offload_kv_cache_to_gpu": "offload_kv_cache_to_gpu",
}


def domain_of(facts: FileFacts) -> Domain:
    return "embedding" if facts.only_embeds else "llm"


def publisher_of(ref: ModelRef) -> str:
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


def model_info(ref: ModelRef, facts: FileFacts, domain: Domain, senses: Senses) -> SdkObject:
    """Return the description of a model for the SDK; `path` is relative to the models folder, `bits` are whole."""
    info: SdkObject = {
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


def instance_info(model: ServedModel, facts: FileFacts, domain: Domain, identifier: str = "") -> SdkObject:
    """Return the description of a loaded model, under the name `identifier` that its client gave it, if any. Each model
    has one instance at most, which is known by its id."""
    loaded, expires_s = model.status.facts, model.keep_alive.expires_s
    idle_s = time.monotonic() - model.engine.last_used_s
    return {
        **model_info(model.ref, facts, domain, model.senses),
        "identifier": identifier or model.ref.id,
        "instanceReference": model.ref.id,
        "ttlMs": None if expires_s is None else max(0, round((expires_s - time.time()) * 1000)),
        "lastUsedTime": round((time.time() - idle_s) * 1000),
        "contextLength": loaded.n_ctx if loaded else facts.info.n_ctx_train,
    }


async def begin_loading(
    models: ModelManager, model: ServedModel, change: Callable[[EngineConfig], EngineConfig] | None
) -> None:
    """Begin to load `model`, with its options changed. Raises RequestError where that would end running answers."""
    config = model.engine.config
    if change is None or change(config) == config:  # then one that is loaded stays as it is
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


class LoadBody(Body):
    """A model, and options that hold until it is unloaded."""

    model: StrictStr
    context_length: StrictInt | None = None
    eval_batch_size: StrictInt | None = None
    flash_attention: StrictBool | None = None
    num_experts: StrictInt | None = None
    offload_kv_cache_to_gpu: StrictBool | None = None
    echo_load_config: StrictBool = False

    def options(self) -> dict[str, Any]:
        given = {key: getattr(self, name) for name, key in _OPTIONS.items()}
        return {key: value for key, value in given.items() if value is not None}


class UnloadBody(Body):
    """The instance of a model, which is known by the model's id."""

    instance_id: StrictStr


class DownloadBody(Body):
    """A repository of the hub, or its address, and which of its quantizations."""

    model: Name
    quantization: Name | None = None

    @property
    def reference(self) -> str:
        repo = self.model.removeprefix(_HUB).strip("/")
        return f"{repo}:{self.quantization}" if self.quantization else repo


class Quantization(TypedDict):
    name: str
    bits_per_weight: NonNegativeFloat


class LoadConfig(TypedDict):
    """The options of a loaded model; an embedding model has the first only."""

    context_length: NonNegativeInt
    eval_batch_size: NotRequired[NonNegativeInt]
    parallel: NotRequired[NonNegativeInt]
    offload_kv_cache_to_gpu: NotRequired[bool]


class LoadedInstance(TypedDict):
    id: str
    config: LoadConfig


class Reasoning(TypedDict):
    allowed_options: list[ReasoningOption]
    default: ReasoningOption


class Capabilities(TypedDict):
    vision: bool
    trained_for_tool_use: bool
    reasoning: NotRequired[Reasoning]


class ModelEntry(TypedDict):
    """A model; the last three fields are absent of an embedding one."""

    type: Domain
    publisher: str
    key: str
    display_name: str
    quantization: Quantization
    size_bytes: NonNegativeInt
    params_string: str
    loaded_instances: list[LoadedInstance]
    max_context_length: NonNegativeInt
    format: Literal["gguf"]
    architecture: NotRequired[str]
    capabilities: NotRequired[Capabilities]
    description: NotRequired[None]


class ModelEntries(TypedDict):
    models: list[ModelEntry]


class LoadResponse(WithWarnings):
    type: Domain
    instance_id: str
    load_time_seconds: NonNegativeFloat
    status: Literal["loaded"]
    load_config: NotRequired[LoadConfig]


class UnloadResponse(TypedDict):
    instance_id: str


class Download(TypedDict):
    """A download; which fields there are depends on its status."""

    status: Literal["downloading", "paused", "completed", "failed", "already_downloaded"]
    job_id: NotRequired[str]
    bytes_per_second: NotRequired[NonNegativeFloat]
    estimated_completion: NotRequired[str]
    completed_at: NotRequired[str]
    total_size_bytes: NotRequired[NonNegativeInt]
    downloaded_bytes: NotRequired[NonNegativeInt]
    started_at: NotRequired[str]


@router.get("")
async def list_models(request: Request) -> JsonResponse[ModelEntries]:
    """Every model that a request may name, without files that fail validation."""
    models = app_state(request).models
    described = await models.catalog.list_with_facts()
    return JsonResponse({"models": [_entry(ref, facts, models.serving(ref)) for ref, facts in described]})


@router.post("/load", refusals=errors(404))
async def load(request: Request, body: LoadBody) -> JsonResponse[LoadResponse]:
    """Load a model, and answer once it is loaded."""
    model = await model_of(request, body.model)
    change, ignored = change_of_loading(body.options())
    model.record.ignored = (*model.record.ignored, *ignored)

    async def answer() -> LoadResponse:
        started_s = time.monotonic()
        await begin_loading(app_state(request).models, model, change)
        async with aclosing(loading(model)) as progress:
            async for _ in progress:
                pass
        facts = await app_state(request).models.catalog.facts(model.ref)
        response: LoadResponse = {
            "type": domain_of(facts),
            "instance_id": model.ref.id,
            "load_time_seconds": round(time.monotonic() - started_s, 3),
            "status": "loaded",
        }
        if body.echo_load_config:
            response["load_config"] = load_config(model, domain_of(facts))
        if model.record.warnings:
            response["warnings"] = list(model.record.warnings)
        return response

    return await while_connected(request, answer())


@router.post("/unload", refusals=errors(404))
async def unload_model(request: Request, body: UnloadBody) -> JsonResponse[UnloadResponse]:
    """Unload an idle model until its next use."""
    models, instances = app_state(request).models, app_state(request).instances
    model = models.serving(await models.find(instances.get(body.instance_id, body.instance_id)))
    if model is None or not model.is_loaded:
        raise UnknownModelError(f"{body.instance_id[:80]} is not loaded.", "Nothing has to be unloaded.")
    unload(model)
    return JsonResponse({"instance_id": body.instance_id})


@router.post("/download", refusals=errors(404, 409, 429, 502))
async def download(request: Request, body: DownloadBody) -> JsonResponse[Download]:
    """Begin to download a model, unless it is here; the download goes on without the client."""
    state = app_state(request)
    try:
        await state.models.find(body.reference)
    except UnknownModelError:
        job = await state.jobs.start(PullOptions(reference=body.reference))
        return JsonResponse(_download(job))
    return JsonResponse({"status": "already_downloaded"})


@router.get("/download/status/{job_id}", refusals=errors(404))
async def download_status(request: Request, job_id: str) -> JsonResponse[Download]:
    """How far a download is."""
    return JsonResponse(_download(app_state(request).jobs.find(job_id.removeprefix(_JOB_PREFIX))))


def _entry(ref: ModelRef, facts: FileFacts, model: ServedModel | None) -> ModelEntry:
    senses = facts.senses if model is None else model.senses
    domain = domain_of(facts)
    is_loaded = model is not None and model.status.state == "ready"
    entry: ModelEntry = {
        "type": domain,
        "publisher": publisher_of(ref),
        "key": ref.id,
        "display_name": display_name(ref, facts),
        "quantization": {"name": facts.info.file_type, "bits_per_weight": facts.info.bits_per_weight},
        "size_bytes": facts.info.file_bytes,
        "params_string": parameters_text(facts),
        "loaded_instances": [{"id": ref.id, "config": load_config(model, domain)}] if model and is_loaded else [],
        "max_context_length": facts.info.n_ctx_train,
        "format": "gguf",
    }
    if domain == "llm":
        entry["architecture"], entry["description"] = facts.info.architecture, None
        entry["capabilities"] = {"vision": senses.sees, "trained_for_tool_use": facts.info.has_tools}
        if reasoning_tags_of(facts.chat_template, "").has_reasoning:
            entry["capabilities"]["reasoning"] = _reasoning(facts.chat_template)
    return entry


def load_config(model: ServedModel, domain: Domain) -> LoadConfig:
    ready = model.status.facts
    assert ready is not None, "only a loaded model has options"
    config: LoadConfig = {"context_length": ready.n_ctx}
    if domain == "llm":
        config["eval_batch_size"], config["parallel"] = ready.n_batch, ready.n_sequences
        config["offload_kv_cache_to_gpu"] = not ready.is_on_host
    return config


def _reasoning(template: str) -> Reasoning:
    # any model can be asked not to think; how much to think only where its template knows levels
    low, high = (Thinking(effort=effort).for_template(template) for effort in ("low", "high"))
    if low != high:
        return {"allowed_options": ["off", "low", "medium", "high"], "default": "medium"}
    return {"allowed_options": ["off", "on"], "default": "on"}


_STATUSES: Mapping[str, Literal["downloading", "paused", "completed", "failed"]] = {
    "queued": "downloading",
    "running": "downloading",
    "interrupted": "paused",  # it goes on from there when it is begun again
    "done": "completed",
}


def _download(job: Job) -> Download:
    status, started_s = _STATUSES.get(job.state, "failed"), job.started_s or job.created_s
    found: Download = {"job_id": f"{_JOB_PREFIX}{job.id}", "status": status, "started_at": _iso_time(started_s)}
    if job.n_bytes is not None:
        found["total_size_bytes"] = job.n_bytes
    if job.n_done_bytes is not None:
        found["downloaded_bytes"] = job.n_done_bytes
    if status == "downloading" and job.bytes_per_s is not None:
        found["bytes_per_second"] = job.bytes_per_s
    if status == "downloading" and job.remaining_s is not None:
        found["estimated_completion"] = _iso_time(time.time() + job.remaining_s)
    if status == "completed" and job.ended_s is not None:
        found["completed_at"] = _iso_time(job.ended_s)
    return found


def _iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
