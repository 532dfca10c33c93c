from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.backend import Chunk
from app.engine.cache.prefix_tree import PrefixTree
from app.engine.cache.state_offload import MIN_SAVED_TOKENS, PARAMETERS_PER_BYTE, StateOffloader
from app.engine.cache.state_store import StateStore
from app.engine.fake import FakeBackend

LONG = list(range(1, 101))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = StateStore(tmp_path, max_memory_bytes=1 << 20)
    yield store
    store.close()


def offloader_with(
    store: StateStore, *, supports_truncation: bool = True, has_attention: bool = True, **sequences: list[int]
) -> StateOffloader:
    backend = FakeBackend(supports_truncation=supports_truncation, has_attention=has_attention)
    tree = PrefixTree()
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


def test_a_sequence_with_shared_tokens_is_not_worth_keeping_when_it_is_evicted(store: StateStore) -> None:
    offloader = offloader_with(store, one=[*LONG, 1], other=[*LONG, 2])
    assert not offloader.is_worth_keeping(0)
    assert offloader.is_cheap_to_evict(0)


def test_states_that_cost_more_than_their_tokens_are_not_saved(store: StateStore) -> None:
    offloader = offloader_with(store, supports_truncation=False, long=LONG)
    n_bytes = offloader._backend.state_bytes(0)
    for n_tokens, is_worth_it in ((len(LONG), True), (len(LONG) + 1, False)):
        facts = replace(offloader._facts, n_parameters=PARAMETERS_PER_BYTE * n_bytes // n_tokens)
        offloader._facts = facts
        assert offloader.is_worth_saving(0) == offloader.is_worth_keeping(0) == is_worth_it
    offloader.save_checkpoint(0)
    assert offloader.min_end_tokens > MIN_SAVED_TOKENS


def test_of_sequences_that_share_most_tokens_one_is_worth_saving_for_the_next_start(store: StateStore) -> None:
    offloader = offloader_with(store, one=[*LONG, 1], other=[*LONG, 2])
    assert offloader.is_worth_saving(0)
    offloader.save(0)
    assert not offloader.is_worth_saving(1)


def test_a_state_too_large_for_the_store_stays_cached(tmp_path: Path) -> None:
    store = StateStore(tmp_path, max_memory_bytes=10)
    offloader = offloader_with(store, long=LONG)
    assert not offloader.is_worth_saving(0)
    assert not offloader.is_cheap_to_evict(0)
    store.close()


def test_a_saved_state_matches_where_restoring_pays(store: StateStore) -> None:
    offloader = offloader_with(store, long=LONG)
    offloader.save(0)
    found = offloader.find([*LONG, 7], (), n_cached=0)
    assert found is not None
    assert (found.n_tokens, found.checkpoint) == (100, None)
    assert offloader.restore(found, 1)
    assert offloader.find([*LONG, 7], (), n_cached=100 - MIN_SAVED_TOKENS + 1) is None
    assert offloader.find([*LONG, 7], (("lora", 0.5),), n_cached=0) is None


def test_a_model_with_states_restores_whole_sequences_and_checkpoints_only(store: StateStore) -> None:
    offloader = offloader_with(store, supports_truncation=False, begin=LONG[:50])
    offloader.save_checkpoint(0)
    assert offloader.find([*LONG[:50], 7], (), n_cached=0) is not None, "its cells are cached"
    offloader = offloader_with(store, supports_truncation=False, long=LONG, other=[9])
    offloader.save(0)
    offloader._tree.remove(0)
    found = offloader.find([*LONG[:60], 7], (), n_cached=0)
    assert found is not None
    assert (found.n_tokens, found.n_cells) == (50, 100)
    assert offloader.restore(found, 2)
    assert offloader.find(LONG[:49], (), n_cached=0) is None
    whole = offloader.find([*LONG, 7], (), n_cached=0)
    assert whole is not None
    assert (whole.n_tokens, whole.checkpoint) == (100, None)


def test_a_checkpoint_without_its_cells_is_of_no_use_unless_the_model_has_no_attention(store: StateStore) -> None:
    offloader_with(store, supports_truncation=False, long=LONG).save_checkpoint(0)
    assert offloader_with(store, supports_truncation=False).find([*LONG, 7], (), n_cached=0) is None
    purely_recurrent = offloader_with(store, supports_truncation=False, has_attention=False)
    found = purely_recurrent.find([*LONG, 7], (), n_cached=0)
    assert found is not None
    assert purely_recurrent.restore(found, 0)


def test_a_checkpoint_is_not_saved_again_a_few_tokens_later(store: StateStore) -> None:
    offloader = offloader_with(store, supports_truncation=False, begin=LONG[:50], later=LONG[:60])
    offloader.save_checkpoint(0)
    offloader.save_checkpoint(1)
    assert [match.n_tokens for match in store.checkpoints(LONG)] == [50]
