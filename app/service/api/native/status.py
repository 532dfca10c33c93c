"""Routes of the service itself: its status and metrics, loading, who attends it, prefixes, schemas, temporary keys.

A program that starts another one, such as `localllm launch`, gives it such a key and learns what it used.
Only our own routes have paths of this machine in their errors: the caller gave them.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Literal

import psutil
from pydantic import Field, StrictStr
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from typing_extensions import TypedDict

from app import __version__
from app.common.service_identity import CHALLENGE_CHARACTERS, IDENTITY_PATH, STOP_PATH
from app.engine.grammar.json_grammar import schema_grammar
from app.engine.loop.counters import Counters, Histogram
from app.engine.messages import EngineMetrics, UnfitPolicy
from app.engine.project_texts import corpus_name, keep_texts
from app.protocol.errors import RequestError
from app.protocol.sampling import SamplingOptions
from app.protocol.status import EngineCounters, LatencySummary, MeteredKey, MeteredUsage, ModelStatus, ServiceStatus
from app.service.api.app_state import app_state
from app.service.api.fields import Body
from app.service.api.text_request import MAX_CORPUS_NAME
from app.service.http.access_log import record_of
from app.service.http.errors import RefusedError, openai_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import DONE_EVENTS, EventStream, JsonResponse
from app.service.models.manager import ModelManager
from app.service.models.served_model import ServedModel
from app.service.pool.memory import resident_bytes
from app.settings.private_files import CORPORA, conversation_name, remove_prefixes
from app.settings.settings import service_digest
from quantizer.system.errors import ErrorInfo

router = Router()
_MAX_KEYS = 10_000
_MAX_TEXTS = 1_000
_CHALLENGE = re.compile(rf"[0-9a-f]{{{CHALLENGE_CHARACTERS}}}")
error_body = partial(openai_error, hide_paths=False)


class LoadBody(Body):
    """`model` is a name or a path; empty is the default model. `when_unfit` null takes the service's setting."""

    model: str = ""
    when_unfit: UnfitPolicy | None = None


class StayBody(Body):
    """The event until which the service outlives the program that started it."""

    until: Literal["jobs-end"]


class DraftTextsBody(Body):
    """Texts of files that a conversation read; the other fields are those of its requests."""

    draft_corpus: Annotated[StrictStr, Field(min_length=1, max_length=MAX_CORPUS_NAME)]
    texts: Annotated[list[StrictStr], Field(max_length=_MAX_TEXTS)]
    prompt_cache_key: StrictStr | None = None


class KeptTexts(TypedDict):
    n_kept: int


class ForgetPrefixesBody(Body):
    """The conversations, by the `prompt_cache_key` of their requests."""

    prompt_cache_keys: Annotated[list[StrictStr], Field(max_length=_MAX_KEYS)]


class ForgottenPrefixes(TypedDict):
    n_files: int
    n_bytes: int


class SchemaBody(Body):
    json_schema: Annotated[Any, Field(alias="schema")]


class SchemaSize(TypedDict):
    n_grammar_bytes: int


class ModelId(TypedDict):
    id: str


class IdentityProof(TypedDict):
    proof: str


class StopBody(Body):
    """A challenge of the client's choice, and its proof that it may end the service. With `if_unused` a service that
    somebody uses goes on."""

    challenge: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{CHALLENGE_CHARACTERS}}}$")]
    proof: str
    if_unused: bool = False


class Stopping(TypedDict):
    is_stopping: bool
    process_id: int


class StaysUntil(TypedDict):
    """The event until which the service outlives the program that started it, empty for none."""

    stays_until: Literal["", "jobs-end"]


class EndedThought(TypedDict):
    id: str


class Attendance(TypedDict):
    n_attending: int


@router.get("/api/localllm/status")
async def status(request: Request) -> JsonResponse[ServiceStatus]:
    """The service's version and its models, each with the occupancy and the counters of its engine.

    Both are null while the engine loads, has died or does not respond for a second.
    """
    models = app_state(request).models
    return JsonResponse(
        ServiceStatus(
            version=__version__,
            default_model=models.default.ref.id,
            stays_until=app_state(request).shutdown_policy.stays_until,
            n_attending=app_state(request).shutdown_policy.n_attending,
            is_unused=app_state(request).shutdown_policy.is_unused,
            settings_digest=service_digest(models.settings),
            models=tuple(await asyncio.gather(*(_status_of(models, model) for model in models.opened))),
            answers=models.answers.newest_first,
            answers_since_s=models.answers.since_s,
        )
    )


@router.get(IDENTITY_PATH, refusals=errors(400))
async def identity(request: Request, challenge: str = "") -> JsonResponse[IdentityProof]:
    """Prove to a client of the same user and data folder that this is its service.

    The challenge is 64 hexadecimal digits of the client's choice; the proof is empty where the service has no key.
    """
    if not _CHALLENGE.fullmatch(challenge):
        raise RequestError("`challenge` must be 64 hexadecimal digits.", "Choose a new one for each connection.")
    own = app_state(request).identity
    host, port = request.scope["server"]
    return JsonResponse({"proof": own.proof("this is the service", challenge, (host, port))})


@router.post(STOP_PATH, refusals=errors(403))
async def stop(request: Request, body: StopBody) -> JsonResponse[Stopping]:
    """End the service once the running answers are complete, for a client of the same user and data folder."""
    state = app_state(request)
    if not state.identity.is_proof(body.proof, "end the service", body.challenge):
        cause = "Only the user of this service, with the same data folder, may end it."
        raise RefusedError(403, "not_the_owner", cause, "Run `localllm stop` as that user.")
    is_stopping = state.shutdown_policy.is_unused or not body.if_unused
    if is_stopping:
        state.shutdown_policy.end()
    return JsonResponse({"is_stopping": is_stopping, "process_id": os.getpid()})


@router.post("/api/localllm/load", refusals=errors(404))
async def load(request: Request, body: LoadBody) -> JsonResponse[ModelId]:
    """Begin to load a model; /status reports the progress."""
    model = await app_state(request).models.load(body.model, body.when_unfit)
    return JsonResponse({"id": model.ref.id})


@router.get("/api/localllm/attend")
async def attend(request: Request) -> EventStream[Attendance]:
    """Keep a service that the TUI or CLI started alive until this stream is closed, also without that program."""

    async def events() -> AsyncGenerator[Attendance, None]:
        async with aclosing(app_state(request).shutdown_policy.attend()) as counts:
            async for n_attending in counts:
                yield {"n_attending": n_attending}

    return EventStream(events(), error_body, DONE_EVENTS)


@router.post("/api/localllm/stay")
async def stay(request: Request, body: StayBody) -> JsonResponse[StaysUntil]:  # noqa: ARG001  # checked is enough
    """Keep a service that the TUI or CLI started alive until its last job has ended and no stream is open."""
    policy = app_state(request).shutdown_policy
    policy.stay()
    return JsonResponse({"stays_until": policy.stays_until})


@router.post("/api/localllm/forget-prefixes")
async def forget_prefixes(request: Request, body: ForgetPrefixesBody) -> JsonResponse[ForgottenPrefixes]:
    """Remove the computed prefixes of conversations from the caches of all loaded models and from the disk."""
    models, keys = app_state(request).models, body.prompt_cache_keys
    names = tuple(map(conversation_name, keys))
    await asyncio.gather(*(engine.forget(names) for engine in models.engines.values()))
    files = await asyncio.to_thread(remove_prefixes, models.settings.cache_dir, keys)
    return JsonResponse({"n_files": len(files.paths), "n_bytes": files.n_bytes})


@router.post("/api/localllm/draft-texts")
async def keep_draft_texts(request: Request, body: DraftTextsBody) -> JsonResponse[KeptTexts]:
    """Keep texts on disk, in which drafts of answers to requests with the same `draft_corpus` and key are looked up.

    With the setting `draft_corpus` off none are kept.
    """
    settings, key = app_state(request).models.settings, body.prompt_cache_key
    if not settings.draft_corpus:
        return JsonResponse({"n_kept": 0})
    # Of the caller alone: how fast an answer comes tells what is in the texts.
    name = corpus_name(record_of(request.scope).owner, body.draft_corpus)
    conversation = conversation_name(key) if key else ""
    n_kept = await asyncio.to_thread(keep_texts, settings.cache_dir / CORPORA, name, conversation, body.texts)
    return JsonResponse({"n_kept": n_kept})


@router.post("/api/localllm/requests/{response_id}/end-thought", refusals=errors(404))
async def end_thought(request: Request, response_id: str) -> JsonResponse[EndedThought]:
    """End the reasoning in a running response of any dialect, by its id, so that its text begins.

    A response whose reasoning has ended goes on as it is.
    """
    if not app_state(request).models.end_thought(response_id):
        raise RefusedError(404, "not_found", "No response of that id is running.", "It has ended, or never began.")
    return JsonResponse({"id": response_id})


@router.post("/api/localllm/schema")
async def check_schema(request: Request, body: SchemaBody) -> JsonResponse[SchemaSize]:  # noqa: ARG001
    """Check whether answers can follow a JSON schema, before a question is asked."""
    grammar = SamplingOptions(grammar=schema_grammar(body.json_schema)).grammar
    return JsonResponse({"n_grammar_bytes": len(grammar.encode())})


async def _status_of(models: ModelManager, model: ServedModel) -> ModelStatus:
    """Return the status of a model; the figures of an engine appear under each name that uses it."""
    metrics = await model.engine.metrics() if model.is_loaded else None
    thinks = model.thinks and model.status.state == "ready"
    thinks_by_default = await model.template_probe.thinks_by_default(model.file, model.renderer) if thinks else None
    engine, pid = model.status, model.engine.worker_pid if model.is_loaded else None
    shared = [other.ref.id for other in models.sharing(model) if other.is_loaded] if model.is_loaded else []
    return ModelStatus(
        id=model.ref.id,
        state=engine.state,
        progress=engine.progress,
        load_left_s=engine.load_left_s,
        n_ctx=engine.facts.n_ctx if engine.facts else 0,
        notices=engine.notices,
        warnings=engine.warnings,
        plan=engine.plan,
        error=ErrorInfo.of(engine.error) if engine.error else None,
        n_running=model.engine.n_running if model.is_loaded else 0,
        worker_pid=pid,
        n_bytes=resident_bytes(pid),
        shares_with=tuple(shared),
        settings=engine.settings,
        sees=model.senses.sees,
        hears=model.senses.hears,
        takes_tools=model.takes_tools,
        thinks=model.thinks,
        thinks_by_default=thinks_by_default,
        can_grow=model.can_grow,
        sampling=model.file.sampling,
        occupancy=metrics.occupancy if metrics else None,
        threads=metrics.threads if metrics else None,
        counters=summarize(metrics.counters) if metrics else None,
    )


def summarize(counters: Counters) -> EngineCounters:
    """Return an engine's counters with shares and rates; all begin at 0 again with a new worker."""
    return EngineCounters(
        n_steps=counters.n_steps,
        busy_s=counters.busy_s,
        n_finished=counters.n_finished,
        n_prompt_tokens=counters.n_prompt_tokens,
        n_cached_tokens=counters.n_cached_tokens,
        n_read_ahead_tokens=counters.n_read_ahead_tokens,
        n_vain_tokens=counters.n_vain_tokens,
        cached_share=counters.cached_share,
        prefill_tokens_per_s=counters.prefill_rate,
        n_output_tokens=counters.n_decode_tokens,
        decode_tokens_per_s=counters.decode_rate,
        n_drafted_tokens=counters.n_drafted_tokens,
        n_accepted_tokens=counters.n_accepted_tokens,
        first_token_s=_latency(counters.first_token_s),
        inter_token_s=_latency(counters.inter_token_s),
    )


def _latency(histogram: Histogram) -> LatencySummary:
    return LatencySummary(
        n_samples=histogram.n_samples,
        p50=histogram.quantile(0.5),
        p95=histogram.quantile(0.95),
        total_s=histogram.total,
        buckets=tuple((None if math.isinf(bound) else bound, count) for bound, count in histogram.buckets()),
    )


_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


# llama-server's names of our metrics: its README @ the llama.cpp vendored in llama-cpp-python 0.3.36.
_THEIR_NAMES = {
    "localllm_prompt_tokens_computed_total": "llamacpp:prompt_tokens_total",
    "localllm_prompt_tokens_cached_total": "llamacpp:prompt_tokens_cached_total",
    "localllm_prefill_seconds_total": "llamacpp:prompt_seconds_total",
    "localllm_prefill_tokens_per_second": "llamacpp:prompt_tokens_seconds",
    "localllm_output_tokens_total": "llamacpp:tokens_predicted_total",
    "localllm_decode_seconds_total": "llamacpp:tokens_predicted_seconds_total",
    "localllm_decode_tokens_per_second": "llamacpp:predicted_tokens_seconds",
    "localllm_requests_running": "llamacpp:requests_processing",
    "localllm_requests_waiting": "llamacpp:requests_deferred",
    "localllm_steps_total": "llamacpp:n_decode_total",
    "localllm_draft_tokens_total": "llamacpp:spec_decode_num_draft_tokens_total",
    "localllm_draft_tokens_accepted_total": "llamacpp:spec_decode_num_accepted_tokens_total",
    "localllm_drafts_total": "llamacpp:spec_decode_num_drafts_total",
    "localllm_longest_sequence_tokens": "llamacpp:n_tokens_max",
    "localllm_slots_per_step": "llamacpp:n_busy_slots_per_decode",
}
# A counter where the name ends in `_total`, else a gauge.
_METRICS: Mapping[str, tuple[str, Callable[[EngineMetrics], float]]] = {
    "localllm_prompt_tokens_computed_total": (
        "Prompt tokens that were computed.",
        lambda of: of.counters.n_prompt_tokens - of.counters.n_cached_tokens,
    ),
    "localllm_prompt_tokens_cached_total": (
        "Prompt tokens that were in the cache.",
        lambda of: of.counters.n_cached_tokens,
    ),
    "localllm_prefill_seconds_total": (
        "Seconds from a slot to the first token, over all answers.",
        lambda of: of.counters.prefill_s,
    ),
    "localllm_prefill_tokens_per_second": ("Mean rate of prompts.", lambda of: of.counters.prefill_rate),
    "localllm_output_tokens_total": ("Output tokens.", lambda of: of.counters.n_decode_tokens),
    "localllm_decode_seconds_total": (
        "Seconds between outputs, over all answers.",
        lambda of: of.counters.inter_token_s.total,
    ),
    "localllm_decode_tokens_per_second": ("Mean rate that an answer got.", lambda of: of.counters.decode_rate),
    "localllm_requests_running": ("Answers in progress.", lambda of: of.occupancy.n_running),
    "localllm_requests_waiting": ("Requests that wait for a slot.", lambda of: of.occupancy.n_waiting),
    "localllm_steps_total": ("Batches that were computed.", lambda of: of.counters.n_steps),
    "localllm_draft_tokens_total": ("Draft tokens that were verified.", lambda of: of.counters.n_drafted_tokens),
    "localllm_draft_tokens_accepted_total": (
        "Draft tokens that were accepted.",
        lambda of: of.counters.n_accepted_tokens,
    ),
    "localllm_drafts_total": ("Drafts that were verified.", lambda of: of.counters.n_drafts),
    "localllm_longest_sequence_tokens": (
        "Most tokens of a prompt and its answer.",
        lambda of: of.counters.n_most_tokens,
    ),
    "localllm_slots_per_step": ("Mean number of answers in a batch.", lambda of: of.counters.slots_per_step),
    "localllm_read_ahead_tokens_total": (
        "Prompt tokens that were computed before a question was asked.",
        lambda of: of.counters.n_read_ahead_tokens,
    ),
    "localllm_read_ahead_vain_tokens_total": (
        "Those of them that no question began with.",
        lambda of: of.counters.n_vain_tokens,
    ),
    "localllm_answers_total": ("Answers that have ended.", lambda of: of.counters.n_finished),
    "localllm_cache_cells": ("Cells of the cache.", lambda of: of.occupancy.n_cells),
    "localllm_cache_cells_used": ("Cells that hold a token.", lambda of: of.occupancy.n_cells_used),
    "localllm_saved_state_bytes": (
        "Memory of chats that left the cells and can come back.",
        lambda of: of.occupancy.saved_bytes,
    ),
}
_HISTOGRAMS: Mapping[str, tuple[str, Callable[[EngineMetrics], Histogram]]] = {
    "localllm_first_token_seconds": (
        "Waits for the first token, queue included.",
        lambda of: of.counters.first_token_s,
    ),
    "localllm_inter_token_seconds": ("Waits from one output to the next.", lambda of: of.counters.inter_token_s),
}


@router.get("/metrics")
async def metrics(request: Request) -> PlainTextResponse:
    """The metrics of every engine, by the label `model`: of several names of one file, the one that was used first."""
    found = {model_id: await engine.metrics() for model_id, engine in app_state(request).models.engines.items()}
    text = prometheus_text({model_id: each for model_id, each in found.items() if each})
    started = {"Process-Start-Time-Unix": str(int(psutil.Process().create_time()))}  # llama-server's
    return PlainTextResponse(text, media_type=_MEDIA_TYPE, headers=started)


def prometheus_text(by_model: Mapping[str, EngineMetrics]) -> str:
    """Return the metrics of each model (by id) in Prometheus' text format, version 0.0.4."""
    lines: list[str] = []
    for own_name, (description, value_of) in _METRICS.items():
        kind = "counter" if own_name.endswith("_total") else "gauge"
        for name in filter(None, (own_name, _THEIR_NAMES.get(own_name))):
            lines += _head(name, kind, description)
            lines += (f"{name}{{{_label(model)}}} {value_of(engine)}" for model, engine in by_model.items())
    for name, (description, histogram_of) in _HISTOGRAMS.items():
        lines += _head(name, "histogram", description)
        for model, engine in by_model.items():
            lines += _histogram_lines(name, _label(model), histogram_of(engine))
    return "".join(f"{line}\n" for line in lines)


def _head(name: str, kind: str, description: str) -> Iterable[str]:
    return (f"# HELP {name} {description}", f"# TYPE {name} {kind}")


def _histogram_lines(name: str, label: str, histogram: Histogram) -> Iterator[str]:
    """Yield the buckets that are not empty, cumulated, and the one without a bound."""
    buckets = [(bound, count) for bound, count in histogram.buckets() if not math.isinf(bound)]
    n_so_far = accumulate(count for _, count in buckets)
    for (bound, _), count in zip(buckets, n_so_far, strict=True):
        yield f'{name}_bucket{{{label},le="{bound:.9g}"}} {count}'
    yield f'{name}_bucket{{{label},le="+Inf"}} {histogram.n_samples}'
    yield f"{name}_sum{{{label}}} {histogram.total}"
    yield f"{name}_count{{{label}}} {histogram.n_samples}"


def _label(model: str) -> str:
    escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'model="{escaped}"'


@router.post("/api/localllm/metered-keys")
async def open_key(request: Request) -> EventStream[MeteredKey]:
    """Create a key that may ask models until this stream is closed; its one event has it."""

    async def events() -> AsyncGenerator[MeteredKey, None]:
        state = app_state(request)
        with state.metered_keys.open() as key:
            yield key
            await state.shutdown_policy.closed()

    return EventStream(events(), error_body, DONE_EVENTS)


@router.get("/api/localllm/metered-keys/{key_id}", refusals=errors(404))
async def key_usage(request: Request, key_id: str) -> JsonResponse[MeteredUsage]:
    """What the requests with a key used so far."""
    meter = app_state(request).metered_keys.of_id(key_id)
    if meter is None:
        raise RefusedError(404, "not_found", "There is no such key.", "It ends with the stream that created it.")
    return JsonResponse(meter.usage)
