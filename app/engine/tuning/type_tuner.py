"""The process that measures what each type of weights takes on the devices of this machine.

    python -m app.engine.tuning.type_tuner                     a TypeTuneRequest on stdin
    python -m app.engine.tuning.type_tuner N_THREADS --idle [--processor-time]

Every figure is stored at once, so the process may be ended at any time. With --idle it measures what is missing or was
measured beside other programs, at the lowest priority, and ends with its stdin; it exits with DISTURBED where other
programs took the processors meanwhile. With --processor-time those do not matter, of one thread.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from app.engine.load.machine import detect_machine
from app.engine.load.self_test import run_self_test
from app.engine.load.type_tables import TypeTables, gpu_key, host_key
from app.engine.model_task import TaskProgress, serve_task
from app.engine.tuning.tune_results import DISTURBED
from app.settings.settings import Settings, load_settings
from offload.devices.host import CpuTimes, default_threads, is_quiet, others_share, read_cpu_times
from offload.devices.machine import HOST_NAME
from offload.speed.type_costs import GraphCost, TypeCost
from quantizer.system.child_request import exit_with_parent
from quantizer.system.errors import UserError
from quantizer.system.process import lower_priority

if TYPE_CHECKING:
    from app.engine.llama.type_speeds import TypeBench

ClockName = Literal["wall", "processor"]
# Of one thread alone the processor's time says what it takes, also beside other programs.
_CLOCKS: dict[ClockName, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}


@dataclass(frozen=True, slots=True)
class TypeTuneRequest:
    """`n_threads` 0 uses the physical cores."""

    n_threads: int = 0
    clock: ClockName = "wall"


@dataclass(frozen=True, slots=True)
class MeasuredKind:
    """The cost of `kind` on `device`; None where the device has no such product."""

    device: str
    kind: str
    cost: TypeCost | None


def measure(settings: Settings, request: TypeTuneRequest, *, missing_only: bool = False) -> Iterator[MeasuredKind]:
    """Yield the cost of each kind on each device, stored at once; with `missing_only`, of those that lack one of a
    quiet machine. Raises EngineError."""
    is_safe = run_self_test(settings.cache_dir).is_safe  # before llama.cpp is loaded
    from app.engine.llama.devices import ggml_gpus, gpu_address
    from app.engine.llama.type_speeds import TypeBench

    tables, n_threads = TypeTables(settings.cache_dir), request.n_threads or default_threads()
    clock = _CLOCKS[request.clock]
    with closing(TypeBench(n_threads, repacks=is_safe, clock=clock)) as bench:
        yield from _device(HOST_NAME, host_key(n_threads), bench, tables, request.clock, missing_only=missing_only)
    gpus = tuple(ggml_gpus()) if settings.gpu else ()
    for gpu in detect_machine(gpus, settings.cache_dir).gpus if gpus else ():
        if not gpu.is_remote:
            with closing(TypeBench(0, repacks=False, device=gpu_address(gpu.name), clock=clock)) as bench:
                yield from _device(gpu.name, gpu_key(gpu), bench, tables, request.clock, missing_only=missing_only)


def _device(
    name: str, key: str, bench: TypeBench, tables: TypeTables, clock: ClockName, *, missing_only: bool
) -> Iterator[MeasuredKind]:
    known = tables.read(key)

    def is_known(cost: TypeCost | GraphCost | None) -> bool:
        return missing_only and cost is not None and is_quiet(cost.others_share)

    if name == HOST_NAME and not is_known(known.graph):
        before = read_cpu_times()
        graph = bench.graph_cost()
        tables.add_graph(key, replace(graph, others_share=_others_share(clock, before)))
    for kind, measure_kind in bench.kinds():
        if is_known(cost := known.types.get(kind)) and cost and cost.steps:  # which earlier versions did not measure
            continue
        before = read_cpu_times()
        cost = measure_kind()
        if cost is not None:
            cost = replace(cost, others_share=_others_share(clock, before))
            tables.add(key, kind, cost)
        yield MeasuredKind(name, kind, cost)


def _others_share(clock: ClockName, before: CpuTimes) -> float | None:
    """Return the share of the processors that others took since `before`; None where that changed no figure."""
    return others_share(before, read_cpu_times()) if clock == "wall" else None


def _tune(request: TypeTuneRequest) -> Iterator[TaskProgress | MeasuredKind]:
    for index, found in enumerate(measure(load_settings(), request)):
        yield found
        yield TaskProgress(index, max(_N_KINDS, index + 1))


_N_KINDS = 56  # about: every type as the file has it, and repacked


def _tune_idle(request: TypeTuneRequest, read_times: Callable[[], CpuTimes] = read_cpu_times) -> int:
    before = read_times()
    for _ in measure(load_settings(), request, missing_only=True):
        after = read_times()
        if request.clock == "wall" and not is_quiet(others_share(before, after)):
            return DISTURBED
        before = after
    return 0


def main() -> int:
    """Measure as a request on stdin asks, or with `--idle` what is missing. Return 1 when that fails."""
    if "--idle" not in sys.argv:
        return serve_task(TypeTuneRequest, _tune)
    lower_priority(os.getpid(), is_lowest=True)
    exit_with_parent()
    try:
        clock: ClockName = "processor" if "--processor-time" in sys.argv else "wall"
        return _tune_idle(TypeTuneRequest(int(sys.argv[1]), clock))
    except UserError:
        return 1  # nobody reads the cause here: `localllm tune --types` reports it


if __name__ == "__main__":
    sys.exit(main())
