from __future__ import annotations

import errno
import os
import shutil
import sys
from collections import namedtuple
from pathlib import Path
from typing import NoReturn

import gguf
import numpy as np
import pytest

from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import FILE_TYPES, TENSOR_TYPES, file_type_named, tensor_type_named
from quantizer.gguf.validation import validate_gguf
from quantizer.system.errors import EngineError, StorageError, UsageError, UserError
from quantizer.write import dtype_conversion, partial_output
from quantizer.write.events import Event, JobWarning, TensorWritten
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import QuantizePlan, plan
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.gguf_files import Skeleton, tiny_llama, tiny_weights

DiskUsage = namedtuple("DiskUsage", ("total", "used", "free"))


def written(source: Path, name: str, output: Path, overwrite: bool = False) -> QuantizePlan:
    planned = plan(source, file_type_named(name), output)
    execute(planned, 2, overwrite, lambda _done: None)
    return planned


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyLlama().write(tmp_path_factory.mktemp("checkpoint") / "tiny")


WITHOUT_MATRIX = [name for name in FILE_TYPES if not name.startswith(("IQ1", "IQ2", "IQ3_XX", "Q2_K_S", "IQ3_XS"))]


@pytest.mark.parametrize("name", WITHOUT_MATRIX)
def test_the_plan_names_the_size_of_the_file_to_the_byte(tmp_path: Path, checkpoint: Path, name: str) -> None:
    planned = written(checkpoint, name, tmp_path / "m.gguf")
    header = validate_gguf(tmp_path / "m.gguf")
    assert planned.n_bytes == header.file_bytes
    assert header.integer("general.file_type") == FILE_TYPES[name].ftype_id
    assert [(t.name, t.type_id) for t in header.tensors] == [
        (t.output.name, t.output.kind.type_id) for t in planned.tensors
    ]


def test_a_gguf_keeps_its_metadata_and_its_tensors_their_order(tmp_path: Path, llama_gguf: Path) -> None:
    written(llama_gguf, "Q8_0", tmp_path / "m.gguf")
    before, after = read_header(llama_gguf), read_header(tmp_path / "m.gguf")
    assert [t.name for t in after.tensors] == [t.name for t in before.tensors]
    for key in before.fields:
        assert after.source.read(after.fields[key].start, after.fields[key].stop) == before.source.read(
            before.fields[key].start, before.fields[key].stop
        )


def test_quantized_weights_come_close_to_the_originals(tmp_path: Path, checkpoint: Path) -> None:
    written(checkpoint, "Q8_0", tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    tensor = next(t for t in reader.tensors if t.name == "blk.0.ffn_up.weight")
    original = TinyLlama().weights()["model.layers.0.mlp.up_proj.weight"]
    assert np.abs(gguf.dequantize(tensor.data, tensor.tensor_type) - original).max() < 0.002


@pytest.mark.slow
def test_slabs_and_threads_change_no_byte(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(checkpoint, "Q4_K_M", tmp_path / "whole.gguf")
    monkeypatch.setattr("quantizer.write.quantize._SLAB_ELEMENTS", 256 * 7)
    execute(plan(checkpoint, file_type_named("Q4_K_M"), tmp_path / "cut.gguf"), 3, False, lambda _done: None)
    assert (tmp_path / "cut.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_a_quantized_source_is_read_back_and_warned_about(tmp_path: Path, checkpoint: Path) -> None:
    written(checkpoint, "Q8_0", tmp_path / "q8.gguf")
    planned = written(tmp_path / "q8.gguf", "Q4_0", tmp_path / "q4.gguf")
    assert any("already quantized" in text for text in planned.warnings)
    assert validate_gguf(tmp_path / "q4.gguf").file_bytes == planned.n_bytes


def test_shapes_that_do_not_fit_are_counted_in_a_warning(tmp_path: Path) -> None:
    source = Skeleton(n_embd=96, n_ff=160, n_layers=1, n_heads=4, n_kv_heads=4).write(tmp_path / "s.gguf")
    planned = plan(source, file_type_named("Q4_K_M"), tmp_path / "m.gguf")
    assert planned.warnings == (
        "6 of 12 tensors use Q5_0: their row length is not a multiple of 256 (Q4_K). They are token_embd.weight,"
        " blk.*.attn_k.weight, blk.*.attn_output.weight, blk.*.attn_q.weight, blk.*.ffn_gate.weight,"
        " blk.*.ffn_up.weight.",
        "2 of 12 tensors use Q8_0: their row length is not a multiple of 256 (Q6_K). They are blk.*.attn_v.weight,"
        " blk.*.ffn_down.weight.",
    )


def test_every_tensor_is_reported_with_the_bytes_that_stand(tmp_path: Path, checkpoint: Path) -> None:
    reports: list[Event] = []
    planned = plan(checkpoint, file_type_named("F16"), tmp_path / "m.gguf")
    execute(planned, 2, False, reports.append)
    done = [report.name for report in reports if isinstance(report, TensorWritten)]
    assert done == [tensor.output.name for tensor in planned.tensors]
    assert isinstance(reports[-1], TensorWritten)
    assert reports[-1].n_written == planned.n_bytes


def test_a_type_that_needs_an_importance_matrix_is_refused_before_writing(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(UsageError, match="importance matrix"):
        written(checkpoint, "IQ2_XXS", tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())


def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf")
    before = source.read_bytes()
    with pytest.raises(UsageError, match="is the input"):
        written(source, "Q8_0", source, overwrite=True)
    assert source.read_bytes() == before


def test_a_file_of_the_checkpoint_is_never_the_output(tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "model")
    with pytest.raises(UsageError, match="is the input"):
        written(folder, "Q8_0", folder / "model.safetensors", overwrite=True)


def test_an_existing_output_stays_by_default(tmp_path: Path, llama_gguf: Path) -> None:
    output = tmp_path / "m.gguf"
    output.write_bytes(b"precious")
    with pytest.raises(StorageError, match="exists already"):
        written(llama_gguf, "Q8_0", output)
    assert output.read_bytes() == b"precious"
    assert written(llama_gguf, "Q8_0", output, overwrite=True).n_bytes == output.stat().st_size


def test_a_full_disk_is_reported_before_the_first_byte(
    tmp_path: Path, llama_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: DiskUsage(100, 90, 10))
    with pytest.raises(StorageError, match="GB is free"):
        written(llama_gguf, "Q8_0", tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on file sizes")
def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path: Path, checkpoint: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(StorageError, match="could not be written"):
            written(checkpoint, "Q8_0", tmp_path / "m.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "cause"), [("m.bin", "runs whatever code"), ("m.safetensors", "one file of a")])
def test_other_kinds_of_source_are_refused_with_the_way_out(tmp_path: Path, name: str, cause: str) -> None:
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(CheckpointError, match=cause):
        plan(tmp_path / name, file_type_named("Q8_0"), tmp_path / "out.gguf")


def test_a_source_that_shrinks_meanwhile_is_a_typed_error(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf")
    planned = plan(source, file_type_named("Q8_0"), tmp_path / "out.gguf")
    source.write_bytes(source.read_bytes()[:100_000])
    with pytest.raises(ModelFileError, match="ended in the middle"):
        execute(planned, 2, False, lambda _done: None)
    assert not (tmp_path / "out.gguf").exists()


def test_weights_beyond_half_precision_are_refused_in_f16_and_taken_in_bf16(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf", tensors=big_weights())
    with pytest.raises(UserError, match="beyond the range of F16"):
        written(source, "F16", tmp_path / "f16.gguf")
    written(source, "BF16", tmp_path / "bf16.gguf")


def big_weights() -> dict[str, np.ndarray]:
    return tiny_weights() | {"blk.0.attn_q.weight": np.full((64, 64), 1e6, np.float32)}


def test_an_unknown_type_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"Q4_K_M.*IQ1_S"):
        file_type_named("Q4_Z")


def test_short_names_and_lower_case_are_understood() -> None:
    assert file_type_named("q4_k") is FILE_TYPES["Q4_K_M"]


def test_block_sizes_agree_with_gguf() -> None:
    for number, (block_size, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        if number.name == "Q8_1":
            continue  # gguf still has the size from before its scales became half precision; it is in no file
        kind = TENSOR_TYPES[int(number)]
        assert (kind.name, kind.block_size, kind.block_bytes) == (number.name, block_size, block_bytes)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K", "Q8_0", "IQ4_XS", "TQ2_0"])
def test_what_ggml_quantizes_it_reads_back(name: str) -> None:
    rows = np.random.default_rng(3).choice(np.float32([-1, 0, 1]), (3, 512))
    kind = tensor_type_named(name)
    data = dtype_conversion.quantize(rows, kind)
    assert len(data) == kind.tensor_bytes((512, 3))
    assert np.abs(dtype_conversion.dequantize(data, kind, 512) - rows).max() < 0.2


def test_ggml_refuses_what_is_not_a_number() -> None:
    with pytest.raises(EngineError, match="invalid numbers"):
        dtype_conversion.quantize(np.full((1, 256), np.nan, np.float32), tensor_type_named("Q8_0"))


def broken_weights() -> dict[str, np.ndarray]:
    weights = tiny_weights()
    values = weights["blk.0.ffn_up.weight"].astype(np.float32)
    values[0, :3] = np.nan, np.inf, -np.inf
    return weights | {"blk.0.ffn_up.weight": values}


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0"])
def test_weights_that_are_not_finite_are_refused_by_tensor(tmp_path: Path, name: str) -> None:
    source = tiny_llama(tmp_path / "m.gguf", tensors=broken_weights())
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up\.weight holds NaN or infinite weights, 3 of them"):
        written(source, name, tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_weights_that_are_not_finite_are_written_with_a_warning_when_allowed(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf", tensors=broken_weights())
    events: list[Event] = []
    execute(plan(source, file_type_named("Q8_0"), tmp_path / "out.gguf"), 1, False, events.append, allows_nan=True)
    assert [event.text for event in events if isinstance(event, JobWarning)] == [
        "The tensor blk.0.ffn_up.weight holds NaN or infinite weights, 3 of them; they count as 0."
    ]
    assert validate_gguf(tmp_path / "out.gguf").file_bytes == (tmp_path / "out.gguf").stat().st_size


def test_a_folder_that_cannot_be_written_to_is_a_typed_error(
    tmp_path: Path, llama_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan(llama_gguf, file_type_named("Q8_0"), tmp_path / "m.gguf")

    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(partial_output, "open_partial", refuse)
    with pytest.raises(StorageError, match="Permission denied"):
        execute(planned, 1, False, lambda _event: None)
    monkeypatch.setattr(os, "access", lambda *_arguments: False)
    with pytest.raises(StorageError, match="cannot be written to"):
        execute(planned, 1, False, lambda _event: None)


@pytest.mark.skipif(sys.platform == "win32", reason="makes links")
def test_links_that_lead_in_circles_are_typed_errors(tmp_path: Path, llama_gguf: Path) -> None:
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    with pytest.raises(ModelFileError, match="cannot be read"):
        plan(loop, file_type_named("Q8_0"), tmp_path / "m.gguf")
    with pytest.raises(StorageError, match="exists already"):
        written(llama_gguf, "Q8_0", loop)
    with pytest.raises(StorageError, match="There is no folder"):
        written(llama_gguf, "Q8_0", loop / "m.gguf")
    assert loop.is_symlink()


@pytest.mark.skipif(sys.platform == "win32", reason="makes links")
def test_a_link_to_the_input_is_not_the_output_either(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf")
    (tmp_path / "link.gguf").symlink_to(source)
    (tmp_path / "hard.gguf").hardlink_to(source)
    for name in ("link.gguf", "hard.gguf"):
        with pytest.raises(UsageError, match="is the input"):
            written(source, "Q8_0", tmp_path / name, overwrite=True)


def test_a_source_that_goes_away_meanwhile_is_a_typed_error(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf")
    planned = plan(source, file_type_named("Q8_0"), tmp_path / "out.gguf")
    source.unlink()
    with pytest.raises(ModelFileError, match="cannot be read"):
        execute(planned, 1, False, lambda _event: None)
    assert not list(tmp_path.iterdir())
