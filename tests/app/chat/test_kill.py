from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.app.chat.killed_writer import kill_a_writer

pytestmark = pytest.mark.slow


def test_a_kill_loses_no_acknowledged_message_and_at_most_a_second_of_a_running_one(tmp_path: Path) -> None:
    chance = random.Random(8)
    for number in range(4):
        trial = kill_a_writer(tmp_path / str(number), chance.uniform(0.1, 1.5))
        assert trial.faults == ()
        assert trial.n_acknowledged > 0
