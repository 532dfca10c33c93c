"""Tries to break localllm in every way that is known, and prints one table: tried, failed, and what repeats a failure.

Run: `uv run python -m tests.battery [--minutes N] [--jobs N] [--only NAME,...] [--seed N] [--record FILE]`. Each trial
is a program of its own in a folder beside this file, run in small batches, every batch with the next seed, until it was
tried as often as a whole run wants or the minutes are over. The first seed is that of the day, so that each day tries
something else; it is printed, and so is the command that repeats a batch that failed. A run with a record goes on where
the one before it was stopped. Exits with 1 where anything failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from tests.battery.trials import TRIALS, Battery, Outcome, Trial
from tests.bench.report import show

_SEEDS_PER_DAY = 1000  # so that two days have none in common
_N_LINES = 120  # of what a failed batch printed: a screen has 40


def run_batch(command: Sequence[str]) -> str:
    """Run `command` and return what it printed; of one that failed the end is printed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        print("\n".join(done.stdout.splitlines()[-_N_LINES:]), flush=True)
    return done.stdout


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return a row for each trial."""
    made = Table("trial", box=None, pad_edge=False)
    for name in ("tried", "failed", "s"):
        made.add_column(name, justify="right")
    for outcome in outcomes:
        made.add_row(outcome.trial.name, f"{outcome.n_tried:,}", f"{outcome.n_failed:,}", f"{outcome.seconds:.0f}")
    return made


def _chosen(names: str) -> Iterator[Trial]:
    wanted = [name.strip() for name in names.split(",")]
    yield from (trial for trial in TRIALS if any(map(trial.is_called, wanted)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for all trials together (a whole run)")
    parser.add_argument("--jobs", type=int, default=1, help="batches that run beside each other (1)")
    parser.add_argument("--only", default="", metavar="NAME,...", help="trials whose names contain one of these")
    today = datetime.now(UTC).date().toordinal() * _SEEDS_PER_DAY
    parser.add_argument("--seed", type=int, default=today, help="the first (that of the day)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="of the batches that ended: go on from there")
    options = parser.parse_args()
    trials = list(_chosen(options.only))
    if not trials:
        parser.error(f"no trial is called {options.only}; there is: {', '.join(trial.name for trial in TRIALS)}")
    print(f"seed {options.seed}", flush=True)
    battery = Battery(trials, options.seed, 60 * options.minutes, run_batch, record=options.record)
    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = [pool.submit(battery.work) for _ in range(options.jobs)]
        try:
            for job in jobs:
                job.result()
        except KeyboardInterrupt:
            battery.stop()
    show(table(battery.outcomes))
    for outcome in battery.outcomes:
        for command in outcome.failed:
            print(f"repeat: {command}")
    sys.exit(any(outcome.n_failed for outcome in battery.outcomes))


if __name__ == "__main__":
    main()
