"""The processor of this machine, and how much of it this process may use.

Owns reading names and counts, one way per system. Independent of speed.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from quantizer.system.process import run_to_exit

_X86 = ("x86_64", "amd64")
_SYSCTL_TIMEOUT_S = 10.0
_CPUINFO = Path("/proc/cpuinfo")
_MODEL = ("model name",)
_MODEL_AND_FLAGS = (*_MODEL, "flags", "CPU implementer", "CPU part", "Features")


def cpu_name() -> str:
    """Return the processor's name and instruction sets on one line."""
    if sys.platform == "linux":
        return _from_cpuinfo(_CPUINFO, _MODEL_AND_FLAGS)
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return run_to_exit(command, _SYSCTL_TIMEOUT_S)[1].strip() or platform.machine()
    return platform.processor() or platform.machine()


def cpu_model() -> str:
    """Return the processor's name, without its instruction sets."""
    return _from_cpuinfo(_CPUINFO, _MODEL) if sys.platform == "linux" else cpu_name()


def _from_cpuinfo(path: Path, wanted: Sequence[str]) -> str:
    """Return the entries of the first processor; Arm kernels have a part number instead of a model name."""
    values: dict[str, str] = {}
    for line in path.read_text(errors="replace").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in wanted:
            values.setdefault(name, value)
    return " ".join(values[name] for name in wanted if name in values) or platform.machine()


def has_avx2() -> bool | None:
    """Return whether an x86 processor has AVX2; None for other processors and where the system does not report it."""
    if sys.platform != "linux" or platform.machine().lower() not in _X86:
        return None
    return " avx2 " in f"{cpu_name()} "


def default_threads() -> int:
    """Return the physical cores that this process may use: hyper-threads only wait for the same memory."""
    usable = usable_processors()
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def usable_processors() -> int:
    """Return the processors that this process may use, hyper-threads included."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
