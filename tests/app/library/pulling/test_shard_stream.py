from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.library.pulling.shard_stream import ShardWindow

GIB = 1 << 30


def window(*reads: tuple[str, int, int]) -> ShardWindow:
    return ShardWindow.of(reads, dict.fromkeys((name for name, _, _ in reads), GIB))


IN_ORDER = window(("a", 0, 9), ("b", 9, 19), ("c", 20, 29), ("d", 30, 39))


def test_one_shard_comes_ahead_of_the_one_that_is_converted() -> None:
    assert IN_ORDER.may_come(0) == {"a", "b"}
    assert IN_ORDER.may_come(9) == {"a", "b"}
    assert IN_ORDER.may_come(10) == {"a", "b", "c"}
    assert IN_ORDER.may_come(19) == {"a", "b", "c"}
    assert IN_ORDER.may_come(20) == {"a", "b", "c", "d"}


def test_a_shard_is_done_with_after_its_last_tensor() -> None:
    assert IN_ORDER.done_with(9) == set()
    assert IN_ORDER.done_with(10) == {"a"}
    assert IN_ORDER.done_with(40) == {"a", "b", "c", "d"}


def test_the_peak_is_what_lies_there_at_once() -> None:
    assert IN_ORDER.peak_bytes(()) == 2 * GIB
    assert window(("a", 0, 10), ("b", 9, 20), ("c", 19, 30), ("d", 29, 39)).peak_bytes(()) == 2 * GIB
    assert window(("a", 0, 39), ("b", 10, 19), ("c", 20, 29), ("d", 30, 39)).peak_bytes(()) == 3 * GIB
    assert IN_ORDER.peak_bytes({"a", "b", "c", "d"}) == 4 * GIB
    assert window().peak_bytes(()) == 0


@st.composite
def windows(draw: st.DrawFn) -> tuple[ShardWindow, set[str]]:
    firsts = sorted(draw(st.lists(st.integers(0, 30), min_size=1, max_size=7)))
    reads = [(f"s{i}", first, first + draw(st.integers(0, 12))) for i, first in enumerate(firsts)]
    n_bytes = {name: draw(st.integers(1, 100)) for name, _, _ in reads}
    here = draw(st.sets(st.sampled_from([name for name, _, _ in reads])))
    return ShardWindow.of(reads, n_bytes), here


@given(windows())
def test_no_conversion_stands_still_or_takes_more_than_the_peak(case: tuple[ShardWindow, set[str]]) -> None:
    window, here = case
    peak, held, came = window.peak_bytes(here), set(here), set(here)
    n_tensors = 1 + max(read.last for read in window.reads)
    n_bytes = {read.name: read.n_bytes for read in window.reads}
    for n_written in range(n_tensors):
        held -= window.done_with(n_written)
        needed = {read.name for read in window.reads if read.first <= n_written <= read.last}
        may_come = window.may_come(n_written) - came - window.done_with(n_written)
        assert needed <= came | may_come  # whoever waits for a shard gets it
        held |= may_come  # as many as may
        came |= may_come
        assert sum(n_bytes[name] for name in held) <= peak
