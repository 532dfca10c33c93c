"""The memory that this process may use: the system's, or less where a container limits it.

Owns reading limits. Independent of their use. Source: the kernel's documents of cgroup v1 (memory.limit_in_bytes) and
v2 (memory.max); a limit above the system's memory is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["HostMemory", "container_limit", "host_memory"]

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
# Limit and use, in bytes: of version 2, of version 1.
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes in all and free now; `is_limited` where a container allows less than the system has."""

    total_bytes: int
    free_bytes: int
    is_limited: bool = False


def host_memory() -> HostMemory:
    """Return the memory of this machine or container."""
    system = psutil.virtual_memory()
    limit = container_limit()
    if limit is None or limit.total_bytes >= system.total:
        return HostMemory(system.total, system.available)
    return HostMemory(limit.total_bytes, min(limit.free_bytes, system.available), is_limited=True)


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


def _limit(folder: Path, limit_name: str, used_name: str) -> HostMemory | None:
    """Return one group's limit; "max", or no file, means that it has none."""
    try:
        limit = int((folder / limit_name).read_text(encoding="ascii"))
        used = int((folder / used_name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return HostMemory(limit, max(0, limit - used), is_limited=True)
