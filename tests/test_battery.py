from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import pytest

from tests.battery import TRIALS, Trial, attempt

TRIAL = Trial("kills of a thing", "kill_thing", "--kills", 4, 10)


def test_a_trial_runs_in_batches_of_other_seeds_until_it_is_whole() -> None:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> str:
        commands.append(command)
        return "kill 3: lost a word\ntried 4, failed 0, seed 7\n"

    outcome = attempt(TRIAL, 7, float("inf"), run, lambda: 0.0)
    assert (outcome.n_tried, outcome.n_failed) == (12, 0)
    assert [command[-4:] for command in commands] == [["--kills", "4", "--seed", str(seed)] for seed in (7, 8, 9)]


def test_a_trial_ends_with_its_time_but_not_before_its_first_batch() -> None:
    ticks = iter(range(100))
    outcome = attempt(TRIAL, 1, 0.0, lambda _command: "tried 4, failed 0, seed 1", lambda: float(next(ticks)))
    assert outcome.n_tried == 4


@pytest.mark.parametrize(
    ("output", "n_failed"), [("tried 4, failed 2, seed 1\n", 2), ("Traceback (most recent call last):\n", 1)]
)
def test_a_batch_that_fails_or_does_not_end_is_counted_with_the_command_that_repeats_it(
    output: str, n_failed: int
) -> None:
    outcome = attempt(TRIAL, 1, 0.0, lambda _command: output)
    assert outcome.n_failed == n_failed
    assert outcome.failed == ["python -m tests.bench.kill_thing --kills 4 --seed 1"]


def test_every_trial_is_a_benchmark_that_exists() -> None:
    assert all(importlib.util.find_spec(f"tests.bench.{trial.module}") for trial in TRIALS)


def test_a_trial_without_a_count_is_run_as_it_is() -> None:
    assert Trial("what is no request", "abuse", "", 1, 1).command(7)[-1] == "tests.bench.abuse"
