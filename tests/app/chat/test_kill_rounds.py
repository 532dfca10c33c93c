from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.app.chat.killed_rounds import kill_rounds

pytestmark = pytest.mark.slow


def test_a_kill_in_the_middle_of_calls_loses_none_and_repeats_none(tmp_path: Path) -> None:
    chance = random.Random(5)
    for number in range(4):
        trial = kill_rounds(tmp_path / str(number), chance.uniform(0.1, 1.5))
        assert trial.faults == ()
        assert trial.n_acknowledged > 0
