"""Kills a process that reads a folder of knowledge at random moments, and looks for what it had stored.

    uv run python tests/battery/kills/kill_knowledge.py [--kills 100] [--seed 1]

Fails the run when the database or its index is damaged, when an acknowledged file is missing, older or half of it, or
when the next update does not make all of it whole. Seeded.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from tests.app.knowledge.killed_reader import kill_a_reader
from tests.battery.tally import finish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    trials = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.kills):
            trials.append(kill_a_reader(Path(folder, str(number)), chance.uniform(0, 1)))
            for fault in trials[-1].faults:
                print(f"kill {number}: {fault}", flush=True)
    n_faulty = sum(bool(trial.faults) for trial in trials)
    print(f"{options.kills - n_faulty} of {options.kills} kills as they should be")
    print(f"acknowledged updates: {sum(trial.n_acknowledged for trial in trials):,}, all there unless told above")
    finish(options.kills, n_faulty, options.seed)


if __name__ == "__main__":
    main()
