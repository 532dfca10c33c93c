from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.engine.offline.evaluation import EvalAccumulator, log_softmax, mean_of, quantile_of, share_of
from quantizer.system.errors import EngineError

RNG = np.random.default_rng(11)
N_TOKENS, N_VOCAB = 60, 17
LOGITS = RNG.normal(0, 3, (N_TOKENS, N_VOCAB)).astype(np.float32)
REFERENCE = (LOGITS + RNG.normal(0, 0.3, LOGITS.shape)).astype(np.float32)
TARGETS = RNG.integers(0, N_VOCAB, N_TOKENS)
rows = arrays.arrays(np.float32, (2, 9), elements=st.floats(-1e4, 1e4, width=32))


def probabilities(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.longdouble))
    return powers / powers.sum(axis=1, keepdims=True)


def accumulated(n_parts: int) -> EvalAccumulator:
    accumulator = EvalAccumulator()
    for part in np.array_split(np.arange(N_TOKENS), n_parts):
        accumulator.add(TARGETS[part], LOGITS[part], REFERENCE[part])
    return accumulator


def test_perplexity_is_e_to_the_mean_loss() -> None:
    losses = -np.log(probabilities(LOGITS)[np.arange(N_TOKENS), TARGETS])
    statistics = accumulated(1).statistics()
    assert statistics.n_tokens == N_TOKENS
    assert statistics.perplexity.value == pytest.approx(float(np.exp(losses.mean())))
    assert statistics.perplexity.error == pytest.approx(
        statistics.perplexity.value * float(np.sqrt(losses.var() / (N_TOKENS - 1)))
    )


def test_divergence_is_that_of_the_reference_from_the_model() -> None:
    p, q = probabilities(LOGITS), probabilities(REFERENCE)
    divergences = (q * np.log(q / p)).sum(axis=1).astype(np.float64)
    comparison = accumulated(1).statistics().comparison
    assert comparison is not None
    assert comparison.mean_kld.value == pytest.approx(divergences.mean())
    assert comparison.median_kld.value == pytest.approx(np.median(divergences))
    assert comparison.p99_kld.value == pytest.approx(np.quantile(divergences, 0.99))
    assert comparison.same_top.value == (p.argmax(axis=1) == q.argmax(axis=1)).mean()


def test_the_ratio_has_a_smaller_error_than_the_perplexities() -> None:
    statistics = accumulated(1).statistics()
    assert statistics.comparison is not None
    ratio = statistics.perplexity.value / statistics.comparison.reference_perplexity.value
    assert statistics.comparison.ratio.value == pytest.approx(ratio)
    assert statistics.comparison.ratio.error < statistics.perplexity.error / statistics.perplexity.value


@given(st.integers(1, N_TOKENS))
def test_how_the_text_is_split_changes_nothing(n_parts: int) -> None:
    accumulator = accumulated(n_parts)
    whole = accumulated(1).statistics()
    assert accumulator.statistics() == whole
    assert whole.comparison is not None
    assert accumulator.perplexity == pytest.approx(whole.perplexity.value)
    assert accumulator.mean_kld == pytest.approx(whole.comparison.mean_kld.value)


def test_without_a_reference_nothing_is_compared() -> None:
    accumulator = EvalAccumulator()
    accumulator.add(TARGETS, LOGITS)
    assert accumulator.statistics().comparison is None
    assert accumulator.mean_kld is None


@given(rows)
def test_a_model_does_not_diverge_from_itself_and_no_two_diverge_by_less(logits: np.ndarray) -> None:
    accumulator = EvalAccumulator()
    accumulator.add(np.array([0, 1]), logits, logits)
    assert accumulator.mean_kld == 0
    accumulator = EvalAccumulator()
    accumulator.add(np.array([0, 1]), logits, logits[::-1])
    assert accumulator.mean_kld is not None
    assert accumulator.mean_kld >= -1e-9


@given(rows)
def test_probabilities_sum_to_one_however_large_the_logits(logits: np.ndarray) -> None:
    assert np.exp(log_softmax(logits)).sum(axis=1) == pytest.approx(1)


def test_tokens_that_both_rule_out_add_nothing() -> None:
    ruled_out = LOGITS.copy()
    ruled_out[:, 0] = -np.inf
    accumulator = EvalAccumulator()
    accumulator.add(np.ones(N_TOKENS, np.intp), ruled_out, ruled_out)
    assert accumulator.mean_kld == 0


def test_logits_that_are_no_numbers_are_refused() -> None:
    broken = LOGITS.copy()
    broken[3, 4] = np.nan
    with pytest.raises(EngineError, match="NaN"):
        EvalAccumulator().add(TARGETS, broken)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng, n_runs, n = np.random.default_rng(5), 400, 200
    truth = {"mean": 1.0, "median": math.log(2), "p99": -math.log(0.01), "share": 0.97}
    hits = dict.fromkeys(truth, 0)
    for _ in range(n_runs):
        values = rng.exponential(1.0, 20 * n)
        found = {
            "mean": mean_of(values[:n]),
            "median": quantile_of(values[:n], 0.5),
            "p99": quantile_of(values, 0.99),
            "share": share_of(rng.random(n) < truth["share"]),
        }
        for name, estimate in found.items():
            hits[name] += estimate.low <= truth[name] <= estimate.high
    tolerance = 4 * math.sqrt(0.95 * 0.05 / n_runs)
    assert all(abs(count / n_runs - 0.95) < tolerance for count in hits.values()), hits


def test_the_interval_of_a_mean_is_the_normal_one() -> None:
    values = np.random.default_rng(1).normal(2, 3, 50)
    half = NormalDist().inv_cdf(0.975) * values.std(ddof=1) / math.sqrt(50)
    found = mean_of(values)
    assert (found.high - found.low) / 2 == pytest.approx(half)


def test_a_share_of_all_is_not_certain() -> None:
    found = share_of(np.ones(20, np.bool_))
    assert found.value == found.high == 1.0
    assert found.low < 0.9
