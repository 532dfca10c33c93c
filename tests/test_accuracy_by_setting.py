"""The judgement of `tests/bench/engine/accuracy_by_setting.py`: which setting costs accuracy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.engine.accuracy_by_setting import Distances, Truth, costs_more, distances

N_POSITIONS, N_VOCABULARY = 300, 500
RANDOM = np.random.default_rng(1)


def _logits() -> np.ndarray:
    return RANDOM.normal(0, 3, (N_POSITIONS, N_VOCABULARY)).astype(np.float32)


def _with_noise(logits: np.ndarray, sigma: float) -> np.ndarray:
    return logits + RANDOM.normal(0, sigma, logits.shape).astype(np.float32)


def test_the_likeliest_ten_of_the_truth_are_compared_in_nats() -> None:
    logits = np.zeros((1, N_VOCABULARY), np.float32)
    logits[0, :20] = np.arange(20, 0, -1)
    truth = Truth.of(logits)
    assert truth.tokens.tolist() == [[*range(10)]]
    assert np.exp(truth.logprobs).sum() == pytest.approx(1, abs=1e-4)
    moved = logits.copy()
    moved[0, 15:] -= 50.0  # which only moves all others by what these had together
    found = distances(moved, truth)
    assert found.largest[0] == pytest.approx(found.means[0], abs=1e-6)
    assert found.largest[0] < 1e-5
    moved = logits.copy()
    moved[0, 3] += 4.0
    found = distances(moved, truth)
    assert not found.agrees[0]
    assert 1 < found.means[0] < found.largest[0] < 4


def test_what_is_equal_to_the_truth_is_at_no_distance() -> None:
    logits = _logits()
    found = distances(logits, Truth.of(logits))
    assert found.agrees.all()
    assert found.largest.max() < 1e-6


@pytest.mark.parametrize(("sigma", "is_more"), [(0.05, False), (0.1, False), (0.102, False), (0.12, True), (0.4, True)])
def test_a_setting_costs_more_where_it_is_further_from_the_truth_by_more_than_kernels_differ(
    sigma: float, is_more: bool
) -> None:
    logits = _logits()
    truth = Truth.of(logits)
    yardstick = distances(_with_noise(logits, 0.1), truth)
    assert costs_more(distances(_with_noise(logits, sigma), truth), yardstick) is is_more
    assert not costs_more(yardstick, yardstick)


def test_one_position_that_is_far_off_says_nothing_about_a_setting() -> None:
    means = np.full(N_POSITIONS, 0.1)
    outlier = means.copy()
    outlier[7] = 30.0
    agrees = np.ones(N_POSITIONS, bool)
    assert outlier.mean() > 1.5 * means.mean()
    assert not costs_more(Distances(outlier, outlier, agrees), Distances(means, means, agrees))
