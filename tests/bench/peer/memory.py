"""How much memory a server takes: its process and all below it. Knows nothing of what they do."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

__all__ = ["Memory", "memory_of"]


@dataclass(frozen=True, slots=True)
class Memory:
    """`rss_bytes` counts mapped weights too; `private_bytes` only what no other process or file shares."""

    rss_bytes: int
    private_bytes: int


def memory_of(pid: int) -> Memory:
    """Return the memory of the process tree at `pid`. Raises psutil.NoSuchProcess when it is gone."""
    root = psutil.Process(pid)
    used = [process.memory_full_info() for process in (root, *root.children(recursive=True))]
    return Memory(sum(memory.rss for memory in used), sum(memory.uss for memory in used))
