"""The ids of sequences: which places a batch gets, and that each sequence keeps what it had."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.llama import sequence_memory
from app.engine.llama.sequence_memory import SequenceMemory, StateBuffers, first_in_line

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


SHAPES = ("tiny-lfm2", "tiny-mamba")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    paths = {shape: tmp_path_factory.mktemp("models") / f"{shape}.gguf" for shape in SHAPES}
    for shape, path in paths.items():
        subprocess.run([sys.executable, "tests/bench/models/make_model.py", shape, "F16", path], check=True)
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sequence_goes_back_to_the_state_of_the_place_that_truncate_names(
    shape: str, models: dict[str, Path]
) -> None:
    child = [sys.executable, "-m", "tests.app.engine.llama.real_states", models[shape]]
    done = subprocess.run(child, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("n_rollback") == (15 if shape == "tiny-lfm2" else 0)
    assert not found.pop("copied_while_rolled_back", False), (
        "llama.cpp copies the wrong state, so ours is settled first"
    )
    assert len(found) == (20 if shape == "tiny-lfm2" else 13)
    assert [name for name, is_right in found.items() if not is_right] == []


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_answers_with_drafts_and_reused_prefixes_equal_those_made_alone(shape: str, models: dict[str, Path]) -> None:
    workloads = [
        sys.executable,
        "tests/bench/engine/equal_workloads.py",
        models[shape],
        "--first",
        "72",
        "--count",
        "9",
    ]
    done = subprocess.run(workloads, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout
    counts = done.stdout.split(shape)[1].split()
    n_cached, n_drafted, n_accepted = int(counts[5]), int(counts[7]), int(counts[8])
    assert n_cached > 0
    assert 0 < n_accepted < n_drafted, "some are rejected, after which the state goes back"


def test_a_prepared_buffer_is_used_once() -> None:
    buffers = StateBuffers()
    first = buffers.take(5000)
    assert first.shape == (5000,)
    buffers.prepare()
    n_prepared = buffers.n_spare
    later = [buffers.take(5000) for _ in range(n_prepared + 1)]
    assert n_prepared == 2
    assert buffers.n_spare == 0
    assert not any(np.shares_memory(one, other) for one in later for other in [first, *later] if one is not other)


def test_nothing_is_prepared_before_the_size_is_known_or_for_a_size_that_is_not_used() -> None:
    buffers = StateBuffers()
    buffers.prepare()
    assert buffers.n_spare == 0
    buffers.take(100)
    buffers.prepare()
    assert len(buffers.take(200)) == 200
    assert buffers.n_spare == 0


def test_large_states_are_prepared_as_far_as_memory_is_worth_it() -> None:
    for n_bytes, n_spare in ((20 << 20, 2), (52 << 20, 1), (80 << 20, 0)):
        buffers = StateBuffers()
        buffers.take(n_bytes)
        buffers.prepare()
        assert buffers.n_spare == n_spare
