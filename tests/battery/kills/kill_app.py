"""Kills the engine worker, the service or the terminal app at random moments while a person uses the real app over the
guide, and looks for everything that was said.

    uv run python tests/battery/kills/kill_app.py [--kills 100] [--seed 1]

The person is a seeded one at a pseudo-terminal: asks, stops, edits, goes about, opens other chats, quantizes the guide.
After each kill the app must be there, say what happened and answer again; every question that was on the screen and all
but the last second of an answer must be in chats.db, which must be whole; jobs must be listed and none said to run that
does not; nothing may outlive its owner. In the end interrupted jobs are retried and questions found again. A run of 25
takes about two minutes; runs of other seeds add up. Needs a POSIX system.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.battery.tally import finish
from tests.bench.served import free_port
from tests.tui.killed_app import KilledApp, Trial

_VICTIMS = ("worker", "service", "app")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory() as folder:
        killed = KilledApp(Path(folder), free_port(), chance)
        try:
            killed.start()
            for number in range(options.kills):
                trials.append(killed.kill(chance.choice(_VICTIMS)))
                for fault in trials[-1].faults:
                    print(
                        f"kill {number}, {trials[-1].victim} while the person {trials[-1].doing}: {fault}", flush=True
                    )
            faults = killed.finish()
        finally:
            killed.app.end()
            _print_table(trials)
    for fault in faults:
        print(f"in the end: {fault}")
    n_faulty = sum(bool(trial.faults) for trial in trials)
    finish(len(trials), n_faulty + bool(faults), options.seed)


def _print_table(trials: Sequence[Trial]) -> None:
    print(
        f"{'victim':<10}{'kills':>7}{'by itself':>11}{'by a key':>10}{'faulty':>8}{'lost':>6}{'answers after, s':>18}"
    )
    for victim in _VICTIMS:
        of_it = [trial for trial in trials if trial.victim == victim]
        if not of_it:
            continue
        n_by_key = sum(bool(trial.key) for trial in of_it)
        n_faulty, n_lost = sum(bool(trial.faults) for trial in of_it), sum(trial.n_lost for trial in of_it)
        counts = f"{len(of_it):>7}{len(of_it) - n_by_key:>11}{n_by_key:>10}{n_faulty:>8}{n_lost:>6}"
        print(f"{victim:<10}{counts}{statistics.median(trial.ready_s for trial in of_it):>18.2f}")
    print(f"oldest text lost of a running answer: {max((trial.lost_s for trial in trials), default=0.0):.2f} s")


if __name__ == "__main__":
    main()
