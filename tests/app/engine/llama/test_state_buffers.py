from __future__ import annotations

import numpy as np

from app.engine.llama.state_buffers import StateBuffers


def test_a_prepared_buffer_is_used_once() -> None:
    buffers = StateBuffers()
    first = buffers.take(5000)
    assert first.shape == (5000,)
    buffers.prepare()
    n_prepared = buffers.n_spare
    later = [buffers.take(5000) for _ in range(n_prepared + 1)]
    assert n_prepared == 2
    assert buffers.n_spare == 0
    assert not any(np.shares_memory(one, other) for one in later for other in [first, *later] if one is not other)


def test_nothing_is_prepared_before_the_size_is_known_or_for_a_size_that_is_not_used() -> None:
    buffers = StateBuffers()
    buffers.prepare()
    assert buffers.n_spare == 0
    buffers.take(100)
    buffers.prepare()
    assert len(buffers.take(200)) == 200
    assert buffers.n_spare == 0


def test_large_states_are_prepared_as_far_as_memory_is_worth_it() -> None:
    for n_bytes, n_spare in ((20 << 20, 2), (52 << 20, 1), (80 << 20, 0)):
        buffers = StateBuffers()
        buffers.take(n_bytes)
        buffers.prepare()
        assert buffers.n_spare == n_spare
