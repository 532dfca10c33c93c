"""The memory that models may use: the system's, or less where a container or the process's limits allow less.

Owns reading the limits of control groups; `quantizer.system.memory_limit` reads those of the process. Knows nothing
of their use. Source: the kernel's documents of cgroup v1 (memory.limit_in_bytes, and memory.memsw.limit_in_bytes,
which counts swap too) and v2 (memory.max; memory.high, above which the system slows the group down). No plan counts
on swap, so v2's memory.swap.max changes nothing. A limit above the system's memory is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from quantizer.system.memory_limit import MemoryLimit, ProcessBytes, memory_limits

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
# Limit and use, in bytes, and the pages of files in memory.stat: of version 2, of version 1.
_PAGES, _PAGES_V1 = ("inactive_file", "active_file"), ("total_inactive_file", "total_active_file")
_FILES = (
    ("memory.max", "memory.current", _PAGES),
    ("memory.high", "memory.current", _PAGES),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", _PAGES_V1),
    ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", _PAGES_V1),
)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes in all and free now; `is_limited` where a container or a process may use less than the system has."""

    total_bytes: int
    free_bytes: int
    is_limited: bool = False


def host_memory() -> HostMemory:
    """Return the memory that an engine process may use for models: this machine's, or what limits leave of it."""
    system = psutil.virtual_memory()
    container = container_limit()
    limits = [process_limit(limit) for limit in memory_limits()] + ([container] if container else [])
    limits = [limit for limit in limits if limit.total_bytes < system.total]
    return HostMemory(
        min([limit.total_bytes for limit in limits], default=system.total),
        min([system.available, *(limit.free_bytes for limit in limits)]),
        is_limited=bool(limits),
    )


def process_limit(limit: MemoryLimit) -> HostMemory:
    """Return what `limit` leaves to an engine process, beside what it takes before it loads a model."""
    return HostMemory(limit.max_bytes, limit.free_bytes(ProcessBytes.ENGINE), is_limited=True)


def container_limit(root: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> HostMemory | None:
    """Return the tightest limit of this process's control groups below `root`, None where none can be read."""
    limits = [limit for folder in _folders(root, own) for files in _FILES if (limit := _limit(folder, *files))]
    return min(limits, key=lambda limit: limit.free_bytes, default=None)


def _folders(root: Path, own: Path) -> list[Path]:
    """Return the folder of this process's group in either version, and of every group around it."""
    folders = {root, root / "memory"}
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, _, after_number = line.partition(":")
        controllers, _, path = after_number.partition(":")
        base = root / "memory" if "memory" in controllers.split(",") else root
        inside = base.joinpath(*[part for part in path.split("/") if part not in ("", "..")])
        folders |= {inside, *(parent for parent in inside.parents if parent.is_relative_to(base))}
    return sorted(folders)


def _limit(folder: Path, limit_name: str, used_name: str, page_names: Sequence[str]) -> HostMemory | None:
    """Return one group's limit; "max", or no file, means that it has none.

    The pages of files count as free, as the system counts its own: it drops them for whoever needs memory.
    """
    try:
        limit = int((folder / limit_name).read_text(encoding="ascii"))
        used = int((folder / used_name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    used -= min(used, _file_bytes(folder / "memory.stat", page_names))
    return HostMemory(limit, max(0, limit - used), is_limited=True)


def _file_bytes(statistics: Path, names: Sequence[str]) -> int:
    try:
        fields = dict(line.split() for line in statistics.read_text(encoding="ascii").splitlines())
        return sum(int(fields.get(name, 0)) for name in names)
    except (OSError, ValueError):
        return 0
