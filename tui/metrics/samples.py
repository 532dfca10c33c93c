"""Rates of each model, computed from successive snapshots of its counters.

Owns the last minutes per model. Independent of the screen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.protocol.status import EngineCounters, ModelStatus, ServiceStatus

__all__ = ["MetricsHistory", "Sample"]

_N_KEPT = 240  # two minutes at two snapshots a second


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
