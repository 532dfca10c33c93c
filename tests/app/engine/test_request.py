from __future__ import annotations

import math

import pytest

from app.engine.request import NO_ADAPTERS, Adapter, Request, SamplingParams, Timings, adapter_set
from app.protocol.errors import RequestError


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
        ("typical_p", 1.01),
        ("top_n_sigma", math.inf),
        ("xtc_probability", -0.1),
        ("xtc_threshold", math.nan),
        ("dynatemp_range", -1.0),
        ("dynatemp_exponent", math.inf),
        ("dry_multiplier", -1.0),
        ("dry_base", 0.5),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", -2),
        ("dry_sequence_breakers", ("",)),
        ("dry_sequence_breakers", ("x" * 41,)),
        ("dry_sequence_breakers", ("\0",)),
        ("dry_sequence_breakers", ("x",) * 17),
        ("mirostat", 3),
        ("mirostat_tau", -1.0),
        ("mirostat_eta", 11.0),
        ("logit_bias", ((1, math.nan),)),
        ("logit_bias", ((1, math.inf),)),
        ("logit_bias", ((1, 1.0),) * 1025),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("pair", [("", 1.0), ("x" * 257, 1.0), ("a", math.inf), ("a", math.nan)])
def test_a_bias_of_a_text_that_means_nothing_is_refused(pair: tuple[str, float]) -> None:
    with pytest.raises(RequestError, match="logit_bias"):
        SamplingParams(text_bias=(pair,))


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


@pytest.mark.parametrize("n_logprobs", [-1, 21])
def test_alternatives_are_bounded(n_logprobs: int) -> None:
    with pytest.raises(RequestError, match="logprobs"):
        Request(request_id="a", prompt="p", n_logprobs=n_logprobs)


def test_time_to_first_token_includes_the_queue() -> None:
    assert Timings(queue_s=1.0, prefill_s=0.5, decode_s=9.0).time_to_first_token_s == 1.5


KNOWN = (Adapter("style", "k2"), Adapter("facts", "k1"))


def test_without_a_wish_every_adapter_acts_in_full() -> None:
    assert adapter_set(KNOWN, None) == (("k1", 1.0), ("k2", 1.0))
    assert adapter_set((), None) == NO_ADAPTERS


def test_names_and_numbers_mean_the_same_and_order_does_not_matter() -> None:
    by_name = adapter_set(KNOWN, (("style", 0.5), ("facts", 1.0)))
    assert by_name == adapter_set(KNOWN, ((1, 1.0), (0, 0.5))) == (("k1", 1.0), ("k2", 0.5))


def test_a_scale_of_zero_is_absence() -> None:
    assert adapter_set(KNOWN, ((0, 0.0), (1, 0.5))) == adapter_set(KNOWN, ((1, 0.5),))
    assert adapter_set(KNOWN, ((0, -0.0),)) == adapter_set(KNOWN, ()) == NO_ADAPTERS


@pytest.mark.parametrize(
    "wanted", [(("other", 1.0),), ((2, 1.0),), ((-1, 1.0),), ((0, math.nan),), ((0, 1e9),), ((0, 1.0), ("style", 1.0))]
)
def test_what_means_no_adapter_or_no_scale_is_refused(wanted: tuple[tuple[int | str, float], ...]) -> None:
    with pytest.raises(RequestError):
        adapter_set(KNOWN, wanted)


def test_a_refusal_names_what_is_loaded() -> None:
    with pytest.raises(RequestError, match=r"0 \(style\), 1 \(facts\)"):
        adapter_set(KNOWN, ((7, 1.0),))
    with pytest.raises(RequestError, match="--lora"):
        adapter_set((), ((0, 1.0),))


def test_a_bias_of_a_text_is_one_of_its_tokens() -> None:
    params = SamplingParams(logit_bias=((7, 1.0),), text_bias=(("aba", -2.0), ("c", -math.inf)))
    made = params.with_token_biases(lambda text: list(text.encode()))
    assert made.logit_bias == ((7, 1.0), (97, -2.0), (98, -2.0), (99, -math.inf))
    assert made.text_bias == ()
    assert made.with_token_biases(lambda text: []) is made
