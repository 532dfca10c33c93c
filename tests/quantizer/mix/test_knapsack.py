from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantizer.mix.search import Choice, Frontier

losses = st.floats(0, 1e3, allow_nan=False)
items = st.lists(
    st.lists(st.builds(Choice, st.integers(0, 200), losses), min_size=1, max_size=4), min_size=1, max_size=5
)
large_items = st.lists(
    st.lists(st.builds(Choice, st.integers(10**6, 10**9), losses), min_size=1, max_size=6), min_size=1, max_size=6
)

Items = list[list[Choice]]


def taken(of: Items, selection: list[int]) -> tuple[int, float]:
    """Bytes and loss of a selection."""
    chosen = [item[index] for item, index in zip(of, selection, strict=True)]
    return sum(choice.n_bytes for choice in chosen), sum(choice.loss for choice in chosen)


def all_of(of: Items) -> Iterator[tuple[int, float]]:
    return (taken(of, list(selection)) for selection in itertools.product(*(range(len(item)) for item in of)))


@pytest.mark.slow
@given(items, st.integers(0, 1000))
def test_no_selection_of_the_same_bytes_loses_less(of: Items, spare: int) -> None:
    frontier = Frontier(of)
    n_bytes, loss = taken(of, frontier.within_bytes(frontier.least_bytes + spare))
    assert n_bytes <= frontier.least_bytes + spare
    assert loss == pytest.approx(min(other for size, other in all_of(of) if size <= frontier.least_bytes + spare))


@given(items, losses)
def test_no_smaller_selection_loses_as_little(of: Items, spare: float) -> None:
    frontier = Frontier(of)
    allowed = frontier.least_loss + spare
    n_bytes, loss = taken(of, frontier.within_loss(allowed))
    assert loss <= allowed * (1 + 1e-9)
    assert n_bytes <= min(size for size, other in all_of(of) if other <= allowed * (1 - 1e-9) or other == loss)


@given(large_items, st.integers(0, 10**10), st.integers(0, 10**10))
def test_large_sizes_are_never_exceeded_and_more_bytes_never_lose_more(of: Items, first: int, second: int) -> None:
    frontier = Frontier(of)
    results = []
    for spare in sorted((first, second)):
        n_bytes, loss = taken(of, frontier.within_bytes(frontier.least_bytes + spare))
        assert n_bytes <= frontier.least_bytes + spare
        results.append(loss)
    assert results[1] <= results[0] * (1 + 1e-9)


@given(large_items)
def test_rounding_costs_at_most_a_share_of_each_item(of: Items) -> None:
    frontier = Frontier(of)
    span = sum(max(choice.n_bytes for choice in item) for item in of) - frontier.least_bytes
    room = len(of) * (span // 65536 + 1)
    for size, loss in itertools.islice(all_of(of), 50):
        assert taken(of, frontier.within_bytes(size + room))[1] <= loss * (1 + 1e-9)


def test_the_ends_of_the_curve_are_the_smallest_and_the_best() -> None:
    of = [[Choice(4, 8.0), Choice(8, 1.0), Choice(16, 0.0)], [Choice(2, 2.0), Choice(2, 1.0)]]
    frontier = Frontier(of)
    assert (frontier.least_bytes, frontier.least_loss) == (6, 1.0)
    assert frontier.within_bytes(6) == [0, 1]
    assert frontier.within_loss(1.0) == [2, 1]
    assert frontier.within_loss(1e9) == [0, 1]
