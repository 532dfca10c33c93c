from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from quantizer.checkpoint.errors import CheckpointError
from quantizer.convert.checkpoint_source import open_checkpoint
from quantizer.gguf.file_types import file_type_named
from quantizer.gguf.header import Header, read_header
from quantizer.system.errors import UserError
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.checkpoints import TinyLlama

LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def converted(folder: Path, file_type: str = "F32") -> Header:
    output = folder.with_name(f"{folder.name}.gguf")
    execute(plan(folder, file_type_named(file_type), output), 2, False, lambda _done: None)
    return read_header(output)


def values(header: Header, name: str) -> np.ndarray:
    reader = gguf.GGUFReader(header.path)
    tensor = next(tensor for tensor in reader.tensors if tensor.name == name)
    return gguf.dequantize(tensor.data, tensor.tensor_type)


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_weight_arrives_whatever_it_was_stored_as(tmp_path: Path, dtype: str) -> None:
    checkpoint = TinyLlama(dtype=dtype, n_shards=2)
    header = converted(checkpoint.write(tmp_path / "model"))
    weights = checkpoint.weights()
    assert len(header.tensors) == len(weights)
    assert np.array_equal(values(header, "token_embd.weight"), weights["model.embed_tokens.weight"])
    assert np.array_equal(values(header, "blk.1.ffn_down.weight"), weights["model.layers.1.mlp.down_proj.weight"])
    assert np.array_equal(values(header, "output_norm.weight"), weights["model.norm.weight"])


def test_queries_and_keys_are_interleaved_head_by_head(tmp_path: Path) -> None:
    checkpoint = TinyLlama(dtype="F32")
    header = converted(checkpoint.write(tmp_path / "model"))
    theirs = checkpoint.weights()["model.layers.0.self_attn.k_proj.weight"]
    ours = values(header, "blk.0.attn_k.weight")
    half = checkpoint.n_embd // checkpoint.n_heads // 2
    assert np.array_equal(ours[0], theirs[0])
    assert np.array_equal(ours[1], theirs[half])
    assert np.array_equal(ours[2 * half + 3], theirs[2 * half + half + 1])


def test_hyperparameters_arrive_under_the_names_that_llama_cpp_reads(tmp_path: Path) -> None:
    metadata = converted(TinyLlama().write(tmp_path / "model")).metadata
    assert {key: value for key, value in metadata.items() if key.startswith("llama.")} == {
        "llama.block_count": 2,
        "llama.context_length": 256,
        "llama.embedding_length": 256,
        "llama.feed_forward_length": 512,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.rope.freq_base": 10_000.0,
        "llama.attention.layer_norm_rms_epsilon": pytest.approx(1e-5),
        "llama.attention.key_length": 64,
        "llama.attention.value_length": 64,
        "llama.vocab_size": 272,
        "llama.rope.dimension_count": 64,
    }


def test_llama_3_rope_scaling_becomes_a_tensor_of_divisors(tmp_path: Path) -> None:
    header = converted(TinyLlama(rope=LLAMA_3).write(tmp_path / "model"))
    divisors = values(header, "rope_freqs.weight")
    assert divisors.shape == (32,)
    assert divisors[0] == 1.0
    assert divisors[-1] == 8.0
    assert (np.diff(divisors) >= 0).all()


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_other_rope_scalings_become_metadata(tmp_path: Path, kind: str) -> None:
    rope = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 64}
    metadata = converted(TinyLlama(rope=rope).write(tmp_path / "model")).metadata
    assert metadata["llama.rope.scaling.type"] == kind
    assert metadata["llama.rope.scaling.factor"] == 4.0
    assert ("llama.rope.scaling.original_context_length" in metadata) == (kind == "yarn")


def test_rope_settings_of_transformers_5_are_read(tmp_path: Path) -> None:
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}, "rope_theta": None}
    metadata = converted(TinyLlama(extra_config=rope).write(tmp_path / "model")).metadata
    assert metadata["llama.rope.freq_base"] == 500_000.0


def test_tied_embeddings_leave_out_the_output(tmp_path: Path) -> None:
    header = converted(TinyLlama(is_tied=True).write(tmp_path / "model"))
    assert "output.weight" not in {tensor.name for tensor in header.tensors}


def test_norms_stay_in_float32_in_a_half_precision_file(tmp_path: Path) -> None:
    header = converted(TinyLlama().write(tmp_path / "model"), "F16")
    kinds = {tensor.name: tensor.type_id for tensor in header.tensors}
    assert kinds["blk.0.attn_norm.weight"] == gguf.GGMLQuantizationType.F32
    assert kinds["blk.0.attn_q.weight"] == gguf.GGMLQuantizationType.F16


def test_the_name_table_of_gguf_is_left_as_it_was(tmp_path: Path) -> None:
    before = dict(gguf.TensorNameMap.block_mappings_cfg)
    open_checkpoint(TinyLlama().write(tmp_path / "model"))
    assert before == gguf.TensorNameMap.block_mappings_cfg


BAD_CONFIGS: dict[str, dict[str, Any]] = {
    "RwkvForCausalLM cannot be converted": {"architectures": ["RwkvForCausalLM"]},
    "of this checkpoint cannot be converted": {"architectures": None},
    "num_hidden_layers = 1000000": {"num_hidden_layers": 1_000_000},
    "lacks 9 tensors, blk.2": {"num_hidden_layers": 3},
    "has hidden_size = 'wide'": {"hidden_size": "wide"},
    "does not have rms_norm_eps": {"rms_norm_eps": None},
    "spreads its hidden size over 0 heads": {"num_attention_heads": 0},
    "do not split into 3": {"num_key_value_heads": 3},
    "is 272 × 256, where config.json implies 272 × 128": {"hidden_size": 128},
    "blk.0.attn_q.weight is 256 × 256, where config.json implies 512 × 256": {"head_dim": 128},
    "do not fit the model's 100": {"vocab_size": 100},
    "rope scaling 'xpos'": {"rope_scaling": {"rope_type": "xpos", "factor": 2.0}},
    "ends before it begins": {"rope_scaling": LLAMA_3 | {"high_freq_factor": 0.5}},
    "should be an object": {"rope_scaling": [1, 2]},
}


@pytest.mark.parametrize("cause", BAD_CONFIGS)
def test_configs_that_cannot_be_converted_are_refused(tmp_path: Path, cause: str) -> None:
    folder = TinyLlama().write(tmp_path / "model")
    edit_json(folder / "config.json", **BAD_CONFIGS[cause])
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert cause in str(caught.value)


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "model")
    shard = folder / "model.safetensors"
    shard.write_bytes(shard.read_bytes().replace(b"model.norm.weight", b"model.mystery.wei"))
    with pytest.raises(CheckpointError, match="mystery"):
        open_checkpoint(folder)


def test_weights_that_are_not_numbers_are_named(tmp_path: Path) -> None:
    folder = TinyLlama(dtype="F32").write(tmp_path / "model")
    shard = folder / "model.safetensors"
    data = bytearray(shard.read_bytes())
    data[-4:] = b"\x00\x00\xc0\x7f"
    shard.write_bytes(data)
    with pytest.raises(UserError, match=r"output\.weight holds NaN"):
        converted(folder, "Q8_0")
    assert not folder.with_name("model.gguf").exists()
