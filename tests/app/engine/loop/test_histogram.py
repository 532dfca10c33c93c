from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.loop.counters import BOUNDS, Histogram

FIGURES = st.lists(st.floats(min_value=BOUNDS[1], max_value=BOUNDS[-1]), min_size=1, max_size=200)


def _of(figures: list[float]) -> Histogram:
    histogram = Histogram()
    for figure in figures:
        histogram.record(figure)
    return histogram


@given(FIGURES, st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_a_quantile_is_within_a_bucket_of_the_true_one(figures: list[float], share: float) -> None:
    ordered = sorted(figures)
    true = next(value for index, value in enumerate(ordered, 1) if index >= share * len(ordered))
    estimate = _of(figures).quantile(share)
    assert estimate is not None
    assert true / 2**0.25 - 1e-9 <= estimate <= true * 2**0.25 + 1e-9


@given(FIGURES, FIGURES)
def test_two_histograms_add_up_to_the_one_of_all_figures(some: list[float], others: list[float]) -> None:
    both = _of(some) + _of(others)
    assert both.counts == _of([*some, *others]).counts
    assert both.n_samples == len(some) + len(others)
    assert both.total == pytest.approx(sum(some) + sum(others))


def test_without_values_there_is_no_quantile_and_no_bucket() -> None:
    assert Histogram().quantile(0.5) is None
    assert Histogram().buckets() == []


@pytest.mark.parametrize(("value", "bound"), [(0.0, BOUNDS[0]), (1.0, 1.0), (1.01, 2**0.25), (1e9, float("inf"))])
def test_a_figure_falls_under_the_bound_that_is_not_below_it(value: float, bound: float) -> None:
    assert _of([value]).buckets() == [(bound, 1)]


def test_what_is_past_the_last_bound_counts_as_that_bound() -> None:
    assert _of([1e9]).quantile(1.0) == BOUNDS[-1]


def test_it_takes_the_same_memory_however_much_is_counted() -> None:
    few, many = _of([0.1]), _of([index / 7 for index in range(5000)])
    assert len(few.counts) == len(many.counts)
