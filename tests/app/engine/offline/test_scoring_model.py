from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.backend import Chunk, DecodeStatus
from app.engine.fake import FakeBackend
from app.engine.offline.scoring_model import predictions, windows
from quantizer.system.errors import EngineError, UsageError

TEXT = list(range(2, 102))


def test_a_window_scores_its_second_half_and_begins_with_the_first_token_of_the_vocabulary() -> None:
    first, second = windows(TEXT, 40, begin=1)
    assert first.tokens == (1, *TEXT[1:40])
    assert first.targets == tuple(TEXT[21:40])
    assert second.tokens == (1, *TEXT[41:80])
    assert windows(TEXT, 40, begin=None)[0].tokens == tuple(TEXT[:40])


@given(st.integers(16, 100), st.integers(0, 8))
def test_windows_are_whole_and_as_many_as_requested(n_ctx: int, n_windows: int) -> None:
    cut = windows(TEXT, n_ctx, None, n_windows)
    assert len(cut) == min(100 // n_ctx, n_windows or 100)
    assert all(len(window.tokens) == n_ctx for window in cut)
    assert all(len(window.targets) == n_ctx - 1 - n_ctx // 2 for window in cut)


def test_a_text_that_fills_no_window_is_refused() -> None:
    with pytest.raises(UsageError, match="100 tokens"):
        windows(TEXT, 101, None)
    with pytest.raises(UsageError, match="too short"):
        windows(TEXT, 15, None)


@pytest.mark.slow
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 9))
def test_batches_and_blocks_change_no_prediction(n_batch: int, other_n_batch: int, n_rows: int) -> None:
    window = windows(TEXT, 50, None)[1]
    whole = FakeBackend()
    whole.decode([Chunk(0, 0, window.tokens, len(window.tokens))])
    wanted = np.stack([whole.logits(row) for row in range(25, 49)])
    backends = [FakeBackend(n_batch=n_batch), FakeBackend(n_batch=other_n_batch)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.engine.offline.scoring_model._MAX_BLOCK_ELEMENTS", n_rows * whole.facts.n_vocab)
        scored = list(predictions(backends, window))
    assert np.concatenate([part.targets for part in scored]).tolist() == list(window.targets)
    for model in (0, 1):
        assert np.array_equal(np.concatenate([part.logits[model] for part in scored]), wanted)


def test_a_window_does_not_depend_on_the_one_before() -> None:
    backend = FakeBackend()
    first, second = windows(TEXT, 50, None)
    for window in (first, second):
        in_order = [part.logits[0] for part in predictions([backend], window)]
    alone = [part.logits[0] for part in predictions([FakeBackend()], second)]
    assert np.array_equal(np.concatenate(in_order), np.concatenate(alone))


def test_a_batch_that_cannot_be_computed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBackend, "decode", lambda _self, _chunks: DecodeStatus.NO_SLOT)
    with pytest.raises(EngineError, match="could not compute"):
        list(predictions([FakeBackend()], windows(TEXT, 50, None)[0]))
