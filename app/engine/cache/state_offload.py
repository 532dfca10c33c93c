"""Saving sequences and checkpoints in the store, and finding what of them continues a prompt.

Owns which sequences are worth saving, and which restoration pays. Independent of requests and of who evicts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from app.engine.backend import Backend
from app.engine.cache.prefix_tree import PrefixTree
from app.engine.cache.state_store import SavedMatch, StateStore
from app.engine.media.chunks import n_whole
from app.engine.request import IN_MEMORY

MIN_SAVED_TOKENS = 32  # fewer are computed faster than saved and restored
# A token takes as long as saving this many of its states' bytes a parameter, if one in five is restored: measured with
# 52 MB of a Mamba-2 370M (131 ms on new pages, 2.5 ms a token) and 20 MB of Qwen3.5 0.8B (45 ms, 3.3 ms).
PARAMETERS_PER_BYTE = 2000
MAX_RESTORED_SHARE = 32  # a state is restored for a prefix of at least 1/32 of it


@dataclass(frozen=True, slots=True)
class Restoration:
    """What continues a prompt after its first `n_tokens`: a saved state, a checkpoint, or both. A checkpoint without a
    state is restored beside the cells of the cached sequence `source_id`."""

    n_tokens: int
    state: SavedMatch | None = None
    checkpoint: SavedMatch | None = None
    source_id: int | None = None

    @property
    def n_cells(self) -> int:
        """The cells to be free: those of the whole state, which is truncated later."""
        if self.state is not None:
            return self.state.n_saved
        return self.n_tokens if self.source_id is None else 0


class StateOffloader:
    """Saving and restoring of `backend`'s sequences in `store`, separately for each adapter set. A sequence that can be
    truncated is restored for any prefix. Another continues where its states were saved: at the end of the whole
    sequence, or at a checkpoint, if the cells before that are cached or saved too."""

    def __init__(self, backend: Backend, tree: PrefixTree, store: StateStore) -> None:
        self._backend = backend
        self._facts = backend.facts
        self._tree = tree
        self._store = store
        self._checkpoint_bytes = 0  # of the last one

    @property
    def saved_bytes(self) -> int:
        """The bytes of saved states in memory; callable from any thread."""
        return self._store.memory_bytes

    @property
    def min_end_tokens(self) -> int:
        """How many tokens a checkpoint at the end of a prompt must spare."""
        return self._min_tokens(self._checkpoint_bytes)

    def find(self, tokens: Sequence[int], namespace: Hashable, n_cached: int) -> Restoration | None:
        """Return what continues a prefix of the prompt `tokens`, its last one left out, if restoring pays. The first
        `n_cached` tokens need none."""
        match, truncation = self._store.match(tokens[:-1], _name_of(namespace)), self._facts.truncation
        # Whether the saved state can be cut to the match: a window forgets tokens, and a recurrent state can't go back.
        if match is not None and (
            truncation.is_unlimited or (not truncation.has_states and match.n_saved <= truncation.n_window)
        ):
            found: Restoration | None = Restoration(n_whole(tokens, match.n_tokens), match)
        else:
            found = self._find_states(tokens, namespace)
        if found is None or found.n_tokens < n_cached + MIN_SAVED_TOKENS:
            return None
        if found.state is not None and MAX_RESTORED_SHARE * found.n_tokens < found.state.n_saved:
            return None
        return found

    def _find_states(self, tokens: Sequence[int], namespace: Hashable) -> Restoration | None:
        """Return the longest prefix whose states are saved, with what holds its cells; it cuts no picture in two."""
        begin, name = tokens[:-1], _name_of(namespace)
        whole = self._store.match(begin, name, is_whole=True)
        is_usable = whole is not None and n_whole(tokens, whole.n_tokens) == whole.n_tokens
        best = Restoration(whole.n_tokens, whole) if whole is not None and is_usable else None
        cached, saved = self._tree.match(begin, namespace), self._store.match(begin, name)
        for checkpoint in self._store.checkpoints(begin, name):
            n_tokens = checkpoint.n_tokens
            if best is not None and n_tokens <= best.n_tokens:
                break
            if n_whole(tokens, n_tokens) < n_tokens:
                continue
            if not self._facts.has_attention:
                return Restoration(n_tokens, checkpoint=checkpoint)
            if n_tokens <= cached.n_tokens:
                return Restoration(n_tokens, checkpoint=checkpoint, source_id=cached.sequence_id)
            if saved is not None and n_tokens <= saved.n_tokens:
                return Restoration(n_tokens, saved, checkpoint)
        return best

    def n_known(self, begin: Sequence[int], namespace: Hashable) -> int:
        """Return how many of the first tokens some cached or saved sequence has, whether or not they can be used."""
        return max(self._tree.match(begin, namespace).n_tokens, self._store.n_saved(begin, _name_of(namespace)))

    def restore(self, found: Restoration, sequence_id: int) -> bool:
        """Restore into an empty sequence; return False, leaving it empty, if something is missing or does not fit."""
        source_id = found.source_id
        if found.state is not None:
            state = self._store.load(found.state)
            if state is None or not self._backend.restore_state(sequence_id, state):
                return False
            source_id = sequence_id
        if found.checkpoint is not None:
            checkpoint = self._store.load(found.checkpoint)
            if checkpoint is None:
                self._backend.truncate(sequence_id, 0)
                return False
            return self._backend.restore_checkpoint(sequence_id, source_id, found.n_tokens, checkpoint)
        # what a window forgot is not saved
        return self._backend.truncate(sequence_id, found.n_tokens) == found.n_tokens

    def save(self, sequence_id: int, conversation: str = "") -> None:
        tokens, namespace = self._key(sequence_id)
        self._store.save(tokens, self._backend.save_state(sequence_id), namespace, conversation)

    def save_checkpoint(self, sequence_id: int, conversation: str = "", branches: Collection[int] = ()) -> None:
        """Save the states of a sequence as it is now, unless the last ones saved are about as far. Those at its
        `branches` are kept longest."""
        if self._facts.truncation.is_unlimited:
            return
        tokens, namespace = self._key(sequence_id)
        # A saved sequence that ends here does not count: it is replaced by a longer one of its chat, a checkpoint not.
        last = self._store.checkpoints(tokens, namespace)[:1]
        if len(tokens) - sum(match.n_tokens for match in last) < MIN_SAVED_TOKENS:
            return
        checkpoint = self._backend.save_checkpoint(sequence_id)
        self._checkpoint_bytes = len(checkpoint)
        if len(checkpoint) <= self._store.max_state_bytes:
            self._store.save_checkpoint(tokens, checkpoint, namespace, conversation, branches)

    def forget(self, conversations: Collection[str]) -> None:
        self._store.forget(conversations)

    def adopt(self, tokens: Sequence[int], namespace: Hashable, conversation: str) -> None:
        """Take for `conversation` what was saved of its prompt `tokens` for memory only, unless that is all it may."""
        if conversation != IN_MEMORY:
            self._store.adopt(tokens, _name_of(namespace), conversation)

    def is_worth_saving(self, sequence_id: int, conversation: str = "") -> bool:
        """Return whether a sequence of `conversation` has enough tokens that no saved one has, as durable as it."""
        tokens, namespace = self._key(sequence_id)
        n_saved = self._store.n_saved(tokens, namespace, is_for_disk=conversation != IN_MEMORY)
        n_new, n_bytes = len(tokens) - n_saved, self._backend.state_bytes(sequence_id)
        return self._min_tokens(n_bytes) <= n_new and n_bytes <= self._store.max_state_bytes

    def is_worth_keeping(self, sequence_id: int, conversation: str = "") -> bool:
        """Return whether a sequence of `conversation` that is evicted has enough tokens that are neither shared nor
        saved."""
        is_saved = self._is_saved(sequence_id, is_for_disk=conversation != IN_MEMORY)
        return not self._is_short(sequence_id) and self._fits(sequence_id) and not is_saved

    def is_cheap_to_evict(self, sequence_id: int) -> bool:
        """Return whether a sequence is short, saved, or can be saved now."""
        return self._is_short(sequence_id) or self._fits(sequence_id) or self._is_saved(sequence_id)

    def _fits(self, sequence_id: int) -> bool:
        return self._backend.state_bytes(sequence_id) <= self._store.max_state_bytes

    def _is_short(self, sequence_id: int) -> bool:
        return self._tree.exclusive_cells(sequence_id) < self._min_tokens(self._backend.state_bytes(sequence_id))

    def _min_tokens(self, n_bytes: int) -> int:
        """Return how many tokens a state of `n_bytes` must spare to be worth saving; cells alone always are."""
        n_parameters = self._facts.n_parameters
        if not self._facts.truncation.has_states or not n_parameters:
            return MIN_SAVED_TOKENS
        return max(MIN_SAVED_TOKENS, PARAMETERS_PER_BYTE * n_bytes // n_parameters)

    def _is_saved(self, sequence_id: int, *, is_for_disk: bool = False) -> bool:
        tokens, namespace = self._key(sequence_id)
        return self._store.n_saved(tokens, namespace, is_for_disk=is_for_disk) == len(tokens)

    def _key(self, sequence_id: int) -> tuple[list[int], str]:
        return self._tree.tokens(sequence_id), _name_of(self._tree.namespace(sequence_id))


def _name_of(namespace: Hashable) -> str:
    """Return the store's name of a namespace, stable across restarts; empty for the usual one."""
    return hashlib.blake2b(json.dumps(namespace).encode(), digest_size=12).hexdigest() if namespace else ""
