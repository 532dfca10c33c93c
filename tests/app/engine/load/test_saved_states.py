"""Chats that left the cache of a real model stay within what its plan says, and leave memory that others need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REAL = Path(__file__).with_name("real_saved_states.py")
GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
MIB = 1 << 20


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("cache")
    run = subprocess.run(
        [sys.executable, str(REAL), str(GUIDE), str(folder)], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    results: dict[str, Any] = json.loads(run.stdout)
    return results


@pytest.mark.slow
def test_they_take_at_most_what_the_plan_says(played: dict[str, Any]) -> None:
    assert played["planned"] == 4 * MIB
    assert 0 < played["largest"] <= played["planned"]


def test_the_others_are_on_disk_and_come_back(played: dict[str, Any]) -> None:
    assert played["files"] == 16
    assert played["cached"] > 600


@pytest.mark.slow
def test_while_programs_wait_for_memory_all_of_it_is_given_back(played: dict[str, Any]) -> None:
    assert played["stalled"] == 0
