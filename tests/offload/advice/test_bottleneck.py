from __future__ import annotations

from dataclasses import replace

import pytest

from offload.advice.bottleneck import Constraint, Symptoms, bottleneck
from offload.placement.assessment import FitLevel

GOOD = Symptoms(
    verdict=FitLevel.FITS,
    queue_s=0.1,
    n_ahead=0,
    prefill_tps=200.0,
    decode_tps=20.0,
    n_prefill=500,
    n_decode=250,
    read_bytes=800_000_000,
    predicted_tps=22.0,
    remedy=None,
    smaller=("Q4_K_M", 1.5),
)


def test_an_answer_that_takes_most_of_a_turn_is_bound_by_reading() -> None:
    found = bottleneck(GOOD)
    assert found.constraint is Constraint.BANDWIDTH
    assert "12.5 s go into 250 tokens" in found.reason
    assert "16 GB/s" in found.reason
    assert found.first_step == "Quantize to Q4_K_M: 30 tok/s predicted instead of 20."


def test_where_no_smaller_file_helps_only_other_memory_does() -> None:
    assert "no smaller quantization" in bottleneck(replace(GOOD, smaller=None)).first_step


@pytest.mark.parametrize("verdict", [FitLevel.PARTIAL, FitLevel.WONT_RUN])
def test_a_model_that_does_not_fit_is_bound_by_memory_whatever_else_is_slow(verdict: FitLevel) -> None:
    found = bottleneck(replace(GOOD, verdict=verdict, queue_s=99.0, remedy="--ctx 4096"))
    assert (found.constraint, found.first_step) == (Constraint.CAPACITY, "--ctx 4096")


def test_long_prompts_are_bound_by_computing() -> None:
    assert bottleneck(replace(GOOD, n_prefill=4000)).constraint is Constraint.PREFILL


def test_waiting_longer_than_for_anything_else_is_the_queue() -> None:
    found = bottleneck(replace(GOOD, queue_s=30.0, n_ahead=4))
    assert found.constraint is Constraint.QUEUE
    assert "behind 4 others" in found.reason


def test_far_less_than_predicted_is_the_work_of_others() -> None:
    assert bottleneck(replace(GOOD, decode_tps=8.0)).constraint is Constraint.OTHERS
    assert bottleneck(replace(GOOD, decode_tps=8.0, predicted_tps=None)).constraint is Constraint.BANDWIDTH
