from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.engine.backend import Chunk, DecodeStatus
from app.engine.fake import FakeBackend
from app.engine.tuning.tune_results import RuntimeSettings, SpeedMeasurement
from app.engine.tuning.tuner import TuningEffort, measure, undisturbed
from offload.devices.cpu_load import CpuTimes

REAL_DEPTH = Path(__file__).with_name("real_depth.py")


def test_fused_attention_attends_to_overlaid_states_too(tiny_model: Path) -> None:
    run = subprocess.run([sys.executable, str(REAL_DEPTH), str(tiny_model)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    for same, overlaid, overlaid_again in json.loads(run.stdout).values():
        assert same < 1e-3
        assert overlaid > 1e-2
        assert overlaid_again < 1e-3


class Recording(FakeBackend):
    """Keeps how many tokens of sequence 0 were before each batch of several tokens."""

    def __init__(self, supports_truncation: bool) -> None:
        super().__init__(supports_truncation=supports_truncation)
        self.depths: list[int] = []

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        self.depths += [len(self.tokens(0)) for chunk in chunks if len(chunk.tokens) == 4]
        return super().decode(chunks)


@pytest.mark.parametrize("supports_truncation", [True, False])
def test_every_step_is_measured_after_the_same_tokens_also_where_a_model_has_states(supports_truncation: bool) -> None:
    backend = Recording(supports_truncation)
    effort = TuningEffort(n_repeats=3, n_prefill=96, depths=(512,), step_sizes=(4, 8))
    found = measure(backend, RuntimeSettings(1, False, False), effort)
    assert len(found.step_ratios) == 3
    assert len(set(backend.depths)) == 1
    assert len(backend.depths) == 3
    assert backend.depths[0] > 0


def test_what_was_measured_beside_other_programs_is_not_kept() -> None:
    measured = [SpeedMeasurement(RuntimeSettings(n, False, False), 1.0, ((0, 1.0),), ((1, 1.0),)) for n in (1, 2, 3)]
    readings = iter([(0, 0), (10, 9), (10, 9), (20, 12), (20, 12), (30, 21), (30, 21)])  # total and idle seconds

    def read() -> CpuTimes:
        total_s, idle_s = next(readings)
        return CpuTimes(float(total_s), float(idle_s), 0.0)

    assert [speeds.setting.n_threads for speeds in undisturbed(measured, read)] == [1, 3]
