from __future__ import annotations

import json
import mmap
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.engine.llama import host_memory
from app.engine.llama.host_memory import HugePages, new_zero_pages_given_back
from tests.patience import PATIENCE_S

MIB = 1 << 20
REAL_CACHE = Path(__file__).with_name("real_cache.py")
GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
has_huge_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no transparent huge pages"
)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is given back")

addresses = st.lists(st.integers(0, 60), unique=True).map(sorted)


def ranges_of(edges: list[int]) -> list[tuple[int, int]]:
    return list(zip(edges[::2], edges[1::2], strict=False))


@given(addresses, addresses)
def test_what_is_new_are_the_addresses_that_were_in_no_range_before(after: list[int], before: list[int]) -> None:
    def covered(ranges: list[tuple[int, int]]) -> set[int]:
        return {address for start, end in ranges for address in range(start, end)}

    new = list(host_memory._without(ranges_of(after), ranges_of(before)))
    assert covered(new) == covered(ranges_of(after)) - covered(ranges_of(before))
    assert all(start < end for start, end in new)


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def mapped(n_bytes: int) -> tuple[mmap.mmap, NDArray[np.uint8]]:
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memory, np.frombuffer(memory, np.uint8)


def written(value: int, n_bytes: int) -> tuple[mmap.mmap, NDArray[np.uint8]]:
    memory, array = mapped(n_bytes)
    array[:] = value
    return memory, array


@pytest.mark.slow
@on_linux
def test_zeros_take_memory_only_once_they_are_written_and_all_else_stays() -> None:
    before = resident_bytes()
    with new_zero_pages_given_back(has_gpu=False):
        _zeros_memory, zeros = written(0, 128 * MIB)
        _ones_memory, ones = written(1, 32 * MIB)
        zeros[100 * MIB] = 7
        assert resident_bytes() - before > 100 * MIB
    assert resident_bytes() - before < 64 * MIB
    assert (ones == 1).all()
    assert zeros[100 * MIB] == 7
    assert np.count_nonzero(zeros) == 1
    zeros[:] = 3
    assert (zeros == 3).all()


@on_linux
def test_memory_of_before_is_left_alone() -> None:
    _memory, zeros = written(0, 64 * MIB)
    before = resident_bytes()
    with new_zero_pages_given_back(has_gpu=False):
        pass
    assert before - resident_bytes() < 32 * MIB
    assert not zeros.any()


def test_nothing_is_given_back_where_a_driver_may_have_pinned_it() -> None:
    with new_zero_pages_given_back(has_gpu=True):
        _memory, zeros = written(0, 64 * MIB)
        before = resident_bytes()
    assert before - resident_bytes() < 32 * MIB
    assert not zeros.any()


def flags_of(array: NDArray[np.uint8]) -> set[str]:
    """Return the kernel's flags of the mapping that begins with `array`."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := MAPPING.match(line):
            is_inside = int(found[1], 16) <= array.ctypes.data < int(found[2], 16)
        elif is_inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise AssertionError("it is mapped nowhere")


@has_huge_pages
def test_large_memory_that_is_mapped_meanwhile_asks_for_huge_pages() -> None:
    _old_memory, old = mapped(32 * MIB)
    pages = HugePages(has_gpu=False)
    _new_memory, new = mapped(32 * MIB)
    pages.ask()
    _late_memory, late = mapped(32 * MIB)
    pages.ask()
    assert "hg" in flags_of(new)
    assert "hg" not in flags_of(late)
    del old


@has_huge_pages
def test_no_huge_pages_are_asked_for_where_a_driver_may_have_pinned_memory() -> None:
    pages = HugePages(has_gpu=True)
    _memory, new = mapped(32 * MIB)
    pages.ask()
    assert "hg" not in flags_of(new)


@pytest.mark.slow
@on_linux
def test_a_cache_takes_memory_as_it_is_used() -> None:
    command = [sys.executable, str(REAL_CACHE), str(GUIDE)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    report = json.loads(run.stdout)
    if report["has_gpu"]:
        pytest.skip("a driver may have pinned the memory")
    assert report["n_bytes"] == 256 * MIB
    assert report["new"] < 64 * MIB
    assert report["used"] - report["new"] < 64 * MIB
