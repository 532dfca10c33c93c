"""/metrics for Prometheus, under our names and llama-server's, and temporary keys, whose requests are counted.

A program that starts another one, such as `localllm launch`, gives it such a key and learns what it used.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from fastapi import Request
from starlette.responses import PlainTextResponse

from app.engine.loop.counters import Histogram
from app.engine.messages import EngineMetrics
from app.protocol.status import MeteredKey, MeteredUsage
from app.service.api.app_state import app_state
from app.service.api.native.status import error_body
from app.service.http.errors import RefusedError
from app.service.http.routing import Router, errors
from app.service.http.streaming import DONE_EVENTS, EventStream, JsonResponse

router = Router()

_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class _Metric:
    """A metric under each of its names: a counter where the first ends in `_total`, else a gauge."""

    names: tuple[str, ...]
    help: str
    value: Callable[[EngineMetrics], float]


# llama-server's names: its README @ the llama.cpp vendored in llama-cpp-python 0.3.36.
_METRICS = (
    _Metric(
        ("localllm_prompt_tokens_computed_total", "llamacpp:prompt_tokens_total"),
        "Prompt tokens that were computed.",
        lambda metrics: metrics.counters.n_prompt_tokens - metrics.counters.n_cached_tokens,
    ),
    _Metric(
        ("localllm_prompt_tokens_cached_total",),
        "Prompt tokens that were in the cache.",
        lambda metrics: metrics.counters.n_cached_tokens,
    ),
    _Metric(
        ("localllm_prefill_seconds_total", "llamacpp:prompt_seconds_total"),
        "Seconds from a slot to the first token, over all answers.",
        lambda metrics: metrics.counters.prefill_s,
    ),
    _Metric(
        ("localllm_prefill_tokens_per_second", "llamacpp:prompt_tokens_seconds"),
        "Mean rate of prompts.",
        lambda metrics: metrics.counters.prefill_rate,
    ),
    _Metric(
        ("localllm_output_tokens_total", "llamacpp:tokens_predicted_total"),
        "Output tokens.",
        lambda metrics: metrics.counters.n_decode_tokens,
    ),
    _Metric(
        ("localllm_decode_seconds_total", "llamacpp:tokens_predicted_seconds_total"),
        "Seconds between outputs, over all answers.",
        lambda metrics: metrics.counters.inter_token_s.total,
    ),
    _Metric(
        ("localllm_decode_tokens_per_second", "llamacpp:predicted_tokens_seconds"),
        "Mean rate that an answer got.",
        lambda metrics: metrics.counters.decode_rate,
    ),
    _Metric(
        ("localllm_requests_running", "llamacpp:requests_processing"),
        "Answers in progress.",
        lambda metrics: metrics.occupancy.n_running,
    ),
    _Metric(
        ("localllm_requests_waiting", "llamacpp:requests_deferred"),
        "Requests that wait for a slot.",
        lambda metrics: metrics.occupancy.n_waiting,
    ),
    _Metric(
        ("localllm_steps_total", "llamacpp:n_decode_total"),
        "Batches that were computed.",
        lambda metrics: metrics.counters.n_steps,
    ),
    _Metric(
        ("localllm_draft_tokens_total", "llamacpp:spec_decode_num_draft_tokens_total"),
        "Draft tokens that were verified.",
        lambda metrics: metrics.counters.n_drafted_tokens,
    ),
    _Metric(
        ("localllm_draft_tokens_accepted_total", "llamacpp:spec_decode_num_accepted_tokens_total"),
        "Draft tokens that were accepted.",
        lambda metrics: metrics.counters.n_accepted_tokens,
    ),
    _Metric(("localllm_answers_total",), "Answers that have ended.", lambda metrics: metrics.counters.n_finished),
    _Metric(("localllm_cache_cells",), "Cells of the cache.", lambda metrics: metrics.occupancy.n_cells),
    _Metric(("localllm_cache_cells_used",), "Cells that hold a token.", lambda metrics: metrics.occupancy.n_cells_used),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[EngineMetrics], Histogram]], ...] = (
    (
        "localllm_first_token_seconds",
        "Waits for the first token, queue included.",
        lambda metrics: metrics.counters.first_token_s,
    ),
    (
        "localllm_inter_token_seconds",
        "Waits from one output to the next.",
        lambda metrics: metrics.counters.inter_token_s,
    ),
)


@router.get("/metrics")
async def metrics(request: Request) -> PlainTextResponse:
    """The metrics of every engine, by the label `model`: of several names of one file, the one that was used first."""
    found = {model_id: await engine.metrics() for model_id, engine in app_state(request).models.engines.items()}
    text = prometheus_text({model_id: each for model_id, each in found.items() if each})
    return PlainTextResponse(text, media_type=_MEDIA_TYPE)


def prometheus_text(by_model: Mapping[str, EngineMetrics]) -> str:
    """Return the metrics of each model (by id) in Prometheus' text format, version 0.0.4."""
    lines: list[str] = []
    for metric in _METRICS:
        kind = "counter" if metric.names[0].endswith("_total") else "gauge"
        for name in metric.names:
            lines += _head(name, kind, metric.help)
            lines += (f"{name}{{{_label(model)}}} {metric.value(engine)}" for model, engine in by_model.items())
    for name, description, histogram_of in _HISTOGRAMS:
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


@router.get("/api/localllm/metered-keys/{key_id}", openapi_extra=errors(404))
async def key_usage(request: Request, key_id: str) -> JsonResponse[MeteredUsage]:
    """What the requests with a key used so far."""
    meter = app_state(request).metered_keys.of_id(key_id)
    if meter is None:
        raise RefusedError(404, "not_found", "There is no such key.", "It ends with the stream that created it.")
    return JsonResponse(meter.usage)
