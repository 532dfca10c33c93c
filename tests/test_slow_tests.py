"""Which slow tests CI runs on a day."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SLOW_TESTS = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "slow_tests.py"))
chosen = SLOW_TESTS["chosen"]

FILES = [f"tests/app/test_{index}.py" for index in range(100)]


def test_each_file_has_its_turn_once_in_as_many_days_as_there_are_parts() -> None:
    days = [list(chosen(FILES, [], day)) for day in range(SLOW_TESTS["N_PARTS"])]
    assert sorted(file for day in days for file in day) == sorted(FILES)
    assert all(20 < len(day) < 50 for day in days)


@pytest.mark.parametrize("changed", ["app/7.py", "tests/app/test_7.py"])
def test_tests_of_what_changed_run_every_day(changed: str) -> None:
    assert all("tests/app/test_7.py" in list(chosen(FILES, [changed, "README.md"], day)) for day in range(3))
