from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.backend import Chunk, DecodeStatus, State
from app.engine.fake import FakeBackend
from app.engine.speculative.cost_model import StepCost
from app.engine.tuning.speed_bench import QUICK, THOROUGH, Clock, SpeedBench, TuningEffort, measure_step_cost
from app.engine.tuning.tune_results import RuntimeSettings, SpeedMeasurement
from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.quantize import execute
from tests.bench.models.make_model import plan_random_model
from tests.patience import PATIENCE_S

REAL_DEPTH = Path(__file__).with_name("real_depth.py")


@pytest.fixture(scope="module")
def hybrid_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hybrid") / "lfm2.gguf"
    plan = plan_random_model("tiny-lfm2", file_type_named("F16"), path)
    execute(plan, 1, is_overwriting=False, report=lambda _event: None)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny_model", "hybrid_model"])
def test_fused_attention_attends_to_overlaid_states_too(model: str, request: pytest.FixtureRequest) -> None:
    child = [sys.executable, str(REAL_DEPTH), str(request.getfixturevalue(model))]
    run = subprocess.run(child, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr
    for same, overlaid, overlaid_again in json.loads(run.stdout).values():
        assert same < 1e-3
        assert overlaid > 1e-2
        assert overlaid_again < 1e-3


PLAIN = RuntimeSettings(2, flash_attention=False, extra_buffers=False)
FUSED = RuntimeSettings(2, flash_attention=True, extra_buffers=False)


class CountedTime:
    """A clock that its backends move on, while the machine grows slower."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slowness = 1.0

    def __call__(self) -> float:
        return self.now_s


class TimedBackend(FakeBackend):
    """A batch of n tokens takes 10 + n ms, and `cell_s` for each cell that it attends to. After each the machine is
    `slowing` times as slow."""

    def __init__(self, clock: CountedTime, cell_s: float = 0.0, slowing: float = 1.0, **shape: int) -> None:
        super().__init__(**shape)
        self._clock = clock
        self._cell_s = cell_s
        self._slowing = slowing

    def decode(self, chunks: list) -> object:
        n_attended = sum(self.n_attended(chunk.sequence_id) for chunk in chunks)
        taken_s = 0.010 + 0.001 * sum(len(chunk.tokens) for chunk in chunks) + self._cell_s * n_attended
        self._clock.now_s += taken_s * self._clock.slowness
        self._clock.slowness *= self._slowing
        return super().decode(chunks)


def measured(backend: FakeBackend, effort: TuningEffort, clock: Clock = time.perf_counter) -> SpeedMeasurement:
    with closing(SpeedBench(backend, PLAIN, effort, clock)) as bench:
        return bench.measure()


def test_measured_speeds_are_those_of_the_backend() -> None:
    clock = CountedTime()
    found = measured(TimedBackend(clock, n_sequences=20), THOROUGH, clock)
    assert found.prefill == pytest.approx(512 / 0.522)
    assert tuple(depth for depth, _ in found.decode) == THOROUGH.depths
    assert all(speed == pytest.approx(1 / 0.011) for _, speed in found.decode)
    assert [n_tokens for n_tokens, _ in found.step_ratios] == [1, *THOROUGH.step_sizes]
    assert dict(found.step_ratios)[16] == pytest.approx(26 / 11)


def test_depth_counts_the_cells_that_the_measured_sequence_attends_to() -> None:
    clock = CountedTime()
    found = measured(TimedBackend(clock, cell_s=1e-5, n_sequences=20), THOROUGH, clock)
    for depth, speed in found.decode:
        assert 1 / speed == pytest.approx(0.011 + 1e-5 * (depth + 64))


def test_depths_that_the_cache_cannot_hold_are_left_out() -> None:
    clock = CountedTime()
    found = measured(TimedBackend(clock, n_sequences=20, n_cells=1000, n_ctx=1000), THOROUGH, clock)
    assert [depth for depth, _ in found.decode] == [0, 512]


def test_quick_tuning_takes_less_than_half_of_thorough_tuning() -> None:
    spent = {}
    for effort in (QUICK, THOROUGH):
        clock = CountedTime()
        measured(TimedBackend(clock, n_sequences=20), effort, clock)
        spent[effort] = clock.now_s
    assert spent[QUICK] < 0.45 * spent[THOROUGH]


def test_a_comparison_finds_the_speeds_of_a_backend_on_a_machine_that_grows_slower() -> None:
    clock = CountedTime()
    known = measured(TimedBackend(clock, n_sequences=20), THOROUGH, clock)
    quiet = measured(TimedBackend(clock, cell_s=1e-5, n_sequences=20), THOROUGH, clock)
    other = SpeedBench(TimedBackend(clock, slowing=1.002, n_sequences=20), PLAIN, THOROUGH, clock)
    bench = SpeedBench(TimedBackend(clock, cell_s=1e-5, slowing=1.002, n_sequences=20), FUSED, THOROUGH, clock)
    for _ in range(2):  # the one that others are compared with is used again
        found = bench.compare(other, known)
        assert found.setting == FUSED
        assert found.prefill == pytest.approx(quiet.prefill, rel=0.01)
        assert dict(found.decode) == pytest.approx(dict(quiet.decode), rel=0.01)
        assert dict(found.step_ratios) == pytest.approx(dict(quiet.step_ratios), rel=0.02)
    assert clock.slowness > 1.5
    bench.close()
    other.close()


@pytest.mark.parametrize(("factors", "least", "most"), [((1.0,), 0.0, 1e-9), ((1.0, 1.06, 0.97, 1.02), 0.005, 0.1)])
def test_the_noise_of_a_comparison_is_that_of_its_pairs(
    factors: tuple[float, ...], least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, uneven = CountedTime(), itertools.cycle(factors)
    known = measured(TimedBackend(clock, n_sequences=20), THOROUGH, clock)
    assert known.prefill_noise == known.decode_noise == known.batched_noise == 0.0
    backend = TimedBackend(clock, n_sequences=20)
    decode = backend.decode

    def decode_unevenly(chunks: list[Chunk]) -> object:
        begun_s = clock.now_s
        status = decode(chunks)
        clock.now_s = begun_s + (clock.now_s - begun_s) * next(uneven)
        return status

    monkeypatch.setattr(backend, "decode", decode_unevenly)
    with (
        closing(SpeedBench(TimedBackend(clock, n_sequences=20), PLAIN, THOROUGH, clock)) as other,
        closing(SpeedBench(backend, FUSED, THOROUGH, clock)) as bench,
    ):
        found = bench.compare(other, known)
    for noise in (found.prefill_noise, found.decode_noise, found.batched_noise):
        assert least <= noise <= most


def test_only_what_is_known_of_the_other_is_compared() -> None:
    clock = CountedTime()
    known = measured(TimedBackend(clock, n_sequences=20), QUICK, clock)
    other = SpeedBench(TimedBackend(clock, n_sequences=20), PLAIN, THOROUGH, clock)
    bench = SpeedBench(TimedBackend(clock, n_sequences=20), FUSED, THOROUGH, clock)
    found = bench.compare(other, known)
    assert [n_tokens for n_tokens, _ in found.step_ratios] == [1, *QUICK.step_sizes]
    bench.close()
    other.close()


@pytest.mark.parametrize("supports_truncation", [True, False])
def test_several_answers_are_measured_at_once_and_attend_to_their_own_cells(supports_truncation: bool) -> None:
    clock = CountedTime()
    shape = {"n_sequences": 20, "supports_truncation": supports_truncation}
    found = measured(TimedBackend(clock, cell_s=1e-5, **shape), replace(QUICK, n_repeats=2), clock)
    own_s = 0.014 + 4 * 1e-5 * (64 + 1.5)  # after the seed, and a step or two
    assert found.batched_decode == pytest.approx(4 / own_s, rel=0.01)


def test_without_room_for_several_answers_none_are_measured() -> None:
    clock = CountedTime()
    assert not measured(TimedBackend(clock, n_sequences=2), QUICK, clock).batched_decode


class Recording(FakeBackend):
    """Keeps how many tokens of sequence 0 were before each batch of `N_STEP` tokens."""

    N_STEP = 4

    def __init__(self, supports_truncation: bool) -> None:
        super().__init__(supports_truncation=supports_truncation)
        self.depths: list[int] = []

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        self.depths += [self.n_attended(0) for chunk in chunks if len(chunk.tokens) == self.N_STEP]
        return super().decode(chunks)


EFFORT = TuningEffort(n_repeats=3, n_prefill=96, depths=(512,), step_sizes=(4, 8), limit_s=1e9, has_answers=False)


def test_every_step_is_measured_after_the_same_tokens() -> None:
    backend = Recording(supports_truncation=True)
    found = measured(backend, EFFORT)
    assert len(found.step_ratios) == 3
    assert len(set(backend.depths)) == 1
    assert len(backend.depths) == 3


def test_steps_of_a_model_with_states_follow_each_other_from_the_same_depth() -> None:
    backend = Recording(supports_truncation=False)
    found = measured(backend, EFFORT)
    assert len(found.step_ratios) == 3
    first, *later = backend.depths
    assert first >= 512
    n_before = backend.facts.truncation.n_holds  # and one: they come before what is measured
    assert later == [first + Recording.N_STEP * n for n in range(1, 1 + n_before + EFFORT.n_repeats)]


class CopyingStates(FakeBackend):
    """A batch takes 10 ms and 1 ms for each token; 5 ms more after a hold, and 100 ms where a sequence was restored.

    The first holds take 100 ms more: their memory is new.
    """

    def __init__(self, clock: CountedTime, n_rollback: int = 0) -> None:
        super().__init__(supports_truncation=False, n_rollback=n_rollback)
        self._clock = clock
        self._waiting_s = 0.0
        self._n_new = self.facts.truncation.n_holds

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        self._clock.now_s += 0.010 + 0.001 * sum(len(chunk.tokens) for chunk in chunks) + self._waiting_s
        self._waiting_s = 0.0
        return super().decode(chunks)

    def hold(self, sequence_id: int) -> None:
        self._waiting_s += 0.105 if self._n_new else 0.005
        self._n_new = max(0, self._n_new - 1)
        super().hold(sequence_id)

    def restore_state(self, sequence_id: int, state: State) -> bool:
        self._waiting_s += 0.1
        return super().restore_state(sequence_id, state)


@pytest.mark.parametrize(("n_rollback", "held_s"), [(0, 0.005), (15, 0.0)])
def test_only_steps_that_an_answer_would_hold_are_measured_with_the_copy_of_the_state(
    n_rollback: int, held_s: float
) -> None:
    clock = CountedTime()
    found = measured(CopyingStates(clock, n_rollback), EFFORT, clock)
    assert found.prefill == pytest.approx(96 / 0.106)
    assert found.decode == ((512, pytest.approx(1 / 0.011)),)
    assert dict(found.step_ratios)[4] == pytest.approx((0.014 + held_s) / 0.011)


class CapturingBackend(TimedBackend):
    """The first two steps of another size than the one before take `change_s` longer, as with captured graphs."""

    def __init__(self, clock: CountedTime, change_s: float, **shape: int) -> None:
        super().__init__(clock, **shape)
        self._change_s = change_s
        self._n_last = self._n_alike = 0

    def decode(self, chunks: list) -> object:
        n_tokens = sum(len(chunk.tokens) for chunk in chunks)
        self._n_alike = self._n_alike + 1 if n_tokens == self._n_last else 1
        self._n_last = n_tokens
        self._clock.now_s += self._change_s * (self._n_alike <= 2)
        return super().decode(chunks)


@pytest.mark.parametrize("supports_truncation", [True, False])
@pytest.mark.parametrize("known", [{}, {1: 1.0, 8: 2.0}])
def test_the_cost_of_steps_is_measured_in_a_moment_and_leaves_the_cache_empty(
    supports_truncation: bool, known: dict[int, float]
) -> None:
    clock = CountedTime()
    backend = CapturingBackend(clock, 0.011, supports_truncation=supports_truncation)
    found = measure_step_cost(backend, PLAIN, known, clock)
    expected = known or {n_tokens: (10 + n_tokens) / 11 for n_tokens in (1, 2, 8, 16, 32)}
    assert {n_tokens: found.ratio(n_tokens) for n_tokens in expected} == pytest.approx(expected)
    assert found.size_change == pytest.approx(3.0)  # of the step itself and of two after it
    assert clock.now_s < 1.5, "beside steps of 11 ms"
    assert backend.n_cells_used == 0


def test_in_a_short_context_steps_cost_what_they_usually_do() -> None:
    clock = CountedTime()
    found = measure_step_cost(TimedBackend(clock, n_ctx=256, n_cells=256), PLAIN, {}, clock)
    assert (found.ratios, found.size_change) == (StepCost().ratios, 0.0)
