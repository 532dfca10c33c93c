"""The offload of sequences from the KV cache: which to save, and which saved state to restore for a prompt.

Connects the prefix tree, the backend that reads and writes states, and the store. Independent of slots and eviction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Sequence

from app.engine.backend import Backend
from app.engine.cache.prefix_tree import PrefixTree
from app.engine.cache.state_store import SavedMatch, StateStore
from app.engine.request import AdapterSet

__all__ = ["StateOffloader"]

MIN_SAVED_TOKENS = 32  # fewer are computed faster than saved and restored
MAX_RESTORED_SHARE = 32  # a state is restored for a prefix of at least 1/32 of it


class StateOffloader:
    """Saving and restoring of `backend`'s sequences in `store`, separately for each adapter set."""

    def __init__(self, backend: Backend, tree: PrefixTree, store: StateStore) -> None:
        self._backend = backend
        self._can_cut = backend.facts.supports_truncation
        self._tree = tree
        self._store = store

    def match(self, begin: Sequence[int], adapters: AdapterSet, n_cached: int) -> SavedMatch | None:
        """Return the saved state for the prefix `begin` if restoring pays; `n_cached` of its tokens are cached."""
        match = self._store.match(begin, _namespace_of(adapters))
        if match is None or match.n_tokens < n_cached + MIN_SAVED_TOKENS:
            return None
        if MAX_RESTORED_SHARE * match.n_tokens < match.n_saved:
            return None
        return match if self._can_cut or match.n_tokens == match.n_saved else None

    def load(self, match: SavedMatch) -> bytes | bytearray | None:
        """Return the state of a match, None if it no longer exists."""
        return self._store.load(match)

    def save(self, sequence_id: int) -> None:
        """Save a sequence."""
        namespace = _namespace_of(self._tree.namespace(sequence_id))
        self._store.save(self._tree.tokens(sequence_id), self._backend.save_state(sequence_id), namespace)

    def is_worth_saving(self, sequence_id: int) -> bool:
        """Return whether a sequence has enough tokens that are neither shared nor saved."""
        return not self._is_short(sequence_id) and self._fits(sequence_id) and not self._is_saved(sequence_id)

    def is_cheap_to_evict(self, sequence_id: int) -> bool:
        """Return whether a sequence is short, saved, or can be saved now."""
        return self._is_short(sequence_id) or self._fits(sequence_id) or self._is_saved(sequence_id)

    def _fits(self, sequence_id: int) -> bool:
        return self._backend.state_bytes(sequence_id) <= self._store.max_state_bytes

    def _is_short(self, sequence_id: int) -> bool:
        return self._tree.exclusive_cells(sequence_id) < MIN_SAVED_TOKENS

    def _is_saved(self, sequence_id: int) -> bool:
        return self._store.has(self._tree.tokens(sequence_id), _namespace_of(self._tree.namespace(sequence_id)))


def _namespace_of(adapters: Hashable) -> str:
    """Return the store's name of an adapter set, stable across restarts; empty for no adapters."""
    return hashlib.blake2b(json.dumps(adapters).encode(), digest_size=12).hexdigest() if adapters else ""
