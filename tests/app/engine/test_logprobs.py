from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.engine.logprobs import LOWEST_LOGPROB, LogprobLedger, log_softmax, most_likely
from app.engine.request import TokenLogprob

logits = st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=50).map(lambda row: np.array(row, np.float32))


@given(logits)
def test_probabilities_sum_to_one_and_keep_the_order_of_the_logits(row: np.ndarray) -> None:
    logprobs = log_softmax(row)
    assert abs(np.exp(logprobs).sum() - 1) < 1e-9
    assert (np.diff(logprobs[np.argsort(row, kind="stable")]) >= 0).all()


def test_a_token_that_cannot_come_has_a_number_too() -> None:
    assert list(log_softmax(np.array([0.0, -np.inf], np.float32))) == [0.0, LOWEST_LOGPROB]


@given(logits, st.integers(0, 60))
def test_the_most_likely_tokens_are_those_that_sorting_would_give(row: np.ndarray, n_tokens: int) -> None:
    logprobs = log_softmax(row)
    assert most_likely(logprobs, n_tokens) == list(np.argsort(-logprobs, kind="stable")[:n_tokens])


def test_entries_are_released_once_in_order_and_only_when_their_text_is_shown() -> None:
    ledger = LogprobLedger()
    first, second, third = (TokenLogprob(piece, -1.0, (), 0) for piece in (b"\xe2", b"\x82\xac", b"x"))
    for entry, end in ((first, 1), (second, 1), (third, 2)):
        ledger.add(entry, end)
    assert ledger.release(0) == ()
    assert ledger.release(1) == (first, second)
    assert ledger.release(1) == ()
    assert ledger.release(2) == (third,)
