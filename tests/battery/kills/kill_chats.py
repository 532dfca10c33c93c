"""Kills a process that writes chats at random moments, and looks for what it was told is kept.

    uv run python tests/battery/kills/kill_chats.py [--kills 100] [--seed 1] [--tools]

Fails the run when the database is damaged, when an acknowledged message is missing or other than it was, or when more
than the last second of a running answer is lost. With --tools the answers call tools: then also when a call, or a
change that it may have made, is not stored, or would run again. Seeded.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from tests.app.chat.killed_rounds import kill_rounds
from tests.app.chat.killed_writer import kill_a_writer
from tests.battery.tally import finish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tools", action="store_true")
    options = parser.parse_args()
    kill = kill_rounds if options.tools else kill_a_writer
    chance = random.Random(options.seed)
    trials = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.kills):
            trials.append(kill(Path(folder, str(number)), chance.uniform(0, 3)))
            for fault in trials[-1].faults:
                print(f"kill {number}: {fault}", flush=True)
    n_faulty = sum(bool(trial.faults) for trial in trials)
    print(f"{options.kills - n_faulty} of {options.kills} kills as they should be")
    print(f"acknowledged messages: {sum(trial.n_acknowledged for trial in trials):,}, all there unless told above")
    print(f"longest wait of text that was lost: {max(trial.lost_s for trial in trials):.2f} s")
    finish(options.kills, n_faulty, options.seed)


if __name__ == "__main__":
    main()
