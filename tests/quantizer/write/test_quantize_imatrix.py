from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from quantizer.convert.source_model import RenamedTensor
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import file_type_named
from quantizer.mix.imatrix import ActivationStats, ImportanceMatrix, read_imatrix, save_imatrix
from quantizer.system.errors import UsageError
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import open_source, plan, plan_model
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.gguf_files import Skeleton

UP = "blk.0.ffn_up.weight"
NEEDY = ("IQ2_XXS", "Q2_K_S")  # of those that need a matrix; tables for the others take seconds each to build


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyLlama().write(tmp_path_factory.mktemp("checkpoint") / "tiny")


def matrix_for(model: TinyLlama, path: Path) -> Path:
    """A matrix in which the first sixteen columns of each weight matter a thousand times as much as the others."""
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    entries = {}
    for layer in range(model.n_layers):
        for part in parts:
            sums = np.ones((1, model.n_ff if part == "ffn_down" else model.n_embd))
            sums[0, :16] = 1000.0
            entries[f"blk.{layer}.{part}.weight"] = ActivationStats(sums * 640, np.array([640]))
    save_imatrix(ImportanceMatrix(entries, ("a.txt", "b.txt"), 64), path)
    return path


@pytest.fixture(scope="module")
def imatrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return matrix_for(TinyLlama(), tmp_path_factory.mktemp("matrix") / "m.gguf")


def written(source: Path, name: str, output: Path, imatrix: Path | None) -> Path:
    execute(plan(source, file_type_named(name), output, PlanOptions(imatrix=imatrix)), 2, False, lambda _done: None)
    return output


def read(path: Path, name: str) -> np.ndarray:
    tensor = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    return gguf.dequantize(tensor.data, tensor.tensor_type)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4_K_M", "Q4_0", "IQ4_XS"])
def test_columns_that_matter_lose_less(tmp_path: Path, checkpoint: Path, imatrix: Path, name: str) -> None:
    original = TinyLlama().weights()["model.layers.0.mlp.up_proj.weight"]
    plain = read(written(checkpoint, name, tmp_path / "plain.gguf", None), UP)
    weighed = read(written(checkpoint, name, tmp_path / "weighed.gguf", imatrix), UP)
    without, with_matrix = (np.square(found - original)[:, :16].mean() for found in (plain, weighed))
    assert with_matrix < 0.9 * without


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDY)
def test_types_that_need_a_matrix_are_written_with_one(
    tmp_path: Path, checkpoint: Path, imatrix: Path, name: str
) -> None:
    planned = plan(checkpoint, file_type_named(name), tmp_path / "m.gguf")
    assert planned.missing_imatrix
    output = written(checkpoint, name, tmp_path / "m.gguf", imatrix)
    original = TinyLlama().weights()["model.layers.1.mlp.gate_proj.weight"]
    assert np.corrcoef(read(output, "blk.1.ffn_gate.weight").ravel(), original.ravel())[0, 1] > 0.6


@pytest.mark.parametrize("name", NEEDY)
def test_a_layer_that_predicts_further_does_without_a_matrix(
    tmp_path: Path, checkpoint: Path, imatrix: Path, name: str
) -> None:
    """Nothing runs it on a text, so that no matrix has it."""
    matrix = read_imatrix(imatrix)
    entries = {key: entry for key, entry in matrix.entries.items() if not key.startswith("blk.1.")}
    save_imatrix(replace(matrix, entries=entries), tmp_path / "part.gguf")
    model = open_source(checkpoint)
    square = next(tensor for tensor in model.tensors if tensor.name == "blk.1.attn_q.weight")
    predicting = replace(model, tensors=[*model.tensors, RenamedTensor(square, "blk.1.nextn.eh_proj.weight")])
    for source, is_refused in ((model, True), (predicting, False)):
        options = PlanOptions(imatrix=tmp_path / "part.gguf")
        planned = plan_model(source, file_type_named(name), tmp_path / "m.gguf", options)
        assert bool(planned.missing_imatrix) is is_refused
    kinds = {tensor.output.name: tensor.output.kind.name for shard in planned.shards for tensor in shard.tensors}
    assert kinds["blk.1.ffn_gate.weight"] == kinds["blk.1.nextn.eh_proj.weight"] == "Q4_K"
    assert kinds["blk.0.ffn_gate.weight"] in ("IQ2_XXS", "Q2_K")


def test_a_matrix_that_lacks_a_tensor_is_not_enough(tmp_path: Path, checkpoint: Path, imatrix: Path) -> None:
    matrix = read_imatrix(imatrix)
    entries = {name: entry for name, entry in matrix.entries.items() if name != UP}
    save_imatrix(replace(matrix, entries=entries), tmp_path / "part.gguf")
    with pytest.raises(UsageError, match=f"1 tensors would be garbage.*{UP}"):
        written(checkpoint, "IQ2_XXS", tmp_path / "m.gguf", tmp_path / "part.gguf")


def test_a_matrix_of_another_model_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    other = matrix_for(TinyLlama(n_embd=512), tmp_path / "other.gguf")
    with pytest.raises(UsageError, match="Compute one for this model"):
        written(checkpoint, "Q4_K_M", tmp_path / "m.gguf", other)


def test_the_file_notes_which_matrix_it_was_made_with(tmp_path: Path, checkpoint: Path, imatrix: Path) -> None:
    header = read_header(written(checkpoint, "Q4_0", tmp_path / "m.gguf", imatrix))
    assert header.text("quantize.imatrix.file") == "m.gguf"
    assert header.text("quantize.imatrix.dataset") == "a.txt, b.txt"
    assert header.integer("quantize.imatrix.entries_count") == 14
    assert header.integer("quantize.imatrix.chunks_count") == 10


def test_the_matrix_is_never_the_output(checkpoint: Path, tmp_path: Path) -> None:
    imatrix = matrix_for(TinyLlama(), tmp_path / "m.gguf")
    before = imatrix.read_bytes()
    with pytest.raises(UsageError, match="is the input"):
        execute(
            plan(checkpoint, file_type_named("Q4_0"), imatrix, PlanOptions(imatrix=imatrix)),
            1,
            True,
            lambda _done: None,
        )
    assert imatrix.read_bytes() == before


def test_each_expert_is_quantized_with_its_own_weights_however_rows_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_experts, n_embd, n_ff = 3, 256, 32
    name = "blk.0.ffn_up_exps.weight"
    rng = np.random.default_rng(9)
    rows = rng.standard_normal((1, n_ff, n_embd)).astype(np.float16)
    source = Skeleton(n_layers=1, n_embd=n_embd, n_ff=n_ff, n_experts=n_experts).write(tmp_path / "s.gguf")
    _overwrite(source, name, np.repeat(rows, n_experts, axis=0))
    sums = np.ones((n_experts, n_embd))
    sums[1, :64] = 500.0
    matrix = ImportanceMatrix({name: ActivationStats(sums, np.ones(n_experts, np.int64))}, (), 1)
    save_imatrix(matrix, tmp_path / "i.gguf")
    whole = written(source, "Q4_K_S", tmp_path / "whole.gguf", tmp_path / "i.gguf")
    first, second, third = read(whole, name).reshape(n_experts, n_ff, n_embd)
    assert np.array_equal(first, third)
    assert np.square(second - rows[0])[:, :64].mean() < np.square(first - rows[0])[:, :64].mean()
    monkeypatch.setattr("quantizer.write.quantize._SLAB_ELEMENTS", 7 * n_embd)
    assert written(source, "Q4_K_S", tmp_path / "cut.gguf", tmp_path / "i.gguf").read_bytes() == whole.read_bytes()


def _overwrite(path: Path, name: str, values: np.ndarray) -> None:
    header = read_header(path)
    tensor = next(tensor for tensor in header.tensors if tensor.name == name)
    with path.open("r+b") as file:
        file.seek(header.data_offset + tensor.offset)
        file.write(values.tobytes())
