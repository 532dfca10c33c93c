from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine.backend import Chunk
from app.engine.cache.kv_cache import MIN_SAVED_TOKENS, StateOffloader
from app.engine.cache.prefix_tree import PrefixTree
from app.engine.cache.state_store import StateStore
from app.engine.fake import FakeBackend

LONG = list(range(1, 101))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(tmp_path, max_memory_bytes=1 << 20)
    yield store
    store.close()


def offloader_with(store: StateStore, *, supports_truncation: bool = True, **sequences: list[int]) -> StateOffloader:
    backend, tree = FakeBackend(supports_truncation=supports_truncation), PrefixTree()
    for sequence_id, tokens in enumerate(sequences.values()):
        backend.decode([Chunk(sequence_id, 0, tokens, 1)])
        tree.insert(sequence_id, tokens)
    return StateOffloader(backend, tree, store)


def test_a_sequence_is_worth_saving_once_and_may_go_from_then_on(store: StateStore) -> None:
    offloader = offloader_with(store, long=LONG)
    assert offloader.is_worth_saving(0)
    offloader.save(0)
    assert not offloader.is_worth_saving(0)
    assert offloader.is_cheap_to_evict(0)


def test_shared_tokens_are_not_worth_saving(store: StateStore) -> None:
    offloader = offloader_with(store, one=[*LONG, 1], other=[*LONG, 2])
    assert not offloader.is_worth_saving(0)
    assert offloader.is_cheap_to_evict(0)


def test_a_state_too_large_for_the_store_stays_cached(tmp_path: Path) -> None:
    store = StateStore(tmp_path, max_memory_bytes=10)
    offloader = offloader_with(store, long=LONG)
    assert not offloader.is_worth_saving(0)
    assert not offloader.is_cheap_to_evict(0)
    store.close()


def test_a_saved_state_matches_where_restoring_pays(store: StateStore) -> None:
    offloader = offloader_with(store, long=LONG)
    offloader.save(0)
    found = offloader.match([*LONG, 7], (), n_cached=0)
    assert found is not None
    assert found.n_tokens == 100
    assert offloader.store.load(found) is not None
    assert offloader.match([*LONG, 7], (), n_cached=100 - MIN_SAVED_TOKENS + 1) is None
    assert offloader.match([*LONG, 7], (("lora", 0.5),), n_cached=0) is None


def test_a_model_without_truncation_restores_whole_sequences_only(store: StateStore) -> None:
    offloader = offloader_with(store, supports_truncation=False, long=LONG)
    offloader.save(0)
    assert offloader.match(LONG[:60], (), n_cached=0) is None
    assert offloader.match(LONG, (), n_cached=0) is not None
