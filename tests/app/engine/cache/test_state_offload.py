from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.backend import Chunk
from app.engine.cache.prefix_tree import PrefixTree
from app.engine.cache.state_offload import MIN_SAVED_TOKENS, StateOffloader
from app.engine.cache.state_store import StateStore
from app.engine.fake.backend import FakeBackend

LONG = list(range(1, 101))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(tmp_path, max_memory_bytes=1 << 20)
    yield store
    store.close()


def parking(store: StateStore, *, supports_truncation: bool = True, **sequences: list[int]) -> StateOffloader:
    backend, tree = FakeBackend(), PrefixTree()
    backend.facts = replace(backend.facts, supports_truncation=supports_truncation)
    for sequence_id, tokens in enumerate(sequences.values()):
        backend.decode([Chunk(sequence_id, 0, tokens, 1)])
        tree.insert(sequence_id, tokens)
    return StateOffloader(backend, tree, store)


def test_a_sequence_is_worth_saving_once_and_may_go_from_then_on(store: StateStore) -> None:
    parked = parking(store, long=LONG)
    assert parked.is_worth_saving(0)
    parked.save(0)
    assert not parked.is_worth_saving(0)
    assert parked.is_cheap_to_evict(0)


def test_what_others_hold_too_is_not_worth_saving(store: StateStore) -> None:
    parked = parking(store, one=[*LONG, 1], other=[*LONG, 2])
    assert not parked.is_worth_saving(0)
    assert parked.is_cheap_to_evict(0)


def test_a_state_too_large_to_keep_must_stay_in_the_cache(tmp_path: Path) -> None:
    store = StateStore(tmp_path, max_memory_bytes=10)
    parked = parking(store, long=LONG)
    assert not parked.is_worth_saving(0)
    assert not parked.is_cheap_to_evict(0)
    store.close()


def test_a_saved_sequence_is_found_where_it_spares_enough(store: StateStore) -> None:
    parked = parking(store, long=LONG)
    parked.save(0)
    found = parked.match([*LONG, 7], (), n_cached=0)
    assert found is not None
    assert found.n_tokens == 100
    assert parked.load(found) is not None
    assert parked.match([*LONG, 7], (), n_cached=100 - MIN_SAVED_TOKENS + 1) is None
    assert parked.match([*LONG, 7], (("lora", 0.5),), n_cached=0) is None


def test_a_model_that_cannot_be_cut_takes_whole_sequences_back_only(store: StateStore) -> None:
    parked = parking(store, supports_truncation=False, long=LONG)
    parked.save(0)
    assert parked.match(LONG[:60], (), n_cached=0) is None
    assert parked.match(LONG, (), n_cached=0) is not None
