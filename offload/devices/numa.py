"""NUMA: the nodes of this machine, and how llama.cpp is to spread threads over them.

Memory is read fastest by the processors of its own node. `distribute` pins threads to the nodes in turns, so that the
memory channels of all are used; `isolate` to the node that the program is on; `numactl` keeps them where taskset or
numactl put the program. llama.cpp then maps files without reading ahead, so that the thread that first reads a page
places it. Sources: `ggml_numa_init` and `set_numa_thread_affinity` in ggml/src/ggml-cpu/ggml-cpu.c and `llama_mmap` in
src/llama-mmap.cpp, as vendored in llama-cpp-python 0.3.36; llama.cpp's tools/completion/README.md; that `distribute`
nearly doubles tokens a second on two nodes: llama.cpp#13850, #1437. Nothing of it was measured here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from offload.devices.host import listed_processors

_NODES = Path("/sys/devices/system/node")
_MOST_NODES = 8  # GGML_NUMA_MAX_NODES@0.3.36


class NumaStrategy(StrEnum):
    """The ways of `ggml_numa_strategy`, by llama.cpp's names; with OFF `llama_numa_init` is never called."""

    OFF = "off"
    DISTRIBUTE = "distribute"
    ISOLATE = "isolate"
    NUMACTL = "numactl"


AUTO = "auto"


@dataclass(frozen=True, slots=True)
class NumaChoice:
    strategy: NumaStrategy
    reason: str


def numa_nodes(folder: Path = _NODES) -> tuple[frozenset[int], ...]:
    """Return the processors of each node, as far as llama.cpp counts nodes: from 0 on without a gap, at most 8. Empty
    where the system has no such list."""
    nodes: list[frozenset[int]] = []
    while len(nodes) < _MOST_NODES:
        try:
            text = (folder / f"node{len(nodes)}" / "cpulist").read_text(encoding="ascii")
            nodes.append(frozenset(listed_processors(text)))
        except (OSError, ValueError):
            break
    return tuple(nodes)


def choose_numa(
    wanted: str, nodes: Sequence[frozenset[int]], usable: Collection[int], *, computes: bool
) -> NumaChoice | None:
    """Return how to spread threads that may run on the `usable` processors, None where there is one node only. `wanted`
    is a strategy or AUTO; `computes` is False where GPUs have all layers."""
    if len(nodes) < 2:
        return None
    if wanted != AUTO:
        return NumaChoice(NumaStrategy(wanted), f"{len(nodes)} nodes")
    if not computes:
        return NumaChoice(NumaStrategy.OFF, "the GPUs compute everything")
    if not all(nodes):  # pinning a thread to such a node fails, with a message for each thread and step
        return NumaChoice(NumaStrategy.OFF, f"not each of {len(nodes)} nodes has processors")
    reached = sum(not node.isdisjoint(usable) for node in nodes)
    if reached < len(nodes):
        return NumaChoice(NumaStrategy.OFF, f"this process may run on {reached} of {len(nodes)} nodes only")
    if not frozenset().union(*nodes) <= frozenset(usable):
        return NumaChoice(NumaStrategy.NUMACTL, f"this process may not run on all processors of its {len(nodes)} nodes")
    return NumaChoice(NumaStrategy.DISTRIBUTE, f"over {len(nodes)} nodes")
