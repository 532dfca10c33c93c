from __future__ import annotations

import numpy as np
import pytest

from app.engine.embedding import Pooling, normalized, pooled

PARTS = np.array([[1.0, 2.0], [3.0, 6.0], [8.0, 1.0]], np.float32)


@pytest.mark.parametrize(
    ("pooling", "whole"),
    [
        (Pooling.MEAN, PARTS.mean(axis=0)),
        (Pooling.CLS, PARTS[0]),
        (Pooling.LAST, PARTS[2]),
        (Pooling.RANK, PARTS[2]),
    ],
)
def test_a_text_in_two_chunks_pools_like_the_whole(pooling: Pooling, whole: np.ndarray) -> None:
    first = PARTS[:2].mean(axis=0) if pooling is Pooling.MEAN else PARTS[0 if pooling is Pooling.CLS else 1]
    before = pooled(pooling, np.zeros(0, np.float32), 0, first, 2)
    np.testing.assert_allclose(pooled(pooling, before, 2, PARTS[2], 1), whole, rtol=1e-6)


def test_a_vector_gets_length_one_and_zero_stays_zero() -> None:
    np.testing.assert_allclose(normalized(np.array([3.0, 4.0], np.float32)), [0.6, 0.8], rtol=1e-6)
    assert not normalized(np.zeros(3, np.float32)).any()
