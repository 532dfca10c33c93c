from __future__ import annotations

import math

import pytest

from app.engine.request import Request, SamplingParams, Timings
from quantizer.errors import RequestError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("top_p", 1.5),
        ("min_p", -1),
        ("top_k", -1),
        ("repeat_penalty", 0.0),
        ("presence_penalty", math.nan),
        ("seed", 2**64),
    ],
)
def test_a_number_outside_its_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


def test_a_grammar_past_64_kib_is_refused() -> None:
    with pytest.raises(RequestError, match="64 KiB"):
        SamplingParams(grammar="x" * (64 * 1024 + 1))


@pytest.mark.parametrize("stop", [("",), ("x" * 1025,), ("x",) * 65])
def test_stop_strings_are_bounded(stop: tuple[str, ...]) -> None:
    with pytest.raises(RequestError, match="stop string"):
        Request(request_id="a", prompt="p", stop=stop)


@pytest.mark.parametrize("n_tokens", [-1, 2**31])
def test_max_tokens_is_a_count(n_tokens: int) -> None:
    with pytest.raises(RequestError, match="max_tokens"):
        Request(request_id="a", prompt="p", max_tokens=n_tokens)


def test_time_to_first_token_includes_the_queue() -> None:
    assert Timings(queue_s=1.0, prefill_s=0.5, decode_s=9.0).time_to_first_token_s == 1.5
