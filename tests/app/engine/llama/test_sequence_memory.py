"""The ids of sequences: which places a batch gets, and that each sequence keeps what it had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.llama import sequence_memory
from app.engine.llama.sequence_memory import SequenceMemory, first_in_line

N_SEQUENCES = 7


class Memory:
    """llama.cpp's functions over sequences of which each is a word; empty without one."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def llama_memory_seq_pos_max(self, _memory: int, native_id: int) -> int:
        return 0 if self.words[native_id] else -1

    def llama_memory_seq_cp(self, _memory: int, source: int, target: int, _begin: int, _end: int) -> None:
        self.words[target] = self.words[source]

    def llama_memory_seq_rm(self, _memory: int, native_id: int, _begin: int, _end: int) -> bool:
        self.words[native_id] = ""
        return True


@given(
    full=st.sets(st.integers(0, N_SEQUENCES - 1)),
    batches=st.lists(st.permutations(range(N_SEQUENCES)).flatmap(lambda ids: st.just(ids[: 1 + ids[0]])), max_size=5),
)
def test_a_batch_gets_ids_in_line_and_every_sequence_keeps_what_it_had(
    full: set[int], batches: list[list[int]]
) -> None:
    words = [f"word {sequence_id}" if sequence_id in full else "" for sequence_id in range(N_SEQUENCES)]
    native = Memory([*words])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence_memory, "lib", native)
        memory = SequenceMemory(1, N_SEQUENCES)
        for batch in batches:
            memory.line_up(batch)
            ids = [memory.native(sequence_id) for sequence_id in batch]
            if len(full) < N_SEQUENCES:
                assert ids == [*range(ids[0], ids[0] + len(ids))]
            assert [native.words[memory.native(sequence_id)] for sequence_id in range(N_SEQUENCES)] == words


def test_most_of_a_batch_stays_where_it_is() -> None:
    assert first_in_line([4, 5, 6], 8) == 4
    assert first_in_line([4, 6, 7], 8) == 5
    assert first_in_line([0, 2, 3], 8) == 1
    assert first_in_line([7, 6, 5], 8) == 5, "the middle one stays: from 6 or 7 on there is no room"
    assert first_in_line([5, 0, 1], 8) == 5, "no place begins below 0"
