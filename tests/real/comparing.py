"""Ours beside golden values: what must be equal, and how far the rest may be off.

llama.cpp multiplies quantized weights with activations that it rounds to 8 bits, in other ways for AVX2, AVX-512 and
AMX, for a batch of 1 and one of 8. So log probabilities are off by 0.1 nats on average, rarely by 1, and the likeliest
token may be another one where two are about as likely. A wrong rotation, norm or window is off by far more everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

__all__ = ["CLEAR_MARGIN", "assert_alike", "n_sure"]

CLEAR_MARGIN = (
    0.3  # nats between the likeliest token and the next one, from which on rounding hardly ever changes the order
)
MEAN_ERROR = 0.25  # nats


def assert_alike(golden: dict[str, Any], logprobs: Sequence[float], first: Sequence[str]) -> None:
    """Assert that the tokens that followed are as likely, and that what is clearly likeliest is so in both."""
    errors = [abs(ours - theirs) for ours, theirs in zip(logprobs, golden["next"], strict=True)]
    # The rounding grows with how unlikely a token is: one at e^-15 may be off by a nat, and that says nothing.
    weighed = [error / max(1.0, -theirs / 4) for error, theirs in zip(errors, golden["next"], strict=True)]
    clear = [
        (ours, theirs)
        for ours, theirs, margin in zip(first, golden["first"], golden["margin"], strict=True)
        if margin > CLEAR_MARGIN
    ]
    others = [pair for pair in clear if pair[0] != pair[1]]
    assert mean(weighed) < MEAN_ERROR, f"off by {mean(weighed):.3f} nats, largest {max(errors):.2f}"
    # Two may be: in a text of odd letters Gemma's choices with leads of 0.41 and 0.53 nats, read beside other texts.
    assert len(others) <= max(2, len(clear) // 50), (
        f"{len(others)} of {len(clear)} clear choices are others: {others[:8]}"
    )


def n_sure(golden: dict[str, Any], margin: float = CLEAR_MARGIN) -> int:
    """Return how many tokens of a greedy answer every processor writes alike: those before the first close choice."""
    return next((n for n, each in enumerate(golden["margin"]) if each <= margin), len(golden["margin"]))
