"""The system's limits on the memory of a process, `ulimit -v` and `ulimit -d`, and the error of one that is too tight;
and glibc's allocator in processes that run for days.

Linux only: macOS does not enforce the limits, and Windows has none. Children inherit them, so whoever starts a process
checks before it does: one without memory cannot say why it ends. Imports nothing that takes memory itself.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from quantizer.system.errors import EngineError

_MIB = 1 << 20
_WATCH_INTERVAL_S = 0.05
_SIZES = Path("/proc/self/statm")
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_REMEDY = "Raise the limit, or start localllm without it."
_SAVING = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
_SIGNS = re.compile(
    r"MemoryError|can't start new thread|[Mm]emory allocation|(failed|unable|cannot) to allocate|bad_alloc"
    r"|out of memory|Out of memory|Cannot allocate memory|failed to map segment|pthread_create"
)


class ProcessBytes(IntEnum):
    """Address space that a process of each kind takes before its own work, with some to spare.
    Measured on Linux with `save_address_space`: the engine's has 256 MiB of stack for llama.cpp's tokenizers."""

    COMMAND = 128 * _MIB
    JOB = 160 * _MIB
    SERVICE = 176 * _MIB
    ENGINE = 448 * _MIB


_MAPPED_BYTES = 40 * _MIB  # of each process: libraries and files, which are address space (-v) and not data (-d)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit on one process, by the command that sets it, and what this process has taken of it."""

    command: str
    max_bytes: int
    used_bytes: int

    def free_bytes(self, process: ProcessBytes) -> int:
        """Return what a process of this kind may take for its work."""
        return max(0, self.max_bytes - max(self.used_bytes, self.needed_bytes(process)))

    def needed_bytes(self, process: ProcessBytes) -> int:
        """Return what a process of this kind takes of the limit before its own work."""
        return int(process) - (_MAPPED_BYTES if self.command == "ulimit -d" else 0)


def memory_limits() -> tuple[MemoryLimit, ...]:
    """Return the limits of this process, and of each one that it starts."""
    if sys.platform != "linux":
        return ()
    import resource

    limits = (resource.getrlimit(resource.RLIMIT_AS)[0], resource.getrlimit(resource.RLIMIT_DATA)[0])
    if limits == (resource.RLIM_INFINITY, resource.RLIM_INFINITY):
        return ()
    pages = [int(field) for field in _SIZES.read_text(encoding="ascii").split()]
    used = [pages[i] * os.sysconf("SC_PAGE_SIZE") for i in (0, 5)]  # address space and data: proc_pid_statm(5)
    named = zip(("ulimit -v", "ulimit -d"), limits, used, strict=True)
    return tuple(MemoryLimit(*limit) for limit in named if limit[1] != resource.RLIM_INFINITY)


def limit_growth(max_bytes: int) -> None:
    """Let this process grow by at most `max_bytes`, or by what a tighter limit allows.
    It leaves no core file, and where the machine's memory ends, it goes first. Where the system sets no such limit, as
    Windows, or refuses this one, as macOS may, a thread looks every now and then, and ends the process beyond it."""
    import psutil

    if sys.platform == "win32":
        _end_beyond(max_bytes)
        return
    import resource

    if sys.platform == "linux":
        with suppress(OSError):
            _OOM_SCORE.write_text("1000", encoding="ascii")
    limit = psutil.Process().memory_info().vms + max_bytes
    present, _ = resource.getrlimit(resource.RLIMIT_AS)
    if present != resource.RLIM_INFINITY:
        limit = min(limit, present)
    with suppress(ValueError, OSError):  # nothing depends on it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ValueError, OSError):
        _end_beyond(max_bytes)


def _end_beyond(max_bytes: int) -> None:
    """End this process soon after its memory has grown by more than `max_bytes`: less sure than a limit, for one large
    allocation may come in between."""
    import psutil

    process = psutil.Process()
    most_bytes = process.memory_info().rss + max_bytes

    def watch() -> None:
        while process.memory_info().rss <= most_bytes:
            time.sleep(_WATCH_INTERVAL_S)
        os._exit(1)

    threading.Thread(target=watch, name="memory-watch", daemon=True).start()


def save_address_space() -> None:
    """Where there is a limit, have the processes that this one starts take less for each thread.
    OpenBLAS takes 40 MiB for each core, and the C library 64 MiB for each thread that allocates."""
    if memory_limits():
        for name, value in _SAVING.items():
            os.environ.setdefault(name, value)


def check_memory_limit(name: str, process: ProcessBytes) -> None:
    """Raise EngineError if a process of this kind, called `name`, cannot start within the limits."""
    for limit in memory_limits():
        if limit.max_bytes < (needed_bytes := limit.needed_bytes(process)):
            raise _error(name, _mib(needed_bytes), limit)


def out_of_memory(name: str, words: Iterable[str]) -> EngineError | None:
    """Return the error of a process called `name` whose last `words` tell of a lack of memory within a limit.
    None where there is no limit, or they tell of something else."""
    limit = min(memory_limits(), key=lambda limit: limit.max_bytes, default=None)
    if limit is None or not any(map(_SIGNS.search, words)):
        return None
    return _error(name, "more", limit)


def _error(name: str, needed: str, limit: MemoryLimit) -> EngineError:
    allowed = f"may use {_mib(limit.max_bytes)} ({limit.command})"
    return EngineError(f"Not enough memory: the {name} needs {needed} and {allowed}.", _REMEDY)


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / _MIB:,.0f} MiB"


# source: malloc.h of glibc, and mallopt(3)
_M_TRIM_THRESHOLD, _M_ARENA_MAX = -1, -8
_TRIM_BYTES = 64 << 10


def give_back_freed_memory() -> None:
    """Give freed memory within the heap back to the system. glibc keeps blocks of up to 32 MiB there once one of their
    size was freed. Does nothing without glibc: other allocators give large blocks back at once."""
    import ctypes  # as below

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(ctypes.c_size_t(0))


def use_one_arena(*, gives_back: bool = False) -> None:
    """Let all threads of this process share one arena; call it before they start. Does nothing without glibc. With
    `gives_back` freed memory at the end of the heap goes back to the system at once, and larger blocks than 128 KiB
    always do: too slow where such blocks come and go at every token."""
    import ctypes  # takes 3 ms, and every command imports this module

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return
    mallopt(_M_ARENA_MAX, 1)
    if gives_back:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
