"""The memory of weights and caches on the processor: huge pages, and zeros given back.

Linux only, and not where llama.cpp has a GPU, whose driver may have pinned the memory.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

Range = tuple[int, int]  # addresses: the first one, and the first one behind it

_BLOCK_BYTES = 1 << 20
_LEAST_BYTES = 8 << 20  # of a mapping: smaller ones are neither caches nor weights worth the look
_PRIVATE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *$", re.MULTILINE)


class HugePages:
    """Asks for huge pages for the large memory that was mapped since this was made; only on Linux without a GPU. A step
    of one token reads all weights once: in pages of 2 MiB instead of 4 KiB the processor looks up 500 times fewer. The
    system gives those to memory that asks before it is first written. No other thread may map large memory
    meanwhile."""

    def __init__(self, *, has_gpu: bool) -> None:
        self._is_used = sys.platform == "linux" and not has_gpu
        self._before = _private_ranges() if self._is_used else []

    def ask(self) -> None:
        """Ask once, for memory that is not written yet; later calls do nothing."""
        if not self._is_used:
            return
        self._is_used = False
        for start, end in _new_ranges(self._before):
            begin = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            _c_library().madvise(begin, end - begin, mmap.MADV_HUGEPAGE)  # where it fails, pages stay small


@contextmanager
def new_zero_pages_given_back(*, has_gpu: bool) -> Iterator[None]:
    """Give back the blocks of zeros that were mapped meanwhile; only on Linux without a GPU. llama.cpp (0.3.36) fills
    caches with zeros when it makes a context. A page of zeros that is given back reads as zeros again and takes memory
    when it is first written: caches grow with use, and plans count them whole all the same. No other thread may map
    large memory meanwhile, and write to it only later."""
    if sys.platform != "linux" or has_gpu:
        yield
        return
    before, c, page = _private_ranges(), _c_library(), mmap.PAGESIZE
    yield
    resident = (ctypes.c_ubyte * (_BLOCK_BYTES // page))()
    for start, end in _new_ranges(before):
        for block in range(-(-start // page) * page, end - _BLOCK_BYTES + 1, _BLOCK_BYTES):
            if c.mincore(block, _BLOCK_BYTES, resident) or not any(resident):
                continue  # reading memory that is not there yet would provide it
            # Equal to itself moved by eight bytes: all zeros if the first eight are.
            if not ctypes.c_uint64.from_address(block).value and not c.memcmp(block, block + 8, _BLOCK_BYTES - 8):
                c.madvise(block, _BLOCK_BYTES, mmap.MADV_DONTNEED)  # where it fails, the page stays


def _new_ranges(before: Sequence[Range]) -> Iterator[Range]:
    """Yield the large parts of this process's memory that were not mapped `before`."""
    yield from ((start, end) for start, end in _without(_private_ranges(), before) if end - start >= _LEAST_BYTES)


def _private_ranges() -> list[Range]:
    """Return the memory of this process that belongs to no file, by rising addresses."""
    maps = Path("/proc/self/maps").read_text("ascii", "replace")
    return [(int(start, 16), int(end, 16)) for start, end in _PRIVATE.findall(maps)]


def _without(ranges: Sequence[Range], others: Sequence[Range]) -> Iterator[Range]:
    """Yield the parts of `ranges` that are in none of `others`; both rise."""
    for start, end in ranges:
        for other_start, other_end in others:
            if start < other_start < end:
                yield start, other_start
            if other_start < end and other_end > start:
                start = max(start, other_end)
        if start < end:
            yield start, end


@cache
def _c_library() -> Any:
    library = ctypes.CDLL(None)
    library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return library
