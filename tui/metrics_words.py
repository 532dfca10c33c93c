"""Figures of a model as lines of a screen: a name, the newest figure, and a sparkline. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING

from offload.wording import memory, speed
from tui.sparkline import sparkline

if TYPE_CHECKING:
    from app.client import MeasuredRun, ModelStatus
    from tui.metrics_log import Sample

__all__ = ["history_lines", "model_lines"]

_NAME_COLUMNS, _VALUE_COLUMNS = 13, 22


def model_lines(model: ModelStatus, samples: Sequence[Sample], n_columns: int) -> list[str]:
    """Return how a model stands and what it did of late."""
    room = n_columns - _NAME_COLUMNS - _VALUE_COLUMNS
    head = f"{model.id} · {model.state}"
    if model.plan is not None and model.plan.n_on_gpus:
        head += f" · {model.plan.n_on_gpus} of {model.plan.n_layers} layers on GPUs"
    if model.shares_with:
        head += f" · one engine with {', '.join(model.shares_with)}"
    if model.occupancy is None or model.counters is None:
        return [head]
    counters, held = model.counters, model.occupancy
    head += f" · {held.n_running} answering, {held.n_waiting} waiting, {counters.n_finished} done"
    first_s = counters.first_token_s
    waited = "none yet" if first_s.p50 is None else f"{first_s.p50:.2f} s, p95 {first_s.p95 or first_s.p50:.2f}"
    tps = [sample.output_tps for sample in samples]
    cached = "none yet" if not counters.n_prompt_tokens else f"{counters.cached_share:.0%} of all"
    cells = f"{held.n_cells_used:,} of {held.n_cells:,}"
    most_bytes = max((sample.n_bytes for sample in samples), default=0)
    rows: tuple[tuple[str, str, Sequence[float | None], float | None], ...] = (
        ("tok/s", f"{speed(tps[-1]) if tps else '–'}, answers {speed(counters.decode_tokens_per_s)}", tps, None),
        ("first token", waited, [sample.first_token_s for sample in samples], None),
        ("cache hits", cached, [sample.cached_share for sample in samples], 1.0),
        ("memory", memory(model.n_bytes), [sample.n_bytes for sample in samples], most_bytes),
        ("KV cells", cells, [sample.n_cells_used for sample in samples], held.n_cells),
    )
    return [
        head,
        *(
            f"{name:<{_NAME_COLUMNS}}{value:<{_VALUE_COLUMNS}}{sparkline(line, room, most)}"
            for name, value, line, most in rows
        ),
    ]


def history_lines(runs: Sequence[MeasuredRun], n_columns: int) -> list[str]:
    """Return how fast answers of a model were on this machine, in all the days that are kept."""
    rates = [run.tps for run in runs if run.kind == "decode"]
    if not rates:
        return ["No answer of it was measured here yet."]
    times = [run.at_s for run in runs if run.kind == "decode" and run.at_s]
    since = f" since {datetime.fromtimestamp(min(times)):%Y-%m-%d}" if times else ""
    said = f"{len(rates)} answers{since}: median {speed(median(rates))} tok/s, last {speed(rates[-1])} "
    return [said + sparkline(rates, max(n_columns - len(said), 0))]
