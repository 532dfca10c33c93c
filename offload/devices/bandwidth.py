"""Measured read speeds: of memory, by this machine's processor, and of a disk, past the system's cache.

Owns the measurements. A disk speed that cannot be measured is None: from the cache every disk looks fast. Independent
of models.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from offload.devices.host import is_quiet, others_share, read_cpu_times

# Several times what caches hold: desktop processors have up to 12 MiB of the last level for a core, and a virtual
# machine of few cores sees all of its host's. To touch each page first took 3.3 s for a gibibyte, as the hypervisor
# grants it.
_LEAST_BUFFER_BYTES, _THREAD_BYTES, _MOST_BUFFER_BYTES = 256 << 20, 64 << 20, 1 << 30
_MEMORY_SHARE = 8  # an eighth of what is free at most
_N_PASSES = 6


@dataclass(frozen=True, slots=True)
class ReadBandwidth:
    """Bytes a second that `n_threads` read together from a buffer of `n_bytes`, in the best of `n_passes`; and the
    share of the processors that others took meanwhile, None where it is unknown."""

    bytes_per_s: float
    n_threads: int
    n_bytes: int
    n_passes: int
    others_share: float | None = None


def measure_read_bandwidth(n_threads: int, n_bytes: int = 0) -> ReadBandwidth:
    """Read `n_bytes` (0: more than caches hold, or what memory allows) several times, each thread its own part, and
    time it. numpy's maximum over float32 is vectorized and does nothing but read. The best pass counts, as in the
    STREAM benchmark: whatever else runs only takes from it."""
    import numpy as np  # the service starts without it, and only some machines are measured

    if not n_bytes:
        wanted_bytes = min(_LEAST_BUFFER_BYTES + n_threads * _THREAD_BYTES, _MOST_BUFFER_BYTES)
        n_bytes = min(wanted_bytes, psutil.virtual_memory().available // _MEMORY_SHARE)
    parts = np.array_split(np.ones(n_bytes // 4, dtype=np.float32), n_threads)
    times_s = []
    before = read_cpu_times()
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(_N_PASSES):
            begun_s = time.perf_counter()
            list(pool.map(np.max, parts))
            times_s.append(time.perf_counter() - begun_s)
    share = others_share(before, read_cpu_times())
    return ReadBandwidth(n_bytes / min(times_s), n_threads, n_bytes, _N_PASSES, share)


def settled_bandwidth(measured: ReadBandwidth, quiet_bytes_per_s: float | None) -> tuple[float, bool]:
    """Return the bytes a second that count, and whether they are those of a quiet machine. `quiet_bytes_per_s` is what
    it read when it was quiet, None if it never was."""
    if is_quiet(measured.others_share):
        return measured.bytes_per_s, True
    # what a busy machine reads is a lower bound
    return max(measured.bytes_per_s, quiet_bytes_per_s or 0.0), quiet_bytes_per_s is not None


_N_BYTES, _BLOCK_BYTES = 64 << 20, 4 << 20
_LEAST_BYTES = 8 << 20
_MOST_S = 2.0


def measure_disk_read(path: Path) -> float | None:
    """Return the bytes per second that the middle of the file at `path` is read with, in two seconds at most. None
    where the system has no way past its cache, the file is smaller than 8 MiB, or it cannot be read."""
    if sys.platform != "linux":
        return None  # macOS has a flag for it, and heeds what is in its cache all the same
    try:
        status = path.stat()
        n_bytes = status.st_size
        if n_bytes < _LEAST_BYTES or not stat.S_ISREG(status.st_mode):
            return None
        start = (n_bytes - min(n_bytes, _N_BYTES)) // 2 // _BLOCK_BYTES * _BLOCK_BYTES
        n_read, n_most = 0, min(n_bytes - start, _N_BYTES)
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_DIRECT), "rb", buffering=0)
        with file, mmap.mmap(-1, _BLOCK_BYTES) as block:  # its pages are aligned, as such reads want them
            file.seek(start)
            begun_s = time.perf_counter()
            while n_read < n_most and time.perf_counter() - begun_s < _MOST_S:
                n_more = os.readv(file.fileno(), [block])
                n_read += n_more
                if n_more < _BLOCK_BYTES:
                    break
            took_s = time.perf_counter() - begun_s
        return n_read / took_s if n_read and took_s > 0 else None
    except OSError:
        return None
