"""The cache of answers that must be repeatable to the bit: one sequence at a time, from the first cell on.

What llama.cpp computes for a token depends on the cells that its sequence is in, on those of others, and on how many
tokens are computed with it (figures in app/engine/llama/README.md). So nothing else is in this cache, a prompt is
computed in steps that end at fixed places, and only whole such steps are reused.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from app.engine.backend import Backend
from app.engine.cache.kv_cache import KVCacheManager, Slot
from app.engine.media.chunks import n_whole

# Tokens of a prompt's step: on processors larger steps are no faster, and so many at most are read again of a prompt
# that continues another.
DETERMINISTIC_STEP = 128


class DeterministicCache(KVCacheManager):
    """A manager of one sequence. Of a finished one stay the tokens of its prompt that were computed in whole steps;
    those of its answer, which were computed one by one, are read again as part of the next prompt. Sequences with
    states or windows leave nothing, since truncating them depends on what was computed after that place."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._n_prompt = 0  # tokens of the running sequence that were not sampled

    def n_cached(self, tokens: Sequence[int], namespace: Hashable = ()) -> int:
        if not self._facts.truncation.is_unlimited:
            return 0
        n_kept = super().n_cached(tokens, namespace) // DETERMINISTIC_STEP * DETERMINISTIC_STEP
        while n_whole(tokens, n_kept) < n_kept:  # within a picture, whose steps begin where it does
            n_kept -= DETERMINISTIC_STEP
        return n_kept

    def allocate(
        self,
        tokens: Sequence[int],
        namespace: Hashable = (),
        *,
        wants_first_cells: bool = False,
        branches: Sequence[int] = (),  # noqa: ARG002  (they are for checkpoints)
        conversation: str = "",
    ) -> Slot:
        """Return the locked slot, and as its checkpoints the places where steps end. A sequence that
        `wants_first_cells` is scored, in steps of another size: it reuses nothing and leaves nothing."""
        n_kept = 0 if wants_first_cells else self.n_cached(tokens, namespace)
        assert not self._tree.locked_cells(), "one sequence runs at a time"
        if n_kept:
            (sequence_id,) = self._tree.unlocked()
            self.truncate(sequence_id, n_kept)
        else:
            while self.evict_one():
                pass
            sequence_id = self._new_id()
            self._tree.insert(sequence_id, (), namespace)
        self._tree.lock(sequence_id)
        self._n_prompt = 0 if wants_first_cells else len(tokens)
        if conversation:
            self._conversations[sequence_id] = conversation
        return Slot(sequence_id, n_kept, tuple(range(n_kept + DETERMINISTIC_STEP, len(tokens), DETERMINISTIC_STEP)))

    def release(self, sequence_id: int) -> None:
        n_read = min(self._n_prompt, self._tree.length(sequence_id)) if self._facts.truncation.is_unlimited else 0
        self.truncate(sequence_id, n_read // DETERMINISTIC_STEP * DETERMINISTIC_STEP)
        super().release(sequence_id)
