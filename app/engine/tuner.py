"""Measures how fast a loaded model is under one setting. Runs on a context of its own, never on one that answers.

Owns what is measured and how depth is had without computing it. Knows nothing of which setting wins.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from app.engine.backend import Backend, Chunk
from app.engine.request import SamplingParams
from app.engine.tune_plan import THOROUGH, Effort
from app.engine.tuning import Measured, Setting

__all__ = ["measure"]

_RATIO_DEPTH = 512  # where what steps cost is compared, if it is one of the depths
_SEED_TOKENS = 64  # one sequence of these, restored again and again, fills the cache

Clock = Callable[[], float]


def measure(
    backend: Backend, setting: Setting, effort: Effort = THOROUGH, clock: Clock = time.perf_counter
) -> Measured:
    """Return the speeds of `backend`, which was made with `setting` and holds nothing. It is left filled."""
    bench = _Bench(backend, effort, clock)
    prefill = bench.prefill()
    decode = []
    ratios: list[tuple[int, float]] = [(1, 1.0)]
    for depth in effort.depths:
        if bench.fill(depth):
            single_s = bench.step_s(1)
            decode.append((depth, 1 / single_s))
            if depth == _RATIO_DEPTH:
                ratios += [(n_tokens, bench.step_s(n_tokens) / single_s) for n_tokens in effort.step_sizes]
    bench.close()
    return Measured(setting, prefill, tuple(decode), tuple(ratios))


class _Bench:
    """A backend under test. Sequence 0 is measured, the others only make it deep."""

    def __init__(self, backend: Backend, effort: Effort, clock: Clock) -> None:
        self._backend = backend
        self._effort = effort
        self._clock = clock
        self._sampler = backend.new_sampler(SamplingParams(temperature=0.0), ignore_eos=False)
        self._tokens = [1 + index % max(1, backend.facts.n_vocab - 1) for index in range(backend.facts.n_batch)]
        self._n_most = min(len(self._tokens), backend.facts.n_ctx - 1)  # tokens of a batch
        self._n_seed = min(_SEED_TOKENS, self._n_most)
        self._seed = self._first_state()
        self._n_filled = 0
        self._next_id = 1

    def _first_state(self) -> bytes | bytearray:
        """Return the state of the first tokens. By this batch weights are read from disk, for all that is measured."""
        self._compute(0, self._n_seed)
        state = self._backend.save(0)
        self._backend.truncate(0, 0)
        return state

    def prefill(self) -> float:
        """Return tokens a second of whole batches from an empty cache; sequence 0 is empty again then."""
        n_tokens = min(self._n_most, self._effort.n_prefill)
        return n_tokens / self._median_s(lambda: self._compute(0, n_tokens))

    def fill(self, depth: int) -> bool:
        """Let sequence 0 attend to at least `depth` cells. Return False where there are not so many.

        Copies of a short state, laid over it, cost the next step what a longer sequence would, and take no computing.
        That they are in the same stream is not enough: fused attention passes over what others hold.
        """
        facts = self._backend.facts
        if depth + self._n_seed + max(self._effort.step_sizes) > facts.n_cells:
            return False
        self._backend.truncate(0, 0)
        if not self._backend.restore(0, self._seed):
            return False
        while self._n_filled < depth and self._next_id < facts.n_places:
            if not self._backend.restore(self._next_id, self._seed):
                return False
            self._next_id += 1
            self._n_filled += self._n_seed
        if facts.can_cut:
            for other_id in range(1, self._next_id):
                self._backend.overlay(other_id, 0)
        return self._n_filled >= depth

    def step_s(self, n_tokens: int) -> float:
        """Return the seconds of a step of `n_tokens` behind what sequence 0 holds, all with logits."""
        return self._median_s(lambda: self._compute(self._n_seed, n_tokens, n_logits=n_tokens), self._n_seed)

    def close(self) -> None:
        self._sampler.close()

    def _median_s(self, run: Callable[[], None], n_kept: int = 0) -> float:
        """Return the median time of `run`, forgetting what it computed."""
        times = []
        for _ in range(self._effort.n_repeats):
            begun = self._clock()
            run()
            times.append(self._clock() - begun)
            self._backend.truncate(0, n_kept)
        return statistics.median(times)

    def _compute(self, position: int, n_tokens: int, n_logits: int = 1) -> None:
        self._backend.decode([Chunk(0, position, self._tokens[:n_tokens], n_logits)])
        self._sampler.sample(n_tokens - 1)  # a GPU's work is done when its logits are there
