"""How fast this machine's processor reads memory: measured, not looked up.

Owns the measurement. Knows nothing of models; a ceiling for decode is made of it elsewhere.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import psutil

__all__ = ["ReadBandwidth", "measure_read_bandwidth"]

_BUFFER_BYTES = 1 << 30  # larger than the caches of any processor
_MEMORY_SHARE = 8  # an eighth of what is free at most
_N_PASSES = 6


@dataclass(frozen=True, slots=True)
class ReadBandwidth:
    """Bytes a second that `n_threads` read together from a buffer of `n_bytes`, in the best of `n_passes`."""

    bytes_per_s: float
    n_threads: int
    n_bytes: int
    n_passes: int


def measure_read_bandwidth(n_threads: int, n_bytes: int = 0) -> ReadBandwidth:
    """Read `n_bytes` (0: a gibibyte, or what memory allows) several times, each thread its own part, and time it.

    numpy's maximum over float32 is vectorized and does nothing but read. The best pass counts, as in the STREAM
    benchmark: whatever else runs only takes from it.
    """
    n_bytes = n_bytes or min(_BUFFER_BYTES, psutil.virtual_memory().available // _MEMORY_SHARE)
    parts = np.array_split(np.ones(n_bytes // 4, dtype=np.float32), n_threads)
    times_s = []
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(_N_PASSES):
            begun_s = time.perf_counter()
            list(pool.map(np.max, parts))
            times_s.append(time.perf_counter() - begun_s)
    return ReadBandwidth(n_bytes / min(times_s), n_threads, n_bytes, _N_PASSES)
