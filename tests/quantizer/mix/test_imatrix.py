from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.mix.imatrix import (
    ActivationStats,
    ColumnWeights,
    ImatrixCollector,
    ImportanceMatrix,
    encode_imatrix,
    merge_imatrices,
    read_imatrix,
    save_imatrix,
)
from quantizer.system.errors import EngineError, StorageError, UsageError
from tests.quantizer.gguf_files import tiny_llama, write_gguf

RNG = np.random.default_rng(3)


@st.composite
def excitations(draw: st.DrawFn) -> ActivationStats:
    n_matrices, n_columns = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sums = np.float64(rng.uniform(0, 1e6, (n_matrices, n_columns)).astype(np.float32))
    return ActivationStats(sums, rng.integers(0, 10_000, n_matrices))


matrices = st.builds(
    ImportanceMatrix,
    st.dictionaries(st.sampled_from([f"blk.{i}.ffn_up.weight" for i in range(9)]), excitations(), min_size=1),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]))).map(tuple),
    st.integers(1, 4096),
)


def assert_same(first: ImportanceMatrix, second: ImportanceMatrix) -> None:
    assert first.entries.keys() == second.entries.keys()
    for name, entry in first.entries.items():
        assert np.array_equal(entry.sums, second.entries[name].sums)
        assert np.array_equal(entry.counts, second.entries[name].counts)
    assert (first.datasets, first.chunk_size, first.n_chunks) == (second.datasets, second.chunk_size, second.n_chunks)


@pytest.mark.slow
@settings(max_examples=40)
@given(matrices)
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, matrix: ImportanceMatrix) -> None:
    path = tmp_path_factory.getbasetemp() / "again.gguf"
    save_imatrix(matrix, path)
    assert_same(read_imatrix(path), matrix)


def test_the_file_is_as_ggufs_own_reader_and_llama_quantize_expect_it(tmp_path: Path) -> None:
    entry = ActivationStats(np.arange(6.0).reshape(2, 3), np.array([4, 260]))
    save_imatrix(ImportanceMatrix({"b": entry, "a": entry}, ("one.txt",), 64), tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert [tensor.name for tensor in reader.tensors] == ["a.in_sum2", "a.counts", "b.in_sum2", "b.counts"]
    assert [tensor.shape.tolist() for tensor in reader.tensors[:2]] == [[3, 2], [1, 2]]
    values = {key: reader.fields[key].contents() for key in reader.fields if key.startswith(("general", "imatrix"))}
    assert values == {
        "general.type": "imatrix",
        "imatrix.datasets": ["one.txt"],
        "imatrix.chunk_count": 260 // 64,
        "imatrix.chunk_size": 64,
    }


def test_gathering_sums_squares_over_rows_and_calls() -> None:
    gathering, rows = ImatrixCollector(), RNG.normal(size=(2, 5, 3)).astype(np.float32)
    gathering.add("w", rows)
    gathering.add("w", rows[:, :2])
    entry = gathering.matrix("text", 4).entries["w"]
    wanted = (rows.astype(np.float64) ** 2).sum(axis=1) + (rows[:, :2].astype(np.float64) ** 2).sum(axis=1)
    assert entry.sums.ravel() == pytest.approx(wanted.ravel())
    assert entry.counts.tolist() == [7]


@pytest.mark.parametrize("n_shared", [1, 2])
def test_experts_are_counted_each_for_itself(n_shared: int) -> None:
    gathering, rows = ImatrixCollector(), RNG.normal(size=(3, n_shared, 4)).astype(np.float32)
    experts = np.array([[0, 2], [2, 0], [2, 3]], np.int32)
    gathering.add_experts("w", rows, experts, 5)
    entry = gathering.matrix("text", 4).entries["w"]
    wanted = np.zeros((5, 4))
    for token in range(3):
        for slot in range(2):
            wanted[experts[token, slot]] += rows[token, slot % n_shared].astype(np.float64) ** 2
    assert entry.sums == pytest.approx(wanted)
    assert entry.counts.tolist() == [2, 0, 3, 1, 0]


def test_an_expert_that_was_never_selected_weighs_all_columns_alike() -> None:
    matrix = ImportanceMatrix({"w": ActivationStats(np.array([[4.0, 8.0], [0, 0]]), np.array([4, 0]))}, (), 1)
    weights = matrix.weights("w", (2, 7, 2))
    assert weights is not None
    assert weights.values.tolist() == [[1, 2], [1, 1]]
    assert matrix.weights("other", (2, 7)) is None
    with pytest.raises(UsageError, match="Compute one for this model"):
        matrix.weights("w", (3, 7, 2))


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 7))
def test_rows_are_cut_where_another_expert_begins(start: int, n_rows: int, rows_per_matrix: int) -> None:
    weights = ColumnWeights(np.arange(50, dtype=np.float32)[:, None], rows_per_matrix)
    found = [
        int(of_columns[0])
        for part, of_columns in weights.parts(start, start + n_rows)
        for _ in range(part.stop - part.start)
    ]
    assert found == [row // rows_per_matrix for row in range(start, start + n_rows)]


def test_a_model_that_computes_no_numbers_gives_no_matrix() -> None:
    gathering = ImatrixCollector()
    gathering.add("w", np.full((1, 1, 2), np.inf, np.float32))
    with pytest.raises(EngineError, match="not finite"):
        gathering.matrix("text", 4)


@given(matrices, st.integers(2, 4))
def test_merging_a_matrix_with_itself_changes_no_weight(matrix: ImportanceMatrix, n: int) -> None:
    merged = merge_imatrices([matrix] * n)
    assert merged.datasets == matrix.datasets * n
    for name, entry in matrix.entries.items():
        assert merged.entries[name].counts.tolist() == (entry.counts * n).tolist()
        assert merged.entries[name].means() == pytest.approx(entry.means(), rel=1e-6)


def test_matrices_with_one_count_for_all_experts_merge_with_those_of_each() -> None:
    together = ImportanceMatrix({"w": ActivationStats(np.ones((1, 4)), np.array([3]))}, ("old",), 1)
    apart = ImportanceMatrix(
        {"w": ActivationStats(np.ones((2, 2)), np.array([1, 2])), "v": together.entries["w"]}, ("new",), 1
    )
    for pair in ([together, apart], [apart, together]):
        merged = merge_imatrices(pair)
        assert merged.entries["w"].sums.tolist() == [[2, 2], [2, 2]]
        assert merged.entries["w"].counts.tolist() == [4, 5]
        assert merged.entries["v"].counts.tolist() == [3]


def test_matrices_of_different_models_are_not_merged() -> None:
    small, large = (ImportanceMatrix({"w": ActivationStats(np.ones((1, n)), np.array([1]))}, (), 1) for n in (2, 3))
    with pytest.raises(UsageError, match="different shapes"):
        merge_imatrices([small, large])


def _written(path: Path, tensors: dict[str, np.ndarray]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("imatrix")
    write_gguf(writer, tensors)


ONE = np.ones((1, 2), np.float32)
BROKEN: dict[str, Callable[[Path], object]] = {
    "a model, not an importance matrix": tiny_llama,
    r"not a GGUF file.*llama-imatrix --in-file OLD\.dat": lambda path: path.write_bytes(b"\x02\0\0\0some old matrix"),
    "lacks sums or counts": lambda path: _written(path, {"w.in_sum2": ONE}),
    "lacks the counts of w": lambda path: _written(path, {"w.in_sum2": ONE, "v.counts": ONE}),
    "not stored in F32": lambda path: _written(path, {"w.in_sum2": ONE, "w.counts": ONE.astype(np.float16)}),
    "do not go with the sums": lambda path: _written(path, {"w.in_sum2": ONE, "w.counts": np.ones((3, 1), np.float32)}),
    "holds invalid sums": lambda path: _written(path, {"w.in_sum2": -ONE, "w.counts": ONE}),
    "invalid sums or counts": lambda path: _written(path, {"w.in_sum2": ONE, "w.counts": ONE * np.nan}),
    "truncated": lambda path: path.write_bytes(encode_imatrix(SOUND)[:-40]),
}
SOUND = ImportanceMatrix({"w": ActivationStats(np.ones((1, 64)), np.array([1]))}, (), 1)


@pytest.mark.parametrize("cause", BROKEN)
def test_what_is_no_sound_matrix_is_refused(tmp_path: Path, cause: str) -> None:
    BROKEN[cause](tmp_path / "broken.gguf")
    with pytest.raises(ModelFileError, match=cause):
        read_imatrix(tmp_path / "broken.gguf")


def test_where_nothing_can_be_made_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match="Read-only file system"):
        save_imatrix(SOUND, tmp_path / "m.gguf")


def test_a_folder_that_is_not_there_is_a_typed_error_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="could not be written"):
        save_imatrix(SOUND, tmp_path / "nowhere" / "m.gguf")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="could not be written"):
        save_imatrix(SOUND, tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
