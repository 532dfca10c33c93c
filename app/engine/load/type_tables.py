"""The measured cost of each type of weights on the devices of this machine, `<cache>/types.json`.

Entries are by build of llama.cpp and processor, of a processor also by the number of threads, of a GPU by its driver.
Independent of how they are measured (`app.engine.tuning.type_tuner`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.load.machine_file import MachineFile, this_build
from app.protocol.codec import decode_checked, encode
from offload.devices.gpus import driver_versions
from offload.devices.host import default_threads, is_quiet
from offload.devices.machine import HOST_NAME, Device, Machine
from offload.speed.type_costs import GraphCost, TypeCost, TypeTable, faster_copies

if TYPE_CHECKING:
    from offload.footprint.model import PlannedModel, RunConfig

FILE_NAME = "types.json"
_TILES = f"{HOST_NAME} tiles"
_GRAPH = "graph"  # beside the kinds, which are written with capitals


class TypeTables:
    """The measurements of this machine in a file of `cache_dir`, which may be missing."""

    def __init__(self, cache_dir: Path, build: str = "") -> None:
        self._file = MachineFile(cache_dir / FILE_NAME, build or this_build())

    def read(self, device: str) -> TypeTable:
        """Return the table of `device`, a name of `host_key` or `gpu_key`; empty before it was measured."""
        types: dict[str, TypeCost] = {}
        graph = None
        for kind, entry in self._file.entry(device).items():
            with suppress(ValueError):  # damaged, or written by another version
                if kind == _GRAPH:
                    graph = decode_checked(GraphCost, entry)
                else:
                    types[kind] = decode_checked(TypeCost, entry)
        return TypeTable(types, graph)

    def add(self, device: str, kind: str, cost: TypeCost) -> None:
        self._file.update(device, {kind: encode(cost)})

    def tiled_from(self) -> dict[str, int]:
        """Return from how many rows on tiled kernels pay for a type of weights, by name, as far as it was measured."""
        found = self._file.entry(_TILES)
        return {name: rows for name, rows in found.items() if isinstance(rows, int) and not isinstance(rows, bool)}

    def add_tiled_from(self, name: str, n_rows: int) -> None:
        self._file.update(_TILES, {name: n_rows})

    def add_graph(self, device: str, cost: GraphCost) -> None:
        self._file.update(device, {_GRAPH: encode(cost)})


def host_key(n_threads: int) -> str:
    return f"{HOST_NAME} {n_threads} threads"


def quick_key() -> str:
    """Return the name of what `app.engine.load.quick_types` measured, which no plan uses."""
    return f"{HOST_NAME} prompts only"


def gpu_key(gpu: Device) -> str:
    return f"{gpu.name} {gpu.description} {gpu.total_bytes}, {driver_versions()}"


def type_tables(machine: Machine, cache_dir: Path, n_threads: int = 0) -> Mapping[str, TypeTable]:
    """Return the tables of the devices of `machine`, this one, by name, of a processor with `n_threads` (0: physical
    cores). A device that was not measured is missing."""
    tables = TypeTables(cache_dir)
    keys = {machine.host.name: host_key(n_threads or default_threads())}
    keys |= {gpu.name: gpu_key(gpu) for gpu in machine.gpus if not gpu.is_remote}
    found = {name: tables.read(key) for name, key in keys.items()}
    return {name: table for name, table in found.items() if table.types}


def copies_here(cache_dir: Path, n_threads: int, *, is_repacked: bool) -> dict[str, str]:
    """Return the types that this processor reads much faster as another kind, with that."""
    return faster_copies(prompt_table(cache_dir, n_threads), is_repacked=is_repacked)


def expected_step_ratios(
    model: PlannedModel, run_config: RunConfig, cache_dir: Path, n_threads: int
) -> dict[int, float]:
    """Return what steps of several tokens of `model` are expected to cost on this processor, in steps of one; empty
    before its types were measured."""
    from offload.speed.step_costs import CPU_COST_RATIOS, step_ratios  # imports numpy

    table = _quiet_table(cache_dir, n_threads)
    run_config = replace(run_config, n_prompt=2 * run_config.depth)  # for the speed of its middle is asked
    return step_ratios(model.profile(run_config), table, CPU_COST_RATIOS) if table.types else {}


def prompt_table(cache_dir: Path, n_threads: int) -> TypeTable:
    """Return what prompts take with weights of each kind on this processor; of kinds that are not in its table what was
    measured for copies alone."""
    quick = TypeTables(cache_dir).read(quick_key())
    return TypeTable({**quick.types, **_quiet_table(cache_dir, n_threads).types})


def _quiet_table(cache_dir: Path, n_threads: int) -> TypeTable:
    """Return the table of this processor without what was measured beside other programs: there any type may seem slow.
    How much faster one is than another hardly depends on the threads: without a table for `n_threads` that for the
    physical cores counts."""
    tables = TypeTables(cache_dir)
    found = tables.read(host_key(n_threads or default_threads()))
    if not found.types:
        found = tables.read(host_key(default_threads()))
    types = {
        kind: cost for kind, cost in found.types.items() if cost.others_share is None or is_quiet(cost.others_share)
    }
    return TypeTable(types, found.graph)
