from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.chat.killed_rounds import kill_rounds
from tests.app.chat.killed_writer import Trial, kill_a_writer


@pytest.mark.slow
@pytest.mark.parametrize(("kill", "seed"), [(kill_a_writer, 8), (kill_rounds, 5)], ids=["answers", "calls"])
def test_a_kill_loses_no_acknowledged_message_at_most_a_second_of_a_running_one_and_repeats_no_call(
    kill: Callable[[Path, float], Trial], seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    for number in range(4):
        trial = kill(tmp_path / str(number), chance.uniform(0.1, 1.5))
        assert trial.faults == ()
        assert trial.n_acknowledged > 0
