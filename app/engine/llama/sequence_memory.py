"""The sequences in a context's memory: what is removed, copied and moved, by the engine's ids.

llama.cpp reads the weights of a recurrent model once for several sequences only where their ids follow each other in
the order of the batch (`llama_batch_allocr::split_equal` of src/llama-batch.cpp as vendored in llama-cpp-python
0.3.36); each run of ids is computed by itself. So llama.cpp knows a sequence by an id of its own, which changes where
that brings a batch in line. Owns these ids. Independent of what sequences contain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from app.engine.llama.native import lib


class SequenceMemory:
    """The `memory` of a context, a pointer, with `n_sequences`. Positions are those of llama.cpp."""

    def __init__(self, memory: int, n_sequences: int) -> None:
        self._memory = memory
        self._native = [*range(n_sequences)]

    @property
    def supports_shift(self) -> bool:
        """Whether positions can be moved, in a memory that has any."""
        return bool(self._memory and lib.llama_memory_can_shift(self._memory))

    def native(self, sequence_id: int) -> int:
        """Return llama.cpp's id of a sequence, valid until `line_up`."""
        native_id: int = self._native[sequence_id]
        return native_id

    def first_position(self, sequence_id: int) -> int:
        """Return the first position that is held, -1 for an empty sequence."""
        return int(lib.llama_memory_seq_pos_min(self._memory, self._native[sequence_id]))

    def last_position(self, sequence_id: int) -> int:
        """Return the last position that is held, -1 for an empty sequence."""
        return int(lib.llama_memory_seq_pos_max(self._memory, self._native[sequence_id]))

    def remove(self, sequence_id: int, begin: int = -1, end: int = -1) -> bool:
        """Remove the positions from `begin` up to `end`, by default all; return whether that was possible."""
        return bool(lib.llama_memory_seq_rm(self._memory, self._native[sequence_id], begin, end))

    def copy(self, source_id: int, target_id: int, begin: int = -1, end: int = -1) -> None:
        """Let `target_id` share the cells of `source_id` from `begin` up to `end`, by default all."""
        source, target = self._native[source_id], self._native[target_id]
        lib.llama_memory_seq_cp(self._memory, source, target, begin, end)

    def move(self, sequence_id: int, begin: int, n_positions: int) -> None:
        """Move the positions from `begin` on by `n_positions`."""
        lib.llama_memory_seq_add(self._memory, self._native[sequence_id], begin, -1, n_positions)

    def line_up(self, sequence_ids: Sequence[int]) -> None:
        """Give the sequences of a batch, in its order, ids that follow each other. For memory without attention.

        That takes a few writes. Where no id is empty to exchange two others by, some stay as they are, and the batch is
        computed in parts.
        """
        first = first_in_line([*map(self.native, sequence_ids)], len(self._native))
        for wanted, sequence_id in enumerate(sequence_ids, start=first):
            if self._native[sequence_id] != wanted and not self._exchange(sequence_id, self._native.index(wanted)):
                return

    def _exchange(self, one: int, other: int) -> bool:
        """Exchange the ids of two sequences; return whether that was possible."""
        empty = [sequence_id for sequence_id in range(len(self._native)) if self.last_position(sequence_id) < 0]
        if not empty:
            return False
        if one in empty:
            moves = [(other, one)]
        elif other in empty:
            moves = [(one, other)]
        else:
            moves = [(one, empty[0]), (other, one), (empty[0], other)]
        for source, target in moves:
            self.copy(source, target)
            self.remove(source)
        self._native[one], self._native[other] = self._native[other], self._native[one]
        return True


def first_in_line(native_ids: Sequence[int], n_sequences: int) -> int:
    """Return the first of ids in line, below `n_sequences`, among which most of `native_ids` have their place."""
    n_most = n_sequences - len(native_ids)
    places = Counter(native_id - index for index, native_id in enumerate(native_ids))
    return max((place for place in places if 0 <= place <= n_most), key=places.__getitem__, default=0)
