"""The KV cache manager: slots for sequences, reuse of cached prefixes, eviction, and offload of evicted sequences.

Keeps the prefix tree and the backend's cache in step. Finished sequences stay cached for their prefixes until their
cells are needed. Independent of requests.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from app.engine.backend import Backend, holds_window
from app.engine.cache.prefix_tree import Match, PrefixTree
from app.engine.cache.state_offload import MIN_SAVED_TOKENS, Restoration, StateOffloader
from app.engine.cache.state_store import StateStore
from app.engine.media.chunks import is_placeholder, n_whole

MIN_END_TOKENS = 128  # before the last token of a prompt, for a checkpoint there: it costs a step of its own
MAX_IDLE_CELLS = 128  # of finished sequences when a new one begins, or 1 / MAX_IDLE_SHARE of all: attention reads them
MAX_IDLE_SHARE = 8
MIN_FORGOTTEN_CELLS = 256  # attention reads cells by this many


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the cache for a sequence whose first `n_cached` tokens are computed already. `checkpoints` are where
    its states should be saved while the others are computed."""

    sequence_id: int
    n_cached: int
    checkpoints: tuple[int, ...] = ()


class KVCacheManager:
    """Manager of one backend's sequences. An allocated sequence is locked until `release`, then reusable or evictable.
    With a `store`, evicted sequences are saved there and restored for prompts with the same prefix, and so are
    checkpoints of sequences that cannot be truncated. Only sequences of the same adapter set share cells, since
    computed tokens depend on it."""

    def __init__(self, backend: Backend, store: StateStore | None = None) -> None:
        self._backend = backend
        self._facts = backend.facts
        self._tree = PrefixTree()
        self._offloader = None if store is None else StateOffloader(backend, self._tree, store)
        self._free_ids = list(range(self._facts.n_seq_max))
        self._n_unshifted: dict[int, int] = {}  # of a shifted sequence: tokens computed before the shift's gap
        self._conversations: dict[int, str] = {}  # by sequence: of the last request that names one
        self._branches: dict[int, tuple[int, ...]] = {}  # by sequence: of the last request that has any
        self._forgotten: set[int] = set()  # sequences to be dropped when they are released
        self._n_shifts = 0
        self._high_water = 0  # most cells in use at once since the cache was last empty

    @property
    def n_cells_used(self) -> int:
        return self._tree.n_cells

    @property
    def saved_bytes(self) -> int:
        """The bytes of saved sequences in memory; callable from any thread."""
        return 0 if self._offloader is None else self._offloader.saved_bytes

    def n_cells_available(self) -> int:
        return self._facts.n_cells - self._tree.locked_cells()

    def has_spare_cells(self, tokens: Sequence[int], namespace: Hashable = ()) -> bool:
        """Return whether `tokens`, and one more, can be computed though nothing that is not saved, or cannot be now,
        leaves the cells: free ones and those of finished sequences that can come back from the store suffice."""
        match = self._match(tokens, namespace)
        n_missing = len(tokens) + 1 - match.n_tokens - (self._facts.n_cells - self._tree.n_cells)
        if n_missing <= 0:
            return True
        if self._offloader is None:
            return False
        idle = (each for each in self._tree.unlocked() if each != match.sequence_id)
        return n_missing <= sum(
            self._tree.exclusive_cells(each) for each in idle if self._offloader.is_cheap_to_evict(each)
        )

    def n_cached(self, tokens: Sequence[int], namespace: Hashable = ()) -> int:
        """Return how many of the first tokens `allocate` would find computed."""
        n_cached = self._match(tokens, namespace).n_tokens
        saved = self._saved_match(tokens, namespace, n_cached)
        return saved.n_tokens if saved else n_cached

    def allocate(
        self,
        tokens: Sequence[int],
        namespace: Hashable = (),
        *,
        wants_first_cells: bool = False,
        branches: Sequence[int] = (),
        conversation: str = "",
    ) -> Slot:
        """Return a locked slot as `_allocate`, and where to save checkpoints if the sequence cannot be truncated. That
        is at the `branches`, where the prompts of others may leave this one, and where it leaves those before it. The
        sequence belongs to `conversation`; a request that names none leaves it where it was."""
        needs_checkpoints = self._offloader is not None and not self._facts.truncation.is_unlimited
        if self._offloader is not None:
            self._offloader.adopt(tokens, namespace, conversation)
        # Before anything is evicted, whose tokens would no longer be known.
        n_known = self._offloader.n_known(tokens[:-1], namespace) if self._offloader and needs_checkpoints else 0
        slot = self._allocate(tokens, namespace, wants_first_cells=wants_first_cells)
        if self._offloader is not None and needs_checkpoints:
            places = tuple(n_whole(tokens, place) for place in branches)
            if places:
                self._branches[slot.sequence_id] = places
            self.checkpoint(slot.sequence_id)  # of the end that the sequence is about to leave
            places = (*places, n_whole(tokens, n_known))
            min_end = self._offloader.min_end_tokens
            slot = replace(slot, checkpoints=plan_checkpoints(places, slot.n_cached, len(tokens), min_end))
        if conversation:
            self._conversations[slot.sequence_id] = conversation
        return slot

    def _allocate(self, tokens: Sequence[int], namespace: Hashable, *, wants_first_cells: bool) -> Slot:
        """Return a locked slot with the longest cached prefix of `tokens`; at least the last token is left to compute.
        A sequence that continues a finished one takes its slot; any other shares the cells it needs. A new one that
        `wants_first_cells` gets them if nothing runs, which makes its results independent of other sequences."""
        match = self._match(tokens, namespace)
        if (wants_first_cells and not match.n_tokens and self._offload_all_idle()) or self._offload_idle(match):
            match = self._match(tokens, namespace)  # which may be saved now
        saved = self._saved_match(tokens, namespace, match.n_tokens)
        if saved is not None:
            if (slot := self._restore(saved, tokens, namespace)) is not None:
                return slot
            match = self._match(tokens, namespace)  # restoring may have evicted the match
        source_id = match.sequence_id
        if source_id is None:
            sequence_id = self._new_id()
        elif match.n_tokens == self._tree.length(source_id) and not self._tree.is_locked(source_id):
            self._tree.lock(source_id)
            return Slot(source_id, match.n_tokens)
        else:
            self._tree.lock(source_id)  # a new id must not evict the source
            sequence_id = self._new_id()
            self._tree.unlock(source_id)
            self._backend.share_cells(source_id, sequence_id, 0, match.n_tokens)
        self._tree.insert(sequence_id, tokens[: match.n_tokens], namespace)
        self._tree.lock(sequence_id)
        return Slot(sequence_id, self.narrow(sequence_id, is_copy=True))

    def record_computed(self, sequence_id: int, tokens: Sequence[int]) -> None:
        """Record that the backend has computed `tokens` at the end of the sequence. Tokens that another sequence has
        computed too are shared from now on, which frees duplicate cells. Those of pictures and sounds, of which each
        may have a part, stay where they are."""
        begin = self._tree.length(sequence_id)
        shared = self._tree.extend(sequence_id, tokens)
        self._high_water = max(self._high_water, self._tree.n_cells)
        source_id, end = shared.sequence_id, begin + shared.n_tokens
        if source_id is None or not self._facts.supports_truncation:
            return
        if any(map(is_placeholder, tokens[: shared.n_tokens])):
            return
        # Windows have forgotten what lies before them: cells are shared only where that leaves the target no gap.
        if self._backend.first_held(source_id) <= begin and self._backend.first_held(sequence_id) <= end:
            self._backend.share_cells(source_id, sequence_id, begin, end)

    def hold(self, sequence_id: int) -> None:
        """Let `truncate` return to where the sequence is now, before tokens are computed that it may lose."""
        self._backend.hold(sequence_id)

    def truncate(self, sequence_id: int, n_tokens: int) -> int:
        """Remove tokens from position `n_tokens` on, recorded or not; return how many remain."""
        n_left = self._backend.truncate(sequence_id, n_tokens)
        if n_left < self._tree.length(sequence_id):
            self._tree.truncate(sequence_id, n_left)
        return n_left

    def narrow(self, sequence_id: int, *, is_copy: bool = False) -> int:
        """Let layers with a window forget what is before it, where that saves time; return how many tokens remain. What
        is forgotten cannot be returned to, so as much as a window is kept behind it. A copy always forgets, since cells
        that sequences share are never overwritten."""
        n_tokens, n_window = self._tree.length(sequence_id), self._facts.n_window
        if not n_window or not self._facts.supports_truncation or not (is_copy or self._facts.passes_over_cells):
            return n_tokens
        n_outside = n_tokens - n_window - self._backend.first_held(sequence_id)
        if n_outside >= max(n_window, MIN_FORGOTTEN_CELLS):
            held = self._backend.save_checkpoint(sequence_id)
            if not self._backend.restore_checkpoint(sequence_id, sequence_id, n_tokens, held):
                self._tree.truncate(sequence_id, 0)
        return self._tree.length(sequence_id)

    def shift(self, sequence_id: int, n_keep: int, n_discard: int) -> int:
        """Remove `n_discard` tokens after the first `n_keep` and move the rest up; return how many remain. Tokens
        computed with removed ones must not match other prompts: a unique negative token follows the head."""
        tokens = self._tree.tokens(sequence_id)
        begin = n_keep + n_discard
        if len(tokens) <= begin or not self._unshare_cells(sequence_id, begin):
            return self.truncate(sequence_id, min(self._tree.length(sequence_id), n_keep))
        self._backend.shift(sequence_id, n_keep, n_discard)
        self._n_shifts += 1
        self._n_unshifted[sequence_id] = min(n_keep, self._n_unshifted.get(sequence_id, n_keep))
        self._tree.truncate(sequence_id, 0)
        self.record_computed(sequence_id, tokens[:n_keep])
        self._tree.extend(sequence_id, [-self._n_shifts, *tokens[begin + 1 :]])
        return self._tree.length(sequence_id)

    def checkpoint(self, sequence_id: int) -> None:
        """Save the states of the sequence as it is now, to return to if it cannot be truncated."""
        is_kept = sequence_id in self._tree and sequence_id not in self._forgotten  # its conversation may be deleted
        if self._offloader is not None and is_kept:
            conversation, branches = self._conversations.get(sequence_id, ""), self._branches.get(sequence_id, ())
            self._offloader.save_checkpoint(sequence_id, conversation, branches)

    def forget(self, conversations: Collection[str]) -> None:
        """Drop the sequences of `conversations` without saving them, and what is saved of them. One that is in use is
        dropped when it is released."""
        theirs = [sequence_id for sequence_id, name in self._conversations.items() if name in conversations]
        for sequence_id in theirs:
            if self._tree.is_locked(sequence_id):
                self._forgotten.add(sequence_id)
            else:
                self._drop(sequence_id)
        if self._offloader is not None:
            self._offloader.forget(conversations)

    def release(self, sequence_id: int) -> None:
        """Unlock the sequence: it may be reused or evicted."""
        if (n_unshifted := self._n_unshifted.pop(sequence_id, None)) is not None:
            self.truncate(sequence_id, min(n_unshifted, self._tree.length(sequence_id)))
        self._tree.unlock(sequence_id)
        if sequence_id in self._forgotten:
            self._drop(sequence_id)
        elif self._tree.length(sequence_id) == 0:
            self._evict(sequence_id)

    def evict_until_free(self, n_cells: int) -> bool:
        """Evict least recently used sequences until `n_cells` are free. Return False if the rest are in use."""
        while self._facts.n_cells - self._tree.n_cells < n_cells:
            if not self.evict_one():
                return False
        return True

    def save_idle_sequence(self) -> bool:
        """Save one finished sequence that is not saved yet. Return False if there is none, or no store."""
        if self._offloader is None:
            return False
        idle = reversed(self._tree.unlocked())  # the last used first: it may be the longest of its chat
        for sequence_id in idle:
            conversation = self._conversations.get(sequence_id, "")
            if self._offloader.is_worth_saving(sequence_id, conversation):
                self._offloader.save(sequence_id, conversation)
                return True
        return False

    def evict_one(self) -> bool:
        """Evict one sequence, whatever is free. Return False if all are in use."""
        evictable = self._tree.unlocked()
        if evictable:
            self._evict(evictable[0])
        return bool(evictable)

    def check_integrity(self) -> None:
        self._tree.check_integrity()
        used = {sequence_id for sequence_id in range(self._facts.n_seq_max) if sequence_id in self._tree}
        assert used.isdisjoint(self._free_ids), "a free slot is empty"
        assert used.issuperset((*self._conversations, *self._forgotten)), "only what is cached is of a conversation"
        assert used.issuperset(self._branches), "only what is cached has branches"
        assert len(used) + len(self._free_ids) == self._facts.n_seq_max, "every slot is free or used"
        assert self._tree.n_cells <= self._facts.n_cells, "the cells suffice"

    def _match(self, tokens: Sequence[int], namespace: Hashable) -> Match:
        def n_usable(sequence_id: int, n_tokens: int) -> int:
            n_tokens = n_whole(tokens, n_tokens)
            if n_tokens == self._tree.length(sequence_id):
                return n_tokens
            first_held = self._backend.first_held(sequence_id)
            is_held = holds_window(first_held, n_tokens, self._facts.n_window)
            return n_tokens if self._facts.supports_truncation and is_held else 0

        begin = tokens[:-1]  # one token must be computed for its logits
        return self._tree.match(begin, namespace, n_usable)

    def _saved_match(self, tokens: Sequence[int], namespace: Hashable, n_cached: int) -> Restoration | None:
        return None if self._offloader is None else self._offloader.find(tokens, namespace, n_cached)

    def _offload_idle(self, match: Match) -> bool:
        """Move finished sequences to the store if they would slow down a new sequence; return whether any was moved.
        Attention reads every cell up to the highest in use: 11 µs a cell and step on two cores with a 1.24B model,
        against some 20 µs to save and restore a cell. If nothing runs, the match is moved too and restored to the
        lowest cells."""
        n_locked = self._tree.locked_cells()
        n_read = self._tree.n_cells if n_locked else self._high_water
        n_idle = n_read - n_locked - match.n_tokens
        if (
            self._offloader is None
            or not self._facts.is_on_host
            or not self._facts.has_attention  # which alone reads cells
            or n_idle <= max(MAX_IDLE_CELLS, n_read // MAX_IDLE_SHARE)
        ):
            return False
        for sequence_id in self._tree.unlocked():
            if not (n_locked and sequence_id == match.sequence_id) and self._offloader.is_cheap_to_evict(sequence_id):
                self._evict(sequence_id)
        if not n_locked:
            self._high_water = self._tree.n_cells
        return True

    def _offload_all_idle(self) -> bool:
        """Move all finished sequences to the store if nothing runs and none is lost; return whether any was moved. In
        other cells attention sums in another order. That moves an activation by 1e-7, which rounding to 8 bits swallows
        or makes 1e-2 of: of 30 scored texts 2 to 9 differed by up to 0.13 nats a token by what ran before."""
        idle = self._tree.unlocked()
        if (
            self._offloader is None
            or self._tree.locked_cells()
            or not all(map(self._offloader.is_cheap_to_evict, idle))
        ):
            return False
        for sequence_id in idle:
            self._evict(sequence_id)
        self._high_water = 0
        return bool(idle)

    def _restore(self, found: Restoration, tokens: Sequence[int], namespace: Hashable) -> Slot | None:
        assert self._offloader is not None
        if found.n_cells > self.n_cells_available():
            return None
        if found.source_id is not None:
            self._tree.lock(found.source_id)  # a new id must not evict the source
        sequence_id = self._new_id() if self.evict_until_free(found.n_cells) else None
        if found.source_id is not None:
            self._tree.unlock(found.source_id)
        if sequence_id is None:
            return None
        if not self._offloader.restore(found, sequence_id):
            self._free_ids.append(sequence_id)
            return None
        self._tree.insert(sequence_id, (), namespace)
        self._tree.lock(sequence_id)
        self.record_computed(sequence_id, tokens[: found.n_tokens])
        return Slot(sequence_id, found.n_tokens)

    def _unshare_cells(self, sequence_id: int, begin: int) -> bool:
        """Give the sequence its own cells from `begin` on: a shared cell has one position for all its sequences. Return
        False, with the sequence empty, if there are no cells for a copy."""
        n_tokens = self._tree.length(sequence_id)
        if n_tokens - self._tree.exclusive_cells(sequence_id) <= begin:
            return True
        state = self._backend.save_state(sequence_id)
        self.truncate(sequence_id, 0)
        return self.evict_until_free(n_tokens) and self._backend.restore_state(sequence_id, state)

    def _new_id(self) -> int:
        if not self._free_ids:
            evicted = self.evict_one()
            assert evicted, "there are more slots than running answers"
        return self._free_ids.pop()

    def _evict(self, sequence_id: int) -> None:
        conversation = self._conversations.get(sequence_id, "")
        if self._offloader is not None and self._offloader.is_worth_keeping(sequence_id, conversation):
            self._offloader.save(sequence_id, conversation)
        else:
            self.checkpoint(sequence_id)  # its cells are saved, or others'
        self._drop(sequence_id)

    def _drop(self, sequence_id: int) -> None:
        self._conversations.pop(sequence_id, None)
        self._branches.pop(sequence_id, None)
        self._forgotten.discard(sequence_id)
        self._tree.remove(sequence_id)
        self._backend.truncate(sequence_id, 0)
        self._free_ids.append(sequence_id)


def plan_checkpoints(
    branches: Iterable[int], n_cached: int, n_prompt: int, min_end_tokens: int = MIN_SAVED_TOKENS
) -> tuple[int, ...]:
    """Return after how many tokens of a prompt to save states: at the `branches`, and at its end for its next turn. The
    same prompt again continues before its last token; that place costs a step, so it has to be worth it. The end is
    left out if it is fewer than `min_end_tokens` after another place."""
    planned: list[int] = []
    last = n_cached
    for place in sorted(branches):
        if last + MIN_SAVED_TOKENS <= place < n_prompt:
            planned.append(place)
            last = place
    if n_prompt - 1 - last >= max(MIN_END_TOKENS, min_end_tokens):
        planned.append(n_prompt - 1)
    elif n_prompt - last >= min_end_tokens:
        planned.append(n_prompt)
    return tuple(planned)
