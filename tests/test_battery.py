from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.battery.trials import TRIALS, Battery, Outcome, Trial
from tests.patience import PATIENCE_S

TRIAL = Trial("kills of a thing", "kill_thing", "--kills", 4, 10)
OTHER = Trial("breaks of a thing", "break_thing", "--breaks", 4, 100)


def _worked(battery: Battery) -> tuple[Outcome, ...]:
    battery.work()
    return battery.outcomes


def test_a_trial_runs_in_batches_of_other_seeds_until_it_is_whole() -> None:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> str:
        commands.append(command)
        return "kill 3: lost a word\ntried 4, failed 0, seed 7\n"

    (outcome,) = _worked(Battery([TRIAL], 7, float("inf"), run, lambda: 0.0))
    assert (outcome.n_tried, outcome.n_failed) == (8, 0)
    assert [command[-3:] for command in commands] == [["4", "--seed", "7"], ["6", "--seed", "8"]]


def test_batches_double_until_one_takes_five_minutes_and_fit_into_the_time() -> None:
    now_s, sizes = 0.0, []

    def run(command: Sequence[str]) -> str:
        nonlocal now_s
        sizes.append(int(command[command.index("--breaks") + 1]))
        now_s += 20.0 * sizes[-1]
        return f"tried {sizes[-1]}, failed 0, seed 1"

    _worked(Battery([OTHER], 1, 700.0, run, lambda: now_s))
    assert sizes == [4, 8, 15, 8]
    assert now_s == 700.0


def test_each_trial_is_tried_once_when_the_time_is_over_from_the_start() -> None:
    outcomes = _worked(Battery([TRIAL, OTHER], 1, 0.0, lambda _command: "tried 4, failed 0, seed 1"))
    assert [outcome.n_tried for outcome in outcomes] == [4, 4]


def test_the_next_batch_is_that_of_the_trial_which_had_the_least_time() -> None:
    now_s, modules = 0.0, []

    def run(command: Sequence[str]) -> str:
        nonlocal now_s
        modules.append(command[command.index("-m") + 1].removeprefix("tests.battery."))
        now_s += 5.0 if modules[-1] == TRIAL.module else 1.0
        return "tried 1, failed 0, seed 1"

    _worked(Battery([TRIAL, OTHER], 1, 12.0, run, lambda: now_s))
    assert modules == [
        "kill_thing",
        "break_thing",
        "break_thing",
        "break_thing",
        "break_thing",
        "break_thing",
        "kill_thing",
    ]


def test_two_jobs_run_batches_of_two_trials_beside_each_other() -> None:
    together = threading.Barrier(2, timeout=PATIENCE_S)
    running: set[str] = set()

    def run(command: Sequence[str]) -> str:
        running.add(command[command.index("-m") + 1])
        together.wait()
        return "tried 10, failed 0, seed 1"

    battery = Battery([replace(TRIAL, batch=10), replace(OTHER, batch=10, whole=10)], 1, float("inf"), run)
    with ThreadPoolExecutor(2) as pool:
        for job in [pool.submit(battery.work) for _ in range(2)]:
            job.result()
    assert running == {"tests.battery.kill_thing", "tests.battery.break_thing"}
    assert [outcome.n_tried for outcome in battery.outcomes] == [10, 10]


@pytest.mark.parametrize(("output", "n_tried"), [("tried 4, failed 0, seed 1\n", 4), ("^C\n", 0)])
def test_once_stopped_no_batch_begins_and_one_that_is_cut_off_is_not_counted(output: str, n_tried: int) -> None:
    def run(_command: Sequence[str]) -> str:
        battery.stop()
        return output

    battery = Battery([TRIAL], 1, float("inf"), run)
    (outcome,) = _worked(battery)
    assert (outcome.n_tried, outcome.n_failed) == (n_tried, 0)


@pytest.mark.parametrize(
    ("output", "n_failed"), [("tried 4, failed 2, seed 1\n", 2), ("Traceback (most recent call last):\n", 1)]
)
def test_a_batch_that_fails_or_does_not_end_is_counted_with_the_command_that_repeats_it(
    output: str, n_failed: int
) -> None:
    (outcome,) = _worked(Battery([TRIAL], 1, 0.0, lambda _command: output))
    assert outcome.n_failed == n_failed
    assert outcome.failed == ["python -m tests.battery.kill_thing --kills 4 --seed 1"]


def test_a_run_with_a_record_goes_on_where_the_one_before_was_stopped(tmp_path: Path) -> None:
    record, commands = tmp_path / "whole.jsonl", []

    def run(command: Sequence[str]) -> str:
        commands.append(command)
        return f"tried {command[-3]}, failed {len(commands) % 2}, seed {command[-1]}\n"

    _worked(Battery([TRIAL, OTHER], 1, 0.0, run, record=record))
    (outcome,) = _worked(Battery([TRIAL], 1001, float("inf"), run, record=record))
    assert [command[-3:] for command in commands] == [
        ["4", "--seed", "1"],
        ["4", "--seed", "1"],
        ["6", "--seed", "1002"],
    ]
    assert (outcome.n_tried, outcome.n_failed) == (10, 2)
    assert outcome.failed == [
        f"python -m tests.battery.kill_thing --kills {n}" for n in ("4 --seed 1", "6 --seed 1002")
    ]
    assert _worked(Battery([TRIAL], 2001, float("inf"), run, record=record)) == (outcome,)
    assert len(commands) == 3


def test_every_trial_is_a_benchmark_that_exists() -> None:
    assert all(importlib.util.find_spec(f"tests.battery.{trial.module}") for trial in TRIALS)


def test_a_trial_without_a_count_is_run_as_it_is() -> None:
    assert Trial("what is no request", "clients.abuse", "", 1, 1).command(7, 1)[-1] == "tests.battery.clients.abuse"
