"""How fast a backend is, alone or in turns with another.

Independent of which settings are worth a measurement, and of how a model is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median

from app.engine.backend import Backend, Chunk
from app.engine.request import SamplingParams
from app.engine.speculative.cost_model import N_SETTLING, StepCost
from app.engine.tuning.tune_results import N_BATCHED, RuntimeSettings, SpeedMeasurement

_RATIO_DEPTH = 512  # where the costs of steps are compared, if it is one of the depths
_SEED_TOKENS = 64  # one sequence of at least these, restored again and again, fills the cache
_MIN_REPEATS = 2
_MEDIAN_DEVIATION = 0.6745  # the median of absolute deviations over the standard deviation, of normal samples

Clock = Callable[[], float]
_STEP_SIZES = (2, 4, 8, 15, 16, 17, 31, 32)
_N_DRAFTED = 8  # tokens of the step whose change of size is measured


@dataclass(frozen=True, slots=True)
class TuningEffort:
    """How much is measured: tokens of prefill, depths, step sizes, and whether several answers at once. Each is
    repeated for `limit_s`, at least twice and at most `n_repeats` times, after `n_settling` times that do not count."""

    n_repeats: int
    n_prefill: int
    depths: tuple[int, ...]
    step_sizes: tuple[int, ...]
    limit_s: float
    has_answers: bool = True
    n_settling: int = 0


THOROUGH = TuningEffort(n_repeats=8, n_prefill=512, depths=(0, 512, 1792), step_sizes=_STEP_SIZES, limit_s=2.0)
QUICK = TuningEffort(n_repeats=8, n_prefill=96, depths=(0, 512, 1792), step_sizes=(4, 16), limit_s=1.0)
_STEPS = TuningEffort(
    n_repeats=3,
    n_prefill=8,
    depths=(_RATIO_DEPTH,),
    step_sizes=(2, 8, 16, 32),
    limit_s=0.1,
    has_answers=False,
    n_settling=N_SETTLING,
)

_SINGLE = TuningEffort(
    n_repeats=5, n_prefill=8, depths=(0,), step_sizes=(1,), limit_s=0.5, has_answers=False, n_settling=N_SETTLING
)


@dataclass(frozen=True, slots=True)
class _Case:
    """What is timed: a step of `n_tokens`, all with logits, of a sequence that attends to at least `depth` cells. With
    a depth of None the prefill of as many tokens in an empty cache, where only the last has logits; with `n_answers` a
    step of one token of each of so many other sequences."""

    n_tokens: int
    depth: int | None
    n_answers: int = 0


@dataclass(frozen=True, slots=True)
class _Timed:
    """The median of the samples of a case, and the standard error of that as a share of it."""

    value: float
    noise: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> _Timed:
        middle = median(samples)
        # The standard error of a median is 1.25 times that of a mean, of samples without outliers.
        spread = median(abs(sample - middle) for sample in samples) / _MEDIAN_DEVIATION
        return cls(middle, 1.25 * spread / middle / len(samples) ** 0.5 if middle else 0.0)


def _speeds(setting: RuntimeSettings, seconds: Mapping[_Case, float]) -> SpeedMeasurement:
    prefill = next(case.n_tokens / taken_s for case, taken_s in seconds.items() if case.depth is None)
    singles = {case.depth: taken_s for case, taken_s in seconds.items() if case.n_tokens == 1}
    decode = tuple((depth, 1 / taken_s) for depth, taken_s in singles.items() if depth is not None)
    steps = {case.n_tokens: taken_s for case, taken_s in seconds.items() if case.depth == _RATIO_DEPTH}
    batched = next((case.n_answers / taken_s for case, taken_s in seconds.items() if case.n_answers), 0.0)
    ratios = tuple((n_tokens, taken_s / singles[_RATIO_DEPTH]) for n_tokens, taken_s in steps.items())
    return SpeedMeasurement(setting, prefill, decode, ratios or ((1, 1.0),), batched)


def _with_noise(measured: SpeedMeasurement, pairs: Mapping[_Case, _Timed]) -> SpeedMeasurement:
    """Return the speeds with the noise of their `pairs`, of answers the largest at any depth."""
    prompts = [timed.noise for case, timed in pairs.items() if case.depth is None]
    singles = [timed.noise for case, timed in pairs.items() if case.n_tokens == 1]
    batched = [timed.noise for case, timed in pairs.items() if case.n_answers]
    return replace(
        measured,
        prefill_noise=max(prompts, default=0.0),
        decode_noise=max(singles, default=0.0),
        batched_noise=max(batched, default=0.0),
    )


def _seconds(known: SpeedMeasurement, cases: Sequence[_Case]) -> dict[_Case, float]:
    """Return the seconds of each case of which `known` has a speed: what `_speeds` made it from."""
    decode, ratios = dict(known.decode), dict(known.step_ratios)
    found: dict[_Case, float] = {}
    for case in cases:
        if case.depth is None:
            found[case] = case.n_tokens / known.prefill
        elif case.n_answers and known.batched_decode:
            found[case] = case.n_answers / known.batched_decode
        elif case.depth in decode and case.n_tokens in ratios:
            found[case] = ratios[case.n_tokens] / decode[case.depth]
    return found


class SpeedBench:
    """A backend under test, made with `setting` and empty. Sequence 0 is measured, the others only add depth. A model
    with states cannot drop what a step computed. There the steps of one size follow each other, as in an answer whose
    drafts are accepted, and are held only where an answer would be. States that are held move on through memory that
    the system provides once: with 52 MB of a Mamba-2 370M such a step of 4 tokens took four times as long."""

    def __init__(
        self, backend: Backend, setting: RuntimeSettings, effort: TuningEffort, clock: Clock = time.perf_counter
    ) -> None:
        self._backend = backend
        self._setting = setting
        self._effort = effort
        self._clock = clock
        self._sampler = backend.new_sampler(SamplingParams(temperature=0.0), ignore_eos=False)
        self._tokens = [1 + index % max(1, backend.facts.n_vocab - 1) for index in range(backend.facts.n_batch)]
        self._n_max = min(len(self._tokens), backend.facts.n_ctx - 1)  # tokens of a batch
        n_each = -(-max(effort.depths) // max(1, backend.facts.n_seq_max - 1))
        self._n_seed = min(max(_SEED_TOKENS, n_each), self._n_max)
        self._n_computed = 0  # tokens of sequence 0
        self._n_others = 0  # sequences that add depth
        self._n_answered = 0  # tokens of each of those that answer at once
        self._has_held = False
        self._compute(self._n_seed)  # this batch also reads the weights from disk, before any measurement
        self._seed = backend.save_state(0)
        self._clear()

    def measure(self) -> SpeedMeasurement:
        """Return the speeds of this backend alone."""
        sampled = self._sampled(self._begin, self._time)
        return _speeds(self._setting, {case: timed.value for case, timed in sampled.items()})

    def compare(self, other: SpeedBench, known: SpeedMeasurement) -> SpeedMeasurement:
        """Return the speeds of this backend by those `known` of `other`, whose cases are timed in turns with it. A
        machine may grow faster or slower within a minute, by more than settings differ; that moves both times of a
        pair, and the median of their ratios counts. Only what is known of `other` is compared."""
        known_s = _seconds(known, self._cases)
        ratios = self._sampled(
            lambda case: self._begin(case) and other._begin(case),
            lambda case: self._time(case) / other._time(case),
        )
        seconds = {case: timed.value * known_s[case] for case, timed in ratios.items() if case in known_s}
        return _with_noise(_speeds(self._setting, seconds), ratios)

    def size_change(self, known: SpeedMeasurement) -> float:
        """Return what a step of several tokens costs more between steps of one than among its like, in steps of one.
        The steps after it that settle are counted too: a GPU computes them without the graph that it had captured.
        `known` are the speeds of this backend; 0 where it has too few cells."""
        single, several = _Case(1, _RATIO_DEPTH), _Case(_N_DRAFTED, _RATIO_DEPTH)
        seconds = _seconds(known, (single, several))
        if len(seconds) < 2 or not self._begin(single):
            return 0.0
        steps = (several, *[single] * N_SETTLING)
        expected_s = sum(seconds[case] for case in steps)
        taken_s = [sum(map(self._time, steps)) for _ in range(self._effort.n_repeats)]
        return max(0.0, (median(taken_s) - expected_s) / seconds[single])

    def close(self) -> None:
        """Free the sampler and empty the cache. The caller closes the backend."""
        self._clear()
        self._clear_others()
        self._sampler.close()

    @property
    def _cases(self) -> tuple[_Case, ...]:
        """What is timed, in an order in which the cache only fills."""
        found = [_Case(min(self._effort.n_prefill, self._n_max), None)]
        for depth in self._effort.depths:
            found.append(_Case(1, depth))
            if depth == _RATIO_DEPTH:
                found += [_Case(n_tokens, depth) for n_tokens in self._effort.step_sizes]
        if self._effort.has_answers:
            found.append(_Case(0, max(self._effort.depths), N_BATCHED))
        return tuple(found)

    def _sampled(self, begin: Callable[[_Case], bool], sample: Callable[[_Case], float]) -> dict[_Case, _Timed]:
        """Return the samples of each case that can `begin`."""
        found: dict[_Case, _Timed] = {}
        effort = self._effort
        for case in self._cases:
            if not begin(case):
                continue
            for _ in range(effort.n_settling):
                sample(case)
            samples: list[float] = []
            begun_s = self._clock()
            while len(samples) < _MIN_REPEATS or (
                len(samples) < effort.n_repeats and self._clock() - begun_s < effort.limit_s
            ):
                samples.append(sample(case))
            found[case] = _Timed.of(samples)
        return found

    def _begin(self, case: _Case) -> bool:
        """Let the next samples be of `case`. Return False when there are too few cells for it."""
        self._clear()
        if case.depth is None:
            self._clear_others()
            return True
        facts = self._backend.facts
        n_steps = 1 if facts.supports_truncation else 1 + facts.truncation.n_holds + self._effort.n_repeats
        n_needed = case.depth + self._n_seed + n_steps * max(self._effort.step_sizes)
        if n_needed > facts.n_cells or not self._fill(case.depth):
            return False
        if case.n_answers:
            if case.n_answers > self._n_others:
                return False
            self._n_answered = 0
            self._answer(case.n_answers)  # moves the states to memory of their own
            return True
        if not self._attend_to_all():
            return False
        if not facts.supports_truncation:
            self._step(case.n_tokens)  # moves the state to memory of its own, as the first step of an answer does
            if self._is_held(case.n_tokens) and not self._has_held:
                self._has_held = True
                for _ in range(facts.truncation.n_holds):
                    self._step(case.n_tokens)
        return True

    def _time(self, case: _Case) -> float:
        """Return the seconds that `case` takes, without what is removed afterwards."""
        begun_s = self._clock()
        if case.depth is None:
            self._compute(case.n_tokens)
        elif case.n_answers:
            self._answer(case.n_answers)
        else:
            self._step(case.n_tokens)
        taken_s = self._clock() - begun_s
        if case.depth is None:
            self._clear()
        elif self._backend.facts.supports_truncation and not case.n_answers:
            self._n_computed = self._backend.truncate(0, self._n_seed)
        return taken_s

    def _fill(self, depth: int) -> bool:
        """Let other sequences have at least `depth` cells. Return False without their room."""
        while self._n_others * self._n_seed < depth:
            next_id = self._n_others + 1
            if next_id >= self._backend.facts.n_seq_max or not self._backend.restore_state(next_id, self._seed):
                return False
            self._n_others = next_id
        return True

    def _attend_to_all(self) -> bool:
        """Let sequence 0 be the seed, which attends to the others' cells, too. Return False without its room. Copies of
        a short state, overlaid on it, cost the next step as much as a longer sequence, without computing one. That they
        are in the same stream is not enough: fused attention skips the cells of other sequences."""
        if not self._backend.restore_state(0, self._seed):
            return False
        self._n_computed = self._n_seed
        for other_id in range(1, self._n_others + 1):
            self._backend.overlay(other_id, 0)
        return True

    def _is_held(self, n_tokens: int) -> bool:
        return n_tokens - 1 > self._backend.facts.truncation.n_rejected_freely([n_tokens])

    def _step(self, n_tokens: int) -> None:
        if self._is_held(n_tokens):
            self._backend.hold(0)  # part of the step of an answer too
        self._compute(n_tokens, n_logits=n_tokens)

    def _answer(self, n_answers: int) -> None:
        """Compute a token of each of the first `n_answers` of the other sequences, after those of earlier calls."""
        position, token = self._n_seed + self._n_answered, self._tokens[:1]
        self._backend.decode([Chunk(other_id, position, token, 1) for other_id in range(1, 1 + n_answers)])
        for row in range(n_answers):
            self._sampler.sample(row)
        self._n_answered += 1

    def _compute(self, n_tokens: int, n_logits: int = 1) -> None:
        self._backend.decode([Chunk(0, self._n_computed, self._tokens[:n_tokens], n_logits)])
        self._sampler.sample(n_tokens - 1)  # a GPU has finished when its logits can be read
        self._n_computed += n_tokens

    def _clear(self) -> None:
        self._n_computed = self._backend.truncate(0, 0)

    def _clear_others(self) -> None:
        for other_id in range(1, self._n_others + 1):
            self._backend.truncate(other_id, 0)
        self._n_others = 0


def measure_step_cost(
    backend: Backend, setting: RuntimeSettings, known: Mapping[int, float], clock: Clock = time.perf_counter
) -> StepCost:
    """Return what steps of an empty `backend` cost, by their size and where it changes, and leave it empty. Takes some
    thirty steps, or half as many where the ratios by size are `known`."""
    effort = replace(_STEPS, step_sizes=(_N_DRAFTED,)) if known else _STEPS
    with closing(SpeedBench(backend, setting, effort, clock)) as bench:
        measured = bench.measure()
        return StepCost.from_measured(known or dict(measured.step_ratios), bench.size_change(measured))


def measure_single_step(backend: Backend, setting: RuntimeSettings, clock: Clock = time.perf_counter) -> float:
    """Return the seconds of a step of one token of an empty `backend`, and leave it empty; 0 where it has too few cells
    to measure that. Takes some ten steps."""
    with closing(SpeedBench(backend, setting, _SINGLE, clock)) as bench:
        return next((1 / speed for _, speed in bench.measure().decode), 0.0)
