"""The figures of the newest answers."""

from __future__ import annotations

import pytest

from app.engine.request import Timings, Usage
from app.service.models.served_model import RecentAnswers


def test_the_newest_fifty_are_kept_whatever_model_gave_them() -> None:
    recent = RecentAnswers()
    for number in range(60):
        recent.add(f"model-{number % 2}", Usage(n_output_tokens=number), Timings(), at_s=float(number))
    assert [record.n_output_tokens for record in recent.newest_first] == list(range(59, 9, -1))
    assert {record.model for record in recent.newest_first} == {"model-0", "model-1"}


@pytest.mark.parametrize(
    ("n_output", "decode_s", "tps"),
    [(2, 0.00007, None), (2, 1.0, None), (101, 0.001, None), (101, 2.0, 50.0), (0, 0.0, None)],
)
def test_a_speed_needs_enough_tokens_and_time_to_be_one(n_output: int, decode_s: float, tps: float | None) -> None:
    recent = RecentAnswers()
    usage = Usage(n_prompt_tokens=100, n_cached_tokens=90, n_output_tokens=n_output)
    recent.add("m", usage, Timings(queue_s=1.0, prefill_s=0.5, decode_s=decode_s), at_s=0.0)
    (record,) = recent.newest_first
    assert record.decode_tps == tps
    assert (record.prefill_tps, record.first_token_s) == (20.0, 1.5)
