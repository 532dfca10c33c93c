"""Kills a process whose tools write, edit and undo files at random moments, and looks for what is lost.

    uv run python tests/battery/kills/kill_tools.py [--kills 100] [--seed 1]

Fails the run when a file is neither what it was nor what it was to become, when a former content that was recorded
cannot be read any more, when the changes cannot be taken back to the first bytes and permission bits, and when a
partial file is left. Seeded.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from tests.app.tools.killed_file_writer import kill_a_file_writer
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
            seed = str(chance.random())
            trials.append(kill_a_file_writer(Path(folder, str(number)), chance.uniform(0, 1.5), seed))
            for fault in trials[-1].faults:
                print(f"kill {number}: {fault}", flush=True)
    n_faulty = sum(bool(trial.faults) for trial in trials)
    print(f"{options.kills - n_faulty} of {options.kills} kills as they should be")
    n_changes, n_cut_off = sum(trial.n_changes for trial in trials), sum(trial.was_cut_off for trial in trials)
    print(f"recorded changes: {n_changes:,}; kills between record and write or within an undo: {n_cut_off}")
    finish(options.kills, n_faulty, options.seed)


if __name__ == "__main__":
    main()
