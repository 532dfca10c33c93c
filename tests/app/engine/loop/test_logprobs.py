from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.engine.fake import END, FakeBackend
from app.engine.loop.logprobs import LOWEST_LOGPROB, LogprobBuffer, most_likely, score
from app.engine.request import TokenLogprob

logits = st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=50).map(lambda row: np.array(row, np.float32))


class Rows(FakeBackend):
    """A backend whose last batch gave one row of logits."""

    def __init__(self, row: np.ndarray) -> None:
        super().__init__()
        self._row = row

    def logits(self, row: int) -> np.ndarray:
        return self._row


def _logprobs(row: np.ndarray) -> np.ndarray:
    return np.array([score(Rows(row), 0, token, 0)[0] for token in range(len(row))])


@given(logits)
def test_probabilities_sum_to_one_in_the_order_of_the_logits(row: np.ndarray) -> None:
    logprobs = _logprobs(row)
    assert abs(np.exp(logprobs).sum() - 1) < 1e-5
    assert (np.diff(logprobs[np.argsort(row, kind="stable")]) >= 0).all()


@given(logits)
def test_probabilities_are_those_that_64_bits_give(row: np.ndarray) -> None:
    shifted = row.astype(np.float64) - row.max()
    assert np.allclose(_logprobs(row), np.maximum(shifted - np.log(np.exp(shifted).sum()), LOWEST_LOGPROB), atol=1e-4)


def test_an_impossible_token_has_a_finite_log_probability() -> None:
    assert list(_logprobs(np.array([0.0, -np.inf], np.float32))) == [0.0, LOWEST_LOGPROB]


def test_rivals_are_named_and_have_the_numbers_that_they_would_have_themselves() -> None:
    row = np.zeros(END + 1, np.float32)
    row[[END, 65]] = 3.0, 2.0
    chosen, rivals = score(Rows(row), 0, 65, 2)
    assert rivals == ((END, b"<end>", score(Rows(row), 0, END, 0)[0]), (65, b"A", chosen))


@given(logits, st.integers(0, 60))
def test_the_most_likely_tokens_are_those_that_sorting_would_give(row: np.ndarray, n_tokens: int) -> None:
    assert most_likely(row, n_tokens) == list(np.argsort(-row, kind="stable")[:n_tokens])


def test_entries_are_released_once_in_order_and_only_when_their_text_is_shown() -> None:
    logprob_buffer = LogprobBuffer()
    first, second, third = (TokenLogprob(piece, -1.0, (), 0, 0) for piece in (b"\xe2", b"\x82\xac", b"x"))
    for entry, end in ((first, 1), (second, 1), (third, 2)):
        logprob_buffer.add(entry, end)
    assert logprob_buffer.release(0) == ()
    assert logprob_buffer.release(1) == (first, second)
    assert logprob_buffer.release(1) == ()
    assert logprob_buffer.release(2) == (third,)
