"""What a process holds of the processor's memory. None holds nothing, nor does a process that has ended."""

from __future__ import annotations

from typing import Any

import psutil

__all__ = ["private_bytes", "resident_bytes"]


def resident_bytes(pid: int | None) -> int:
    """Return the memory that a process has in use."""
    info = _info(pid)
    return int(info.rss) if info is not None else 0


def private_bytes(pid: int | None) -> int:
    """Return it without pages of files, which systems count as free; all of it where the system does not tell them
    apart."""
    info = _info(pid)
    return int(info.rss - getattr(info, "shared", 0)) if info is not None else 0


def _info(pid: int | None) -> Any:
    try:
        return psutil.Process(pid).memory_info() if pid is not None else None
    except psutil.Error:  # it has just ended
        return None
