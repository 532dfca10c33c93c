from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.library.pulling.checkpoint import ShardUse, ShardWindow

GIB = 1 << 30


def window(*reads: tuple[str, int, int]) -> ShardWindow:
    return ShardWindow(tuple(ShardUse(*read, GIB) for read in reads))


IN_ORDER = window(("a", 0, 9), ("b", 9, 19), ("c", 20, 29), ("d", 30, 39))


def test_one_shard_comes_ahead_of_the_one_that_is_converted() -> None:
    assert IN_ORDER.fetchable(0) == {"a", "b"}
    assert IN_ORDER.fetchable(9) == {"a", "b"}
    assert IN_ORDER.fetchable(10) == {"a", "b", "c"}
    assert IN_ORDER.fetchable(19) == {"a", "b", "c"}
    assert IN_ORDER.fetchable(20) == {"a", "b", "c", "d"}


def test_a_shard_is_done_with_after_its_last_tensor() -> None:
    assert IN_ORDER.finished(9) == set()
    assert IN_ORDER.finished(10) == {"a"}
    assert IN_ORDER.finished(40) == {"a", "b", "c", "d"}


def test_the_peak_counts_files_that_exist_at_once() -> None:
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
    return ShardWindow(tuple(ShardUse(*read, n_bytes[read[0]]) for read in reads)), here


@given(windows())
def test_no_conversion_stalls_or_exceeds_the_peak(case: tuple[ShardWindow, set[str]]) -> None:
    window, here = case
    peak, held, came = window.peak_bytes(here), set(here), set(here)
    n_tensors = 1 + max(use.last for use in window.uses)
    n_bytes = {use.name: use.n_bytes for use in window.uses}
    for n_written in range(n_tensors):
        held -= window.finished(n_written)
        needed = {use.name for use in window.uses if use.first <= n_written <= use.last}
        fetchable = window.fetchable(n_written) - came - window.finished(n_written)
        assert needed <= came | fetchable  # a needed shard is always fetchable
        held |= fetchable  # as many as may
        came |= fetchable
        assert sum(n_bytes[name] for name in held) <= peak
