"""How long a plan takes after a key: the planner's arithmetic, and the same through the service's planner.

For each outline of tests/offload on three machines, layers and context are turned as the keys of the plan screen do;
printed are the median and the worst of all turns in milliseconds of the processor (what else it does then does not
count), without ways out (as after a key) and with them.

    python tests/bench/plans/replan.py [--turns 40]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import median

from app.protocol.plan import describe_plan
from offload.devices.machine import Machine
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel, RunConfig
from offload.plan import plan
from offload.speed.cost_model import expected_rates
from quantizer.gguf.tensor_types import file_type_named
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import OUTLINES, header_of

NAMES = ("RTX 3060 12 GB, 32 GB RAM", "2 × RTX 3090, 64 GB RAM", "processor only, 32 GB")


def turns(model: PlannedModel, machine: Machine, n_turns: int) -> Iterator[RunConfig]:
    """Yield questions as keys make them: each other layers on the first GPU, or another context."""
    n_layers = model.header.integer(f"{model.header.architecture}.block_count") or 1
    for turn in range(n_turns):
        layers = {machine.gpus[0].name: turn % n_layers} if machine.gpus and turn % 2 else None
        yield RunConfig(
            n_ctx=1024 << turn % 5,
            kv_types=KvTypes(),
            n_sequences=8,
            is_fused=bool(machine.gpus),
            gpu_layers=layers,
        )


def timed_ms(model: PlannedModel, machine: Machine, n_turns: int, *, wants_remedies: bool) -> list[float]:
    rates, found = expected_rates(machine), []
    for question in turns(model, machine, n_turns):
        started_s = time.process_time()
        describe_plan(plan(model, question, machine, rates, wants_remedies=wants_remedies))
        found.append(1000 * (time.process_time() - started_s))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=40)
    n_turns = parser.parse_args().turns
    print(f"{'model':<18} {'machine':<28} {'key: median':>12} {'worst':>7} {'full: median':>13} {'worst':>7}  ms")
    for name in OUTLINES:
        header = header_of(name)
        if header.architecture == "bert":
            continue
        model = PlannedModel(header, header.tensors).quantized(file_type_named("Q4_K_M"))
        for machine_name in NAMES:
            machine = MACHINES[machine_name]
            quick, full = (timed_ms(model, machine, n_turns, wants_remedies=wants) for wants in (False, True))
            print(
                f"{name:<18} {machine_name:<28} {median(quick):>12.1f} {max(quick):>7.1f}"
                f" {median(full):>13.1f} {max(full):>7.1f}"
            )


if __name__ == "__main__":
    main()
