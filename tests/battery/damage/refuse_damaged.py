"""Runs four hundred damaged models through whole jobs: each must be refused in a sentence, soon and in little memory.

    uv run python tests/battery/damage/refuse_damaged.py [--count 400] [--seed 1]

Fails the run when one is accepted, computes for more than two seconds, or kills its process; and when a sound one is
refused. Prints the most memory that a job took. Seeded.
"""

from __future__ import annotations

import argparse
import collections
import os
import shutil
import tempfile
from itertools import islice
from pathlib import Path

import psutil

from quantizer.system.errors import UserError
from quantizer.write.job import JobRequest, run_job
from tests.battery.tally import finish
from tests.quantizer.damaged_models import Originals, damages

MAX_S = 2.0
N_FAMILIES = 9


def outcome(source: Path, output: Path) -> str:
    """What became of quantizing `source`."""
    begun_s = computed_s()
    try:
        for _ in run_job(JobRequest(str(source), "Q4_0", str(output), n_threads=1, is_overwriting=False)):
            pass
    except UserError as error:
        elapsed_s = computed_s() - begun_s
        if error.cause.startswith("The quantizing process"):
            return f"died: {error}"
        return "refused" if elapsed_s <= MAX_S else f"late: {elapsed_s:.1f} s for {error}"
    return "accepted"


def computed_s() -> float:
    """Return the processor time of the children that have ended: other programs do not lengthen it."""
    times = os.times()
    return times.children_user + times.children_system


def peak_bytes() -> int:
    """The most memory that a finished child had resident; 0 on Windows, which does not say."""
    if psutil.WINDOWS:
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if psutil.MACOS else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tally: collections.Counter[str] = collections.Counter()
    n_faulty = 0
    with tempfile.TemporaryDirectory() as folder:
        originals = Originals.make(Path(folder))
        for source in (originals.gguf, originals.shards[0], originals.checkpoint):
            n_faulty += outcome(source, Path(folder, f"{source.stem}-control.gguf")) != "accepted"
        print(f"controls {'refused' if n_faulty else 'accepted'}; {peak_bytes() / 1e6:.0f} MB", flush=True)
        for damage in islice(damages(originals, -(-options.count // N_FAMILIES), options.seed), options.count):
            place = Path(folder, "damaged")
            place.mkdir()
            result = outcome(damage.write(place), place / "out.gguf")
            shutil.rmtree(place)
            tally[f"{damage.family} {result.partition(':')[0]}"] += 1
            if result != "refused":
                n_faulty += 1
                print(f"{damage.family} {damage.what}: {result}", flush=True)
    for result, n_models in sorted(tally.items()):
        print(f"{n_models:5}  {result}")
    print(f"the largest job took {peak_bytes() / 1e6:.0f} MB")
    finish(options.count, n_faulty, options.seed)


if __name__ == "__main__":
    main()
