"""Takes sequences of a real model with states back in every way; run as a child, for native code may end its process.

Usage: python real_states.py MODEL.gguf; prints JSON {name: whether the next token's logits are those of the plain run}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from app.engine.backend import Chunk, DecodeStatus
from app.engine.cache.retention import StateKey
from app.engine.cache.state_store import read_state, write_state
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.llama.native import lib
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST

TEXT = list(range(100, 140))
WRONG = list(range(300, 340))
N_KEPT = 12
MAX_ERROR = 1e-2  # other batches round differently


class Run:
    """Sequences of a fresh context."""

    def __init__(self, backend: LlamaBackend) -> None:
        self.backend = backend

    def compute(self, sequence_id: int, position: int, tokens: Sequence[int]) -> None:
        assert self.backend.decode([Chunk(sequence_id, position, tokens, 1)]) is DecodeStatus.DONE
        self.last_row = len(tokens) - 1

    def is_at(self, sequence_id: int, n_tokens: int) -> bool:
        """Whether the sequence goes on as one that computed the first `n_tokens` of the text and nothing else."""
        self.compute(sequence_id, n_tokens, TEXT[n_tokens : n_tokens + 1])
        found = self.backend.logits(self.last_row)
        self.backend.truncate(7, 0)
        self.compute(7, 0, TEXT[: n_tokens + 1])
        wanted = self.backend.logits(self.last_row)
        self.backend.truncate(7, 0)
        return bool(np.abs(found - wanted).max() < MAX_ERROR * np.abs(wanted).max())

    def n_nodes(self, chunks: Sequence[Chunk]) -> int:
        """Compute a batch; return of how many operations its graphs were."""
        n_nodes = 0

        @lib.ggml_abort_callback
        def count(_data: int | None) -> bool:
            nonlocal n_nodes
            n_nodes += 1
            return False

        lib.llama_set_abort_callback(self.backend._context, count, None)
        assert self.backend.decode(chunks) is DecodeStatus.DONE
        lib.llama_set_abort_callback(self.backend._context, lib.ggml_abort_callback(0), None)
        return n_nodes

    def draft(self, sequence_id: int, n_accepted: int, n_rejected: int) -> None:
        """Compute the text, then in one batch the next token, `n_accepted` of the text and `n_rejected` others."""
        self.compute(sequence_id, 0, TEXT[:N_KEPT])
        self.compute(sequence_id, N_KEPT, [*TEXT[N_KEPT : N_KEPT + 1 + n_accepted], *WRONG[:n_rejected]])


def held(run: Run) -> bool:
    run.compute(0, 0, TEXT[:N_KEPT])
    run.backend.hold(0)
    run.compute(0, N_KEPT, [*TEXT[N_KEPT : N_KEPT + 3], *WRONG[:30]])
    return run.backend.truncate(0, N_KEPT + 3) == N_KEPT and run.is_at(0, N_KEPT)


def held_twice(run: Run) -> bool:
    """What the second draft is rejected to is where the sequence was held first."""
    run.compute(0, 0, TEXT[:N_KEPT])
    for n_redone in (1, 3):
        run.backend.hold(0)
        run.compute(0, N_KEPT, [*TEXT[N_KEPT : N_KEPT + n_redone], *WRONG[:30]])
        if run.backend.truncate(0, N_KEPT + n_redone) != N_KEPT:
            return False
    return run.is_at(0, N_KEPT)


def held_many(run: Run) -> bool:
    """A sequence that is held last is held, however many were before."""
    n_holds = run.backend.facts.truncation.n_holds
    for sequence_id in range(n_holds + 1):
        run.compute(sequence_id, 0, TEXT[:N_KEPT])
        run.backend.hold(sequence_id)
        run.compute(sequence_id, N_KEPT, WRONG[:30])
    left = [run.backend.truncate(sequence_id, N_KEPT) for sequence_id in range(n_holds + 1)]
    return left == [0, *[N_KEPT] * n_holds] and all(run.is_at(index, N_KEPT) for index in range(1, n_holds + 1))


def not_held(run: Run) -> bool:
    run.draft(0, 0, 30)
    return run.backend.truncate(0, N_KEPT + 1) == 0


def after_single_tokens(run: Run) -> bool:
    """The states before the first token of the newest batch are gone: what lies there is of older batches."""
    run.draft(0, 4, 0)
    run.compute(0, N_KEPT + 5, TEXT[N_KEPT + 5 : N_KEPT + 6])
    return run.backend.truncate(0, N_KEPT + 5) == 0


def rolled_back(run: Run) -> bool:
    run.draft(0, 2, 5)
    return run.backend.truncate(0, N_KEPT + 3) == N_KEPT + 3 and run.is_at(0, N_KEPT + 3)


def rolled_back_and_shared(run: Run) -> bool:
    run.draft(0, 2, 5)
    run.backend.truncate(0, N_KEPT + 3)
    run.backend.share_cells(0, 1, 0, N_KEPT + 3)
    return run.is_at(1, N_KEPT + 3) and run.is_at(0, N_KEPT + 3)


def rolled_back_and_held(run: Run) -> bool:
    run.draft(0, 2, 5)
    run.backend.truncate(0, N_KEPT + 3)
    run.backend.hold(0)
    run.compute(0, N_KEPT + 3, WRONG[:30])
    return run.backend.truncate(0, N_KEPT + 3) == N_KEPT + 3 and run.is_at(0, N_KEPT + 3)


def rolled_back_and_saved(run: Run) -> bool:
    run.draft(0, 2, 5)
    run.backend.truncate(0, N_KEPT + 3)
    is_restored = run.backend.restore_state(1, run.backend.save_state(0))
    return is_restored and run.is_at(1, N_KEPT + 3) and run.is_at(0, N_KEPT + 3)


def copied_while_rolled_back(run: Run) -> bool:
    """What llama.cpp alone makes of a copy then."""
    run.draft(0, 2, 5)
    run.backend.truncate(0, N_KEPT + 3)
    lib.llama_memory_seq_cp(lib.llama_get_memory(run.backend._context), 0, 1, -1, -1)
    return run.is_at(1, N_KEPT + 3)


def unequal_parts(run: Run) -> bool:
    """Of a batch that is computed in parts nothing is rolled back."""
    for sequence_id in range(3):
        run.compute(sequence_id, 0, TEXT[:N_KEPT])
    run.backend.hold(1)
    lengths = (1, 6, 1)
    run.backend.decode([Chunk(index, N_KEPT, TEXT[N_KEPT : N_KEPT + n], n) for index, n in enumerate(lengths)])
    return run.backend.truncate(1, N_KEPT + 2) == N_KEPT and run.is_at(1, N_KEPT) and run.is_at(2, N_KEPT + 1)


def computed_together(run: Run) -> bool:
    """Sequences in any order are computed by one graph, and go on as each did, and so do those beside them."""
    lengths = {sequence_id: N_KEPT + sequence_id for sequence_id in range(7)}
    for sequence_id, n_tokens in lengths.items():
        run.compute(sequence_id, 0, TEXT[:n_tokens])
    run.backend.hold(4)
    run.compute(4, lengths[4], WRONG[:3])
    n_alone, n_most = 0, 0
    for together in ([3], [1, 0], [2, 6, 0], [6, 5, 3, 1], [0, 1, 2, 3, 5, 6], [5, 2, 6], [3, 1, 0, 6, 5, 2]):
        chunks = [Chunk(one, lengths[one], TEXT[lengths[one] : lengths[one] + 1], 1) for one in together]
        n_nodes = run.n_nodes(chunks)
        n_alone, n_most = n_alone or n_nodes, max(n_most, n_nodes)
        lengths |= {one: lengths[one] + 1 for one in together}
    is_back = run.backend.truncate(4, lengths[4]) == lengths[4]
    return is_back and n_most < 1.5 * n_alone and all(run.is_at(*item) for item in lengths.items())


def interrupted(run: Run) -> bool:
    run.compute(0, 0, TEXT[:N_KEPT])
    run.compute(1, 0, TEXT[:N_KEPT])
    run.backend.hold(0)
    run.backend.interrupt()
    status = run.backend.decode([Chunk(0, N_KEPT, WRONG[:5], 1)])
    left = run.backend.truncate(0, N_KEPT)
    return status is DecodeStatus.INTERRUPTED and left == N_KEPT and run.is_at(0, N_KEPT) and run.is_at(1, N_KEPT)


def interrupted_when_not_held(run: Run) -> bool:
    run.compute(0, 0, TEXT[:N_KEPT])
    run.backend.interrupt()
    run.backend.decode([Chunk(0, N_KEPT, WRONG[:5], 1)])
    return run.backend.truncate(0, N_KEPT) == 0


def checkpoint_beside_a_longer_sequence(run: Run) -> bool:
    """The sequence whose cells are shared is another's, with other tokens after them, and goes on as before."""
    run.compute(0, 0, TEXT[:N_KEPT])
    checkpoint = run.backend.save_checkpoint(0)
    run.backend.truncate(0, 0)
    run.compute(1, 0, TEXT[: N_KEPT + 5])
    source_id = 1 if run.backend.facts.has_attention else None
    is_restored = run.backend.restore_checkpoint(2, source_id, N_KEPT, checkpoint)
    return is_restored and run.is_at(2, N_KEPT) and run.is_at(1, N_KEPT + 5)


def checkpoint_in_a_restored_sequence(run: Run) -> bool:
    run.compute(0, 0, TEXT[:N_KEPT])
    checkpoint = run.backend.save_checkpoint(0)
    run.compute(0, N_KEPT, WRONG[:9])
    state = run.backend.save_state(0)
    run.backend.truncate(0, 0)
    source_id = 1 if run.backend.facts.has_attention else None
    is_restored = run.backend.restore_state(1, state)
    return is_restored and run.backend.restore_checkpoint(1, source_id, N_KEPT, checkpoint) and run.is_at(1, N_KEPT)


def checkpoints_in_prepared_memory(run: Run) -> bool:
    """Neither has the memory of the other."""
    source_id = 0 if run.backend.facts.has_attention else None
    run.compute(0, 0, TEXT[:N_KEPT])
    first = run.backend.save_checkpoint(0)
    run.backend.prepare_checkpoints()
    run.compute(0, N_KEPT, TEXT[N_KEPT : N_KEPT + 3])
    second = run.backend.save_checkpoint(0)
    run.backend.prepare_checkpoints()
    run.compute(0, N_KEPT + 3, WRONG[:9])
    are_restored = [
        run.backend.restore_checkpoint(sequence_id, source_id, n_tokens, checkpoint)
        for sequence_id, n_tokens, checkpoint in ((1, N_KEPT, first), (2, N_KEPT + 3, second))
    ]
    return all(are_restored) and run.is_at(1, N_KEPT) and run.is_at(2, N_KEPT + 3)


def checkpoint_that_is_damaged(run: Run) -> bool:
    run.compute(0, 0, TEXT[:N_KEPT])
    checkpoint = bytes(run.backend.save_checkpoint(0))
    source_id = 0 if run.backend.facts.has_attention else None
    is_restored = run.backend.restore_checkpoint(1, source_id, N_KEPT, checkpoint[: len(checkpoint) // 2])
    run.compute(1, 0, TEXT[:1])  # the place is empty
    return not is_restored and run.is_at(0, N_KEPT)


def checkpoint_beside_a_sequence_that_is_rolled_back(run: Run) -> bool:
    run.compute(0, 0, TEXT[:N_KEPT])
    checkpoint = run.backend.save_checkpoint(0)
    run.compute(0, N_KEPT, [*TEXT[N_KEPT : N_KEPT + 3], *WRONG[:5]])
    run.backend.truncate(0, N_KEPT + 3)
    is_restored = run.backend.restore_checkpoint(1, 0, N_KEPT, checkpoint)
    return is_restored and run.is_at(1, N_KEPT) and run.is_at(0, N_KEPT + 3)


def checkpoint_of_a_sequence_that_is_rolled_back(run: Run) -> bool:
    run.draft(0, 2, 5)
    run.backend.truncate(0, N_KEPT + 3)
    checkpoint = run.backend.save_checkpoint(0)
    run.compute(0, N_KEPT + 3, WRONG[:9])
    return run.backend.restore_checkpoint(0, 0, N_KEPT + 3, checkpoint) and run.is_at(0, N_KEPT + 3)


def through_a_file(run: Run) -> bool:
    """A state that was on the disk is what was saved, to the bit, and so is the next token's row."""
    run.compute(0, 0, TEXT)
    state = bytes(run.backend.save_state(0))
    key = StateKey("", np.asarray(TEXT, np.int32))
    run.compute(0, len(TEXT), WRONG[:1])
    wanted = run.backend.logits(run.last_row).copy()
    run.backend.truncate(0, 0)
    with TemporaryDirectory() as folder:
        write_state(Path(folder), "state", key, state, 1 << 30)
        read = read_state(Path(folder, "state"), key)
    is_restored = read is not None and run.backend.restore_state(0, read)
    is_equal = bytes(run.backend.save_state(0)) == state
    run.compute(0, len(TEXT), WRONG[:1])
    return is_restored and is_equal and np.array_equal(run.backend.logits(run.last_row), wanted)


EVERYWHERE = (
    through_a_file,
    held,
    held_twice,
    held_many,
    not_held,
    unequal_parts,
    computed_together,
    interrupted,
    interrupted_when_not_held,
    checkpoint_beside_a_longer_sequence,
    checkpoint_in_a_restored_sequence,
    checkpoint_that_is_damaged,
    checkpoints_in_prepared_memory,
)
WITH_ROLLBACK = (
    rolled_back,
    rolled_back_and_shared,
    rolled_back_and_held,
    rolled_back_and_saved,
    checkpoint_beside_a_sequence_that_is_rolled_back,
    checkpoint_of_a_sequence_that_is_rolled_back,
)


def main() -> None:
    model = LlamaModel(Path(sys.argv[1]), ON_HOST, False, lambda _fraction: True)
    found = {}

    def play(*cases: Callable[[Run], bool]) -> None:
        for case in cases:
            with closing(
                model.context(EngineConfig(n_ctx=512, n_sequences=4), RuntimeSettings(1, False, False))
            ) as made:
                found[case.__name__] = case(Run(made))
                found["n_rollback"] = made.facts.truncation.n_rollback

    play(*EVERYWHERE)
    if found["n_rollback"]:
        play(*WITH_ROLLBACK, after_single_tokens, copied_while_rolled_back)
    print(json.dumps(found))
    model.close()


if __name__ == "__main__":
    main()
