from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.engine.backend import Chunk, DecodeStatus, State
from app.engine.fake import FakeBackend
from app.engine.tuning.tune_results import RuntimeSettings, SpeedMeasurement
from app.engine.tuning.tuner import TuningEffort, measure, undisturbed
from offload.devices.cpu_load import CpuTimes
from quantizer.gguf.file_types import file_type_named
from quantizer.write.quantize import execute
from tests.bench.models.make_model import plan_random_model

REAL_DEPTH = Path(__file__).with_name("real_depth.py")


@pytest.fixture(scope="module")
def hybrid_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hybrid") / "lfm2.gguf"
    plan = plan_random_model("tiny-lfm2", file_type_named("F16"), path)
    execute(plan, 1, is_overwriting=False, report=lambda _event: None)
    return path


@pytest.mark.parametrize("model", ["tiny_model", "hybrid_model"])
def test_fused_attention_attends_to_overlaid_states_too(model: str, request: pytest.FixtureRequest) -> None:
    child = [sys.executable, str(REAL_DEPTH), str(request.getfixturevalue(model))]
    run = subprocess.run(child, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    for same, overlaid, overlaid_again in json.loads(run.stdout).values():
        assert same < 1e-3
        assert overlaid > 1e-2
        assert overlaid_again < 1e-3


class Recording(FakeBackend):
    """Keeps how many tokens of sequence 0 were before each batch of `N_STEP` tokens."""

    N_STEP = 4

    def __init__(self, supports_truncation: bool) -> None:
        super().__init__(supports_truncation=supports_truncation)
        self.depths: list[int] = []

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        self.depths += [self.n_attended(0) for chunk in chunks if len(chunk.tokens) == self.N_STEP]
        return super().decode(chunks)


EFFORT = TuningEffort(n_repeats=3, n_prefill=96, depths=(512,), step_sizes=(4, 8))


def test_every_step_is_measured_after_the_same_tokens() -> None:
    backend = Recording(supports_truncation=True)
    found = measure(backend, RuntimeSettings(1, False, False), EFFORT)
    assert len(found.step_ratios) == 3
    assert len(set(backend.depths)) == 1
    assert len(backend.depths) == 3


def test_steps_of_a_model_with_states_follow_each_other_from_the_same_depth() -> None:
    backend = Recording(supports_truncation=False)
    found = measure(backend, RuntimeSettings(1, False, False), EFFORT)
    assert len(found.step_ratios) == 3
    first, *later = backend.depths
    assert first >= 512
    n_before = backend.facts.truncation.n_holds  # and one: they come before what is measured
    assert later == [first + Recording.N_STEP * n for n in range(1, 1 + n_before + EFFORT.n_repeats)]


class CountedTime:
    """A clock that its backend moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


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
    found = measure(CopyingStates(clock, n_rollback), RuntimeSettings(1, False, False), EFFORT, clock)
    assert found.prefill == pytest.approx(96 / 0.106)
    assert found.decode == ((512, pytest.approx(1 / 0.011)),)
    assert dict(found.step_ratios)[4] == pytest.approx((0.014 + held_s) / 0.011)


def test_what_was_measured_beside_other_programs_is_not_kept() -> None:
    measured = [SpeedMeasurement(RuntimeSettings(n, False, False), 1.0, ((0, 1.0),), ((1, 1.0),)) for n in (1, 2, 3)]
    readings = iter([(0, 0), (10, 9), (10, 9), (20, 12), (20, 12), (30, 21), (30, 21)])  # total and idle seconds

    def read() -> CpuTimes:
        total_s, idle_s = next(readings)
        return CpuTimes(float(total_s), float(idle_s), 0.0)

    assert [speeds.setting.n_threads for speeds in undisturbed(measured, read)] == [1, 3]
