"""The processor of this machine: its name, the cores and the memory that models may use, and its present load.

Cores are those on which this process may run, or the time of as many where a container has a quota.

Memory is the system's, or less where a container or the process's limits allow less. Source: the kernel's documents of
cgroup v1 (memory.limit_in_bytes, and memory.memsw.limit_in_bytes, which counts swap too) and v2 (memory.max;
memory.high, above which the system slows the group down). No plan counts on swap, so v2's memory.swap.max is ignored,
and so is a limit above the system's memory.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from quantizer.system.memory_limit import MemoryLimit, ProcessBytes, memory_limits
from quantizer.system.process import run_to_exit

_X86 = ("x86_64", "amd64")
_SYSCTL_TIMEOUT_S = 10.0
_CPUINFO = Path("/proc/cpuinfo")
_LOADAVG = Path("/proc/loadavg")
_N_SAMPLES, _SAMPLE_S = 5, 0.001
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
    """Return the physical cores that this process may use: hyper-threads only wait for the same memory, and a slow core
    makes the fast ones wait at each barrier."""
    usable = usable_processors()
    cores = performance_cores(affinity()) or psutil.cpu_count(logical=False) or usable
    return max(1, min(usable, cores))


def usable_processors() -> int:
    """Return the processors that this process may use, hyper-threads included, or the time of as many."""
    n_processors, quota = len(affinity()), container_processors()
    # With 1.5 processors two threads compute for three quarters of each period and wait for the rest of it.
    return n_processors if quota is None else max(1, min(n_processors, int(quota + 0.5)))


def affinity() -> frozenset[int]:
    """Return the numbers of the processors on which this process may run."""
    if sys.platform == "linux":
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


_DEVICES = Path("/sys/devices")


def performance_cores(usable: Collection[int], devices: Path = _DEVICES) -> int | None:
    """Return the number of fast cores, where a processor has two kinds and the system tells them apart: Apple's, and
    Intel's under Linux. None elsewhere, and where this process may run on slow cores only. Source: sysctl's
    hw.perflevel0, and `cpu_core` of Linux's perf events."""
    if sys.platform == "darwin":
        return _apple_performance_cores()
    try:
        fast = listed_processors((devices / "cpu_core" / "cpus").read_text(encoding="ascii")).intersection(usable)
        topology = (devices / "system" / "cpu" / f"cpu{number}" / "topology" for number in fast)
        cores = {tuple((each / name).read_text() for name in ("physical_package_id", "core_id")) for each in topology}
    except (OSError, ValueError):
        return None
    return len(cores) or None


@cache
def _apple_performance_cores() -> int | None:
    try:
        _, output, _ = run_to_exit(["/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu"], _SYSCTL_TIMEOUT_S)
        return int(output)
    except (OSError, TimeoutError, ValueError):  # a Mac with an Intel processor has one kind, and no such name
        return None


def listed_processors(text: str) -> set[int]:
    """Return the numbers of a list such as 0-3,8."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}


def runs_on_battery() -> bool:
    """Return whether this machine runs on a battery now; one that does not say counts as plugged in."""
    read = getattr(psutil, "sensors_battery", None)  # a platform without it has no battery that psutil knows
    try:
        battery = None if read is None else read()
    except (OSError, ValueError, NotImplementedError):  # containers and virtual machines with half of /sys
        return False
    return battery is not None and battery.power_plugged is False


QUIET_SHARE = 0.2  # of the processors; an app that draws an answer takes 0.15 of two
_IDLE = ("idle", "iowait")
_COUNTED_TWICE = ("guest", "guest_nice")  # they are in `user` and `nice`
_N_ANCESTORS = 2  # the service, and the app that started it


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of all processors that this process may use, in total and idle, and those that our processes computed.
    Time that a hypervisor stole is neither idle nor ours."""

    total_s: float
    idle_s: float
    own_s: float


def others_share(before: CpuTimes, after: CpuTimes) -> float | None:
    """Return the share of the processors that others took between two readings; None where too little time passed."""
    total_s = after.total_s - before.total_s
    if total_s <= 0:
        return None
    ours_s = (after.idle_s - before.idle_s) + (after.own_s - before.own_s)
    return min(1.0, max(0.0, 1 - ours_s / total_s))


def is_quiet(share: float | None) -> bool:
    return share is not None and share <= QUIET_SHARE


def read_cpu_times() -> CpuTimes:
    """Return the present times of the processors, of this process and of those that started it."""
    return CpuTimes(*_processor_times(affinity()), sum(map(_computed_s, _own_processes())))


def _processor_times(usable: Collection[int]) -> tuple[float, float]:
    """Return the total and the idle seconds of the processors `usable`."""
    # With one line for all processors the cost does not grow with their number.
    is_all = len(usable) == psutil.cpu_count()
    found = [psutil.cpu_times()] if is_all else _each_of(psutil.cpu_times(percpu=True), usable)
    total_s = sum(_sum(times, times._fields) - _sum(times, _COUNTED_TWICE) for times in found)
    return total_s, sum(_sum(times, _IDLE) for times in found)


def _each_of(found: Sequence[Any], usable: Collection[int]) -> list[Any]:
    return [times for number, times in enumerate(found) if number in usable]


def _own_processes() -> list[psutil.Process]:
    process = psutil.Process()
    try:
        return [process, *process.parents()[:_N_ANCESTORS]]
    except psutil.Error:  # one of them has just ended
        return [process]


def running_threads() -> int | None:
    """Return how many threads of all programs run or wait for a processor now, with the one that asks; None where the
    system does not say. Source: the fourth field of /proc/loadavg, proc_loadavg(5)."""
    try:
        return int(_LOADAVG.read_text().split()[3].split("/")[0])
    except (OSError, ValueError, IndexError):
        return None


@dataclass(frozen=True, slots=True)
class ProcessorLoad:
    """What `n_processors` did: how many of them others took, and how many were idle."""

    others: float
    idle: float
    n_processors: int


class LoadMeter:
    """The load of the processors that this process may use, from one look to the next: 0.1 ms a look, where
    `read_cpu_times` takes 0.7. What the service and the app compute that started this process counts as ours; that of
    other engines as others'."""

    def __init__(
        self,
        usable: Collection[int] | None = None,
        read_times: Callable[[], CpuTimes] | None = None,
        read_running: Callable[[], int | None] = running_threads,
    ) -> None:
        self._usable = affinity() if usable is None else usable
        self._own = _own_processes()
        self._read_times = read_times or self._read
        self._read_running = read_running
        self._before: CpuTimes | None = None

    def has_room_now(self, n_threads: int) -> bool:
        """Return whether so many threads would each find a processor now, whatever others did before; False where the
        system does not say. Takes 5 ms where they would not. To be asked while nothing is computed here."""
        for number in range(1 + _N_SAMPLES):
            if number:  # what asked for an answer sleeps within a millisecond, a program that computes does not
                time.sleep(_SAMPLE_S)
            n_running = self._read_running()
            if n_running is None:
                return False
            if n_running - 1 + n_threads <= len(self._usable):
                return True
        return False

    def read(self) -> ProcessorLoad | None:
        """Return the load since the last call; None at the first one, or where the system's clock did not move."""
        before, now = self._before, self._read_times()
        self._before = now
        share = None if before is None else others_share(before, now)
        if before is None or share is None:
            return None
        n_processors = len(self._usable)
        idle = (now.idle_s - before.idle_s) / (now.total_s - before.total_s)
        return ProcessorLoad(share * n_processors, min(1.0, max(0.0, idle)) * n_processors, n_processors)

    def _read(self) -> CpuTimes:
        return CpuTimes(*_processor_times(self._usable), sum(map(_computed_s, self._own)))


def _sum(times: object, names: Iterable[str]) -> float:
    return sum(getattr(times, name, 0.0) for name in names)


def _computed_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_PRESSURE = Path("/proc/pressure/memory")
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


def memory_stalled_share(root: Path = _CGROUPS, own: Path = _OWN_CGROUP, system: Path = _PRESSURE) -> float:
    """Return the share of the last ten seconds in which some program of this machine, or of this process's control
    groups below `root`, waited for memory; 0 where the system does not say. Source: the kernel's document of pressure
    stall information; macOS and Windows have none, and free memory decides alone."""
    files = [system, *(folder / "memory.pressure" for folder in _folders(root, own, "memory"))]
    return max(map(_stalled_share, files), default=0.0)


def _stalled_share(file: Path) -> float:
    try:
        some = file.read_text(encoding="ascii").partition("\n")[0]  # some avg10=0.12 avg60=0.05 avg300=0.01 total=1234
        fields = dict(field.split("=") for field in some.split()[1:])
        return float(fields["avg10"]) / 100
    except (OSError, ValueError, KeyError):
        return 0.0


def process_limit(limit: MemoryLimit) -> HostMemory:
    """Return what `limit` leaves to an engine process, beside what it takes before it loads a model."""
    return HostMemory(limit.max_bytes, limit.free_bytes(ProcessBytes.ENGINE), is_limited=True)


def container_processors(root: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> float | None:
    """Return how many processors' time the control groups of this process below `root` may use, None without a quota;
    the tightest on the way up counts. Source: the kernel's documents of cgroup v1 (cpu.cfs_quota_us), v2 (cpu.max)."""
    quotas = [quota for folder in _folders(root, own, "cpu") if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, _, period = (folder / "cpu.max").read_text(encoding="ascii").partition(" ")
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period")
            )
        found = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is none
        return None
    return found if found > 0 else None  # -1 is none, too


def container_limit(root: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> HostMemory | None:
    """Return the tightest limit of this process's control groups below `root`, None where none can be read."""
    limits = [
        limit for folder in _folders(root, own, "memory") for files in _FILES if (limit := _limit(folder, *files))
    ]
    return min(limits, key=lambda limit: limit.free_bytes, default=None)


def _folders(root: Path, own: Path, controller: str) -> list[Path]:
    """Return the folder of this process's group in either version, and of every group around it."""
    folders = {root, root / controller}
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, _, after_number = line.partition(":")
        controllers, _, path = after_number.partition(":")
        base = root / controller if controller in controllers.split(",") else root
        inside = base.joinpath(*[part for part in path.split("/") if part not in ("", "..")])
        folders |= {inside, *(parent for parent in inside.parents if parent.is_relative_to(base))}
    return sorted(folders)


def _limit(folder: Path, limit_name: str, used_name: str, page_names: Sequence[str]) -> HostMemory | None:
    """Return one group's limit; "max", or no file, means that it has none.
    The pages of files count as free, as the system counts its own: it drops them for whoever needs memory."""
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
