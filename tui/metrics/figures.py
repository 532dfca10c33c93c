"""Metrics and benchmark runs as lines of text, with sparklines.

Owns the rates of the last minutes per model, computed from successive snapshots of its counters. Independent of
widgets. Figures of runs come from the JSON that `localllm bench` prints.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeAlias

from offload.format import format_memory, format_speed

if TYPE_CHECKING:
    from app.protocol.job import Job
    from app.protocol.plan import MeasuredRun
    from app.protocol.status import EngineCounters, ModelStatus, ServiceStatus


_N_KEPT = 240  # two minutes at two snapshots a second
_BLOCKS = "▁▂▃▄▅▆▇█"
_NAME_COLUMNS, _VALUE_COLUMNS = 13, 22
_Figures: TypeAlias = Mapping[tuple[str, str, str], float]
_RATE = "tok/s"  # for all other units less is better


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The activity of one model between two snapshots; None for figures without events.

    `output_tps` sums all answers per second of wall time, `first_token_s` is the mean latency of those that began,
    `cached_share` the cached share of their prompt tokens.
    """

    output_tps: float
    first_token_s: float | None
    cached_share: float | None
    n_bytes: int
    n_cells_used: int


@dataclass(frozen=True, slots=True)
class _Snapshot:
    at_s: float
    counters: EngineCounters


class MetricsHistory:
    """Snapshots and samples by model. Drops a model that disappeared, and restarts one whose worker restarted."""

    def __init__(self) -> None:
        self._snapshots: dict[str, _Snapshot] = {}
        self._samples: dict[str, deque[Sample]] = {}

    def take(self, status: ServiceStatus, at_s: float) -> None:
        """Record the state of all models at `at_s`, seconds of a monotonic clock."""
        for gone in self._samples.keys() - {model.id for model in status.models}:
            del self._samples[gone]
            self._snapshots.pop(gone, None)
        for model in status.models:
            self._take(model, at_s)

    def samples(self, model_id: str) -> Sequence[Sample]:
        """Return the samples of a model, oldest first."""
        return tuple(self._samples.get(model_id, ()))

    def _take(self, model: ModelStatus, at_s: float) -> None:
        counters = model.counters
        kept = self._samples.setdefault(model.id, deque(maxlen=_N_KEPT))
        if counters is None:
            self._snapshots.pop(model.id, None)
            return
        before = self._snapshots.get(model.id)
        self._snapshots[model.id] = _Snapshot(at_s, counters)
        if before is not None and at_s > before.at_s and _is_same_worker(before.counters, counters):
            kept.append(_sample(model, before, self._snapshots[model.id]))


def _is_same_worker(before: EngineCounters, after: EngineCounters) -> bool:
    """Return whether the same worker counted both: a new one starts at 0."""
    return all(new >= old for old, new in zip(_sums(before), _sums(after), strict=True))


def _sums(counters: EngineCounters) -> Iterator[float]:
    yield from (counters.n_finished, counters.n_prompt_tokens, counters.n_output_tokens)
    yield from (counters.first_token_s.n_samples, counters.first_token_s.total_s)


def _sample(model: ModelStatus, before: _Snapshot, after: _Snapshot) -> Sample:
    old, new = before.counters, after.counters
    n_first = new.first_token_s.n_samples - old.first_token_s.n_samples
    n_prompt = new.n_prompt_tokens - old.n_prompt_tokens
    n_cached = new.cached_share * new.n_prompt_tokens - old.cached_share * old.n_prompt_tokens
    waited_s = new.first_token_s.total_s - old.first_token_s.total_s
    return Sample(
        output_tps=(new.n_output_tokens - old.n_output_tokens) / (after.at_s - before.at_s),
        first_token_s=waited_s / n_first if n_first else None,
        cached_share=min(max(n_cached / n_prompt, 0.0), 1.0) if n_prompt else None,
        n_bytes=model.n_bytes,
        n_cells_used=model.occupancy.n_cells_used if model.occupancy else 0,
    )


def sparkline(values: Sequence[float | None], n_columns: int, most: float | None = None) -> str:
    """Return the last `n_columns` values as blocks, newest on the right, scaled to `most` (default: their maximum).

    None leaves a gap.
    """
    shown = values[-n_columns:] if n_columns > 0 else ()
    top = most or max((value for value in shown if value is not None), default=0.0)
    return "".join(_block(value, top) for value in shown)


def _block(value: float | None, top: float) -> str:
    if value is None:
        return " "
    share = min(max(value / top, 0.0), 1.0) if top else 0.0
    return _BLOCKS[round(share * (len(_BLOCKS) - 1))]


def model_lines(model: ModelStatus, samples: Sequence[Sample], n_columns: int) -> list[str]:
    """Return the state and recent activity of a model."""
    room = n_columns - _NAME_COLUMNS - _VALUE_COLUMNS
    head = f"{model.id} · {model.state}"
    if model.plan is not None and model.plan.n_on_gpus:
        head += f" · {model.plan.n_on_gpus} of {model.plan.n_layers} layers on GPUs"
    if model.shares_with:
        head += f" · shares an engine with {', '.join(model.shares_with)}"
    if model.occupancy is None or model.counters is None:
        return [head]
    counters, occupancy = model.counters, model.occupancy
    head += f" · {occupancy.n_running} running, {occupancy.n_waiting} waiting, {counters.n_finished} finished"
    first_s = counters.first_token_s
    latency = "none yet" if first_s.p50 is None else f"{first_s.p50:.2f} s, p95 {first_s.p95 or first_s.p50:.2f}"
    tps = [sample.output_tps for sample in samples]
    cached = "none yet" if not counters.n_prompt_tokens else f"{counters.cached_share:.0%} of all"
    cells = f"{occupancy.n_cells_used:,} of {occupancy.n_cells:,}"
    most_bytes = max((sample.n_bytes for sample in samples), default=0)
    rows: tuple[tuple[str, str, Sequence[float | None], float | None], ...] = (
        (
            "tok/s",
            f"{format_speed(tps[-1]) if tps else '–'}, answers {format_speed(counters.decode_tokens_per_s)}",
            tps,
            None,
        ),
        ("first token", latency, [sample.first_token_s for sample in samples], None),
        ("cache hits", cached, [sample.cached_share for sample in samples], 1.0),
        ("memory", format_memory(model.n_bytes), [sample.n_bytes for sample in samples], most_bytes),
        ("KV cells", cells, [sample.n_cells_used for sample in samples], occupancy.n_cells),
    )
    return [
        head,
        *(
            f"{name:<{_NAME_COLUMNS}}{value:<{_VALUE_COLUMNS}}{sparkline(line, room, most)}"
            for name, value, line, most in rows
        ),
        *_settings_lines(model, n_columns),
    ]


def _settings_lines(model: ModelStatus, n_columns: int) -> list[str]:
    """Return what a model runs with, and why; nothing for a model of another program's service."""
    if not model.settings:
        return []
    text = " · ".join(setting.words for setting in model.settings)
    return wrap(f"{'runs with':<{_NAME_COLUMNS}}{text}", n_columns, subsequent_indent=" " * _NAME_COLUMNS)


def history_lines(runs: Sequence[MeasuredRun], n_columns: int) -> list[str]:
    """Return the recorded answer speeds of a model on this machine."""
    rates = [run.tps for run in runs if run.kind == "decode"]
    if not rates:
        return ["No answers measured yet."]
    times = [run.at_s for run in runs if run.kind == "decode" and run.at_s]
    since = f" since {datetime.fromtimestamp(min(times)):%Y-%m-%d}" if times else ""
    answers = "1 answer" if len(rates) == 1 else f"{len(rates)} answers"
    text = f"{answers}{since}: median {format_speed(median(rates))} tok/s, last {format_speed(rates[-1])} "
    return [text + sparkline(rates, max(n_columns - len(text), 0))]


def bench_runs(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Return the benchmark jobs, newest first."""
    return tuple(sorted((job for job in jobs if job.kind == "bench"), key=lambda job: -job.created_s))


def run_line(job: Job) -> str:
    """Return time, model and result of a run."""
    begun = f"{datetime.fromtimestamp(job.created_s):%Y-%m-%d %H:%M}  {job.arguments.get('model', '')}"
    if job.state == "failed" and job.error is not None:
        return f"{begun}: failed. {job.error.cause}"
    if job.state != "done" or job.result is None:
        return f"{begun}: {job.state}"
    figures = _figures(job.result)
    decode = next((f"answers {tps:.4g} tok/s" for (work, _, _), tps in figures.items() if work == "decode"), "")
    prefill = next((f"prompts {tps:.4g} tok/s" for (work, _, _), tps in figures.items() if work == "prefill"), "")
    roofline = next(
        (f"{item['share']:.0%} of the memory bandwidth limit" for item in job.result.get("rooflines", ())), ""
    )
    return f"{begun}: {', '.join(filter(None, (decode, prefill, roofline))) or 'no results'}"


def compared_lines(before: Job, after: Job) -> list[str]:
    """Return the figures that both runs have, and their ratio (above 1 is better)."""
    old, new = _figures(before.result or {}), _figures(after.result or {})
    both = [key for key in old if key in new]
    if not both:
        return ["These runs have no measurements in common."]
    width = max(len(f"{work} {case}") for work, case, _ in both)
    return [_compared(key, old[key], new[key], width) for key in both]


def _compared(key: tuple[str, str, str], old: float, new: float, width: int) -> str:
    work, case, unit = key
    gain = new / old if unit == _RATE else old / new
    return f"{f'{work} {case}':<{width}}  {old:>8.4g} → {new:>8.4g} {unit:<6} {gain:.2f} ×"


def _figures(result: Mapping[str, Any]) -> _Figures:
    """Return the medians of the first server, by work, case and unit."""
    for server in result.get("results", ())[:1]:
        return {(item["work"], item["case"], item["unit"]): item["median"] for item in server["measurements"]}
    return {}
