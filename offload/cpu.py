"""What the processor is and how much of it this process may use.

Owns the reading of names and counts, one way per system. Knows nothing of speed.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil

__all__ = ["cpu_name", "default_threads", "usable_processors"]


def cpu_name() -> str:
    """Return the processor's name and instruction sets as its system tells them, on one line."""
    if sys.platform == "linux":
        return _from_cpuinfo(Path("/proc/cpuinfo"))
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or platform.machine()
    return platform.processor() or platform.machine()


def _from_cpuinfo(path: Path) -> str:
    """Return the first processor's model and flags; Arm kernels name it by its part number instead."""
    wanted = ("model name", "flags", "CPU implementer", "CPU part", "Features")
    values: dict[str, str] = {}
    for line in path.read_text(errors="replace").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in wanted:
            values.setdefault(name, value)
    return " ".join(values[name] for name in wanted if name in values) or platform.machine()


def default_threads() -> int:
    """Return the physical cores that this process may use: hyper-threads only wait for the same memory."""
    usable = usable_processors()
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def usable_processors() -> int:
    """Return the processors that this process may use, hyper-threads counted."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
