"""/metrics: what engines did and hold, for Prometheus; llama-server's names stand beside ours.

Owns names and the text format. Knows nothing of how things were counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from fastapi import APIRouter, Request, Response
from starlette.responses import PlainTextResponse

from app.engine.loop.counters import Histogram
from app.engine.protocol.messages import EngineMetrics
from app.service.api.app_state import models_of
from app.service.http.openapi import gives

__all__ = ["prometheus_text", "router"]

router = APIRouter()

_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class _Metric:
    """A figure under each of its names."""

    names: tuple[str, ...]
    kind: Literal["counter", "gauge"]
    help: str
    value: Callable[[EngineMetrics], float]


# llama-server's names: its README @ the llama.cpp vendored in llama-cpp-python 0.3.36.
_METRICS = (
    _Metric(
        ("localllm_prompt_tokens_computed_total", "llamacpp:prompt_tokens_total"),
        "counter",
        "Prompt tokens that were computed.",
        lambda seen: seen.counters.n_prompt_tokens - seen.counters.n_cached_tokens,
    ),
    _Metric(
        ("localllm_prompt_tokens_cached_total",),
        "counter",
        "Prompt tokens that were in the cache.",
        lambda seen: seen.counters.n_cached_tokens,
    ),
    _Metric(
        ("localllm_prefill_seconds_total", "llamacpp:prompt_seconds_total"),
        "counter",
        "Seconds from a place to the first token, over all answers.",
        lambda seen: seen.counters.prefill_s,
    ),
    _Metric(
        ("localllm_prefill_tokens_per_second", "llamacpp:prompt_tokens_seconds"),
        "gauge",
        "Mean rate of prompts.",
        lambda seen: seen.counters.prefill_rate,
    ),
    _Metric(
        ("localllm_output_tokens_total", "llamacpp:tokens_predicted_total"),
        "counter",
        "Tokens that were said.",
        lambda seen: seen.counters.n_decode_tokens,
    ),
    _Metric(
        ("localllm_decode_seconds_total", "llamacpp:tokens_predicted_seconds_total"),
        "counter",
        "Seconds between outputs, over all answers.",
        lambda seen: seen.counters.inter_token_s.total,
    ),
    _Metric(
        ("localllm_decode_tokens_per_second", "llamacpp:predicted_tokens_seconds"),
        "gauge",
        "Mean rate that an answer got.",
        lambda seen: seen.counters.decode_rate,
    ),
    _Metric(
        ("localllm_requests_running", "llamacpp:requests_processing"),
        "gauge",
        "Answers that are under way.",
        lambda seen: seen.occupancy.n_running,
    ),
    _Metric(
        ("localllm_requests_waiting", "llamacpp:requests_deferred"),
        "gauge",
        "Requests that wait for a place.",
        lambda seen: seen.occupancy.n_waiting,
    ),
    _Metric(
        ("localllm_steps_total", "llamacpp:n_decode_total"),
        "counter",
        "Batches that were computed.",
        lambda seen: seen.counters.n_steps,
    ),
    _Metric(
        ("localllm_draft_tokens_total", "llamacpp:spec_decode_num_draft_tokens_total"),
        "counter",
        "Draft tokens that were verified.",
        lambda seen: seen.counters.n_drafted_tokens,
    ),
    _Metric(
        ("localllm_draft_tokens_accepted_total", "llamacpp:spec_decode_num_accepted_tokens_total"),
        "counter",
        "Draft tokens that were taken.",
        lambda seen: seen.counters.n_accepted_tokens,
    ),
    _Metric(("localllm_answers_total",), "counter", "Answers that have ended.", lambda seen: seen.counters.n_finished),
    _Metric(("localllm_cache_cells",), "gauge", "Cells of the cache.", lambda seen: seen.occupancy.n_cells),
    _Metric(
        ("localllm_cache_cells_used",), "gauge", "Cells that hold a token.", lambda seen: seen.occupancy.n_cells_used
    ),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[EngineMetrics], Histogram]], ...] = (
    (
        "localllm_first_token_seconds",
        "Waits for the first token, queue included.",
        lambda seen: seen.counters.first_token_s,
    ),
    (
        "localllm_inter_token_seconds",
        "Waits from one output to the next.",
        lambda seen: seen.counters.inter_token_s,
    ),
)


@router.get("/metrics", response_class=PlainTextResponse, openapi_extra=gives(str))
async def metrics(request: Request) -> Response:
    """Every engine that answers, by the label `model`: of several names of one file, the one that was used first."""
    seen = {model_id: await engine.metrics() for model_id, engine in models_of(request).engines.items()}
    text = prometheus_text({model_id: observed for model_id, observed in seen.items() if observed})
    return Response(text, media_type=_MEDIA_TYPE)


def prometheus_text(seen: Mapping[str, EngineMetrics]) -> str:
    """Return the figures of each model (by id) in Prometheus' text format, version 0.0.4."""
    return "".join(f"{line}\n" for line in _lines(seen))


def _lines(seen: Mapping[str, EngineMetrics]) -> Iterator[str]:
    for metric in _METRICS:
        for name in metric.names:
            yield from _head(name, metric.kind, metric.help)
            yield from (f"{name}{{{_label(model)}}} {metric.value(observed)}" for model, observed in seen.items())
    for name, meaning, histogram_of in _HISTOGRAMS:
        yield from _head(name, "histogram", meaning)
        for model, observed in seen.items():
            yield from _histogram_lines(name, _label(model), histogram_of(observed))


def _head(name: str, kind: str, meaning: str) -> Iterable[str]:
    return (f"# HELP {name} {meaning}", f"# TYPE {name} {kind}")


def _histogram_lines(name: str, label: str, histogram: Histogram) -> Iterator[str]:
    """Return the buckets that are not empty, cumulated, and the one without a bound."""
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
