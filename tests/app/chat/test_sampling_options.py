"""Which options a chat may have."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.sampling_options import SAMPLER_OPTIONS, change_options, parse_options, valid_options, validate_options
from app.engine.request import SamplingParams
from app.protocol.chat import GenerationOptions
from quantizer.errors import UsageError


def test_what_is_typed_becomes_numbers_and_what_is_blank_is_left_to_the_model():
    assert parse_options({"temperature": " 0.7 ", "top_k": "40", "seed": "", "min_p": "  "}) == {
        "temperature": 0.7,
        "top_k": 40,
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temperature", "warm"),
        ("temperature", "-0.1"),
        ("temperature", "nan"),
        ("top_p", "1.01"),
        ("min_p", "inf"),
        ("top_k", "1.5"),
        ("top_k", "9" * 5000),
        ("seed", "-1"),
        ("max_tokens", "0"),
    ],
)
def test_what_will_not_do_is_refused_with_what_would(name, text):
    with pytest.raises(UsageError, match=rf"{name} is .*from \d") as refused:
        parse_options({name: text})
    assert "number from" in str(refused.value)


def test_words_change_some_options_and_leave_the_others():
    options = {"temperature": 0.7, "top_k": 40}
    assert change_options(options, "temperature=0 seed=7") == {"temperature": 0.0, "top_k": 40, "seed": 7}
    assert change_options(options, "top_k=") == {"temperature": 0.7}


@pytest.mark.parametrize("text", ["temperature", "0.5", "warmth=1", "temperature=hot", "temperature=-1"])
def test_words_that_change_nothing_are_refused(text):
    with pytest.raises(UsageError):
        change_options({}, text)


def test_what_is_not_given_is_left_out_and_what_is_given_is_checked():
    assert validate_options({"temperature": 0.5, "seed": None}) == {"temperature": 0.5}
    with pytest.raises(UsageError, match="temperature is -1"):
        validate_options({"temperature": -1.0})


def test_only_what_is_allowed_passes_of_what_was_kept():
    kept = {"temperature": 1, "top_p": "0.5", "top_k": True, "min_p": 10**400, "seed": 7, "context": 9, "max_tokens": 0}
    assert valid_options(kept) == {"temperature": 1.0, "seed": 7}


def test_every_option_is_one_of_the_service():
    assert {option.name for option in SAMPLER_OPTIONS} <= set(asdict(GenerationOptions()))


@given(st.sampled_from([option for option in SAMPLER_OPTIONS if option.name != "max_tokens"]), st.data())
def test_the_engine_takes_what_is_allowed(option, data):
    numbers = st.integers if option.kind is int else st.floats
    value = data.draw(numbers(option.lowest, option.highest))
    assert valid_options({option.name: value}) == {option.name: value}
    SamplingParams(**{option.name: value})
