from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quantizer.gguf.file_names import shard_index, shard_path, unsplit_name
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import file_type_named
from quantizer.gguf.validation import shard_paths, validate_gguf
from quantizer.system.errors import UsageError
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import QuantizePlan, plan
from tests.quantizer.gguf_files import Skeleton, tiny_llama

ORACLE = Path(__file__).parents[1] / "llama_oracle.py"
MAX_BYTES = 120_000


def written(source: Path, output: Path, options: PlanOptions, name: str = "Q8_0") -> QuantizePlan:
    planned = plan(source, file_type_named(name), output, options)
    execute(planned, 2, False, lambda _event: None)
    return planned


def test_shards_hold_the_model_and_none_is_larger_than_allowed(tmp_path: Path, llama_gguf: Path) -> None:
    whole = written(llama_gguf, tmp_path / "whole.gguf", PlanOptions())
    split = written(llama_gguf, tmp_path / "m.gguf", PlanOptions(max_shard_bytes=MAX_BYTES))
    paths = [shard.path for shard in split.shards]
    assert shard_paths(validate_gguf(paths[0])) == paths
    assert all(path.stat().st_size <= MAX_BYTES for path in paths)
    assert tensor_bytes(*paths) == tensor_bytes(whole.output)


def tensor_bytes(*paths: Path) -> dict[str, bytes]:
    headers = [read_header(path) for path in paths]
    return {
        tensor.name: header.source.read(start := header.data_offset + tensor.offset, start + tensor.n_bytes)
        for header in headers
        for tensor in header.tensors
    }


@pytest.mark.slow
def test_llama_cpp_reads_them_all_from_the_first(tmp_path: Path, llama_gguf: Path) -> None:
    split = written(llama_gguf, tmp_path / "m.gguf", PlanOptions(max_shard_bytes=MAX_BYTES))
    command = [sys.executable, str(ORACLE), str(split.shards[0].path)]
    said = subprocess.run(command, input='{"F16": 1}', capture_output=True, text=True, check=True).stdout
    weights = {name for name in json.loads(said)["F16"] if not name.endswith("norm.weight")}
    assert weights == {tensor.output.name for tensor in split.tensors if "norm" not in tensor.output.name}


def test_a_split_source_keeps_its_shards_on_request(tmp_path: Path, llama_gguf: Path) -> None:
    split = written(llama_gguf, tmp_path / "m.gguf", PlanOptions(max_shard_bytes=MAX_BYTES), "F16")
    kept = written(split.shards[0].path, tmp_path / "kept.gguf", PlanOptions(keep_split=True))
    joined = written(split.shards[0].path, tmp_path / "joined.gguf", PlanOptions())
    assert [len(shard.tensors) for shard in kept.shards] == [len(shard.tensors) for shard in split.shards]
    assert [shard.path.name for shard in joined.shards] == ["joined.gguf"]
    assert tensor_bytes(*(shard.path for shard in kept.shards)) == tensor_bytes(joined.output)


def test_a_model_that_fits_one_file_gets_one_with_its_own_name(tmp_path: Path, llama_gguf: Path) -> None:
    split = written(llama_gguf, tmp_path / "m.gguf", PlanOptions(max_shard_bytes=1 << 30, keep_split=True))
    assert [shard.path.name for shard in split.shards] == ["m.gguf"]
    assert "split.count" not in read_header(tmp_path / "m.gguf").fields


def test_a_tensor_larger_than_a_shard_has_one_to_itself_and_a_warning(tmp_path: Path) -> None:
    source = Skeleton(n_layers=1, is_tied=True).write(tmp_path / "s.gguf")
    planned = plan(source, file_type_named("F16"), tmp_path / "m.gguf", PlanOptions(max_shard_bytes=200_000))
    large = [shard for shard in planned.shards if shard.file.n_bytes > 200_000]
    assert large
    assert all(len(shard.tensors) == 1 for shard in large)
    assert len(planned.warnings) == len(large)


def test_more_files_than_a_model_has_are_refused(tmp_path: Path) -> None:
    source = Skeleton(n_layers=128, n_embd=32, n_ff=32, n_heads=1, n_kv_heads=1).write(tmp_path / "s.gguf")
    with pytest.raises(UsageError, match="more than 1024"):
        plan(source, file_type_named("F16"), tmp_path / "m.gguf", PlanOptions(max_shard_bytes=1))


def test_a_shard_that_is_the_input_is_never_the_output(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf")
    split = written(source, tmp_path / "x.gguf", PlanOptions(max_shard_bytes=MAX_BYTES), "F16")
    first = split.shards[0].path
    before = first.read_bytes()
    with pytest.raises(UsageError, match="is the input"):
        execute(
            plan(first, file_type_named("F16"), tmp_path / "x.gguf", PlanOptions(keep_split=True)),
            1,
            True,
            lambda _event: None,
        )
    assert first.read_bytes() == before


def test_names_of_shards_go_both_ways() -> None:
    path = shard_path(Path("a/model.v2"), 2, 12)
    assert path.name == "model.v2-00003-of-00012.gguf"
    assert shard_index(path.name) == (2, 12)
    assert shard_path(path, 0, 12).name == "model.v2-00001-of-00012.gguf"
    assert unsplit_name(path.name) == "model.v2.gguf"
    assert shard_index("model.gguf") is None
