"""A reader is killed at a few moments; tests/battery/kills/kill_knowledge.py kills a hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.knowledge.killed_reader import kill_a_reader

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2])
def test_a_killed_reader_loses_nothing_that_was_committed(tmp_path: Path, after_s: float) -> None:
    trial = kill_a_reader(tmp_path, after_s)
    assert trial.faults == ()
    assert trial.n_acknowledged >= 1
