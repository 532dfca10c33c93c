from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from quantizer.architectures import find_architecture
from quantizer.checkpoint.config import CheckpointError
from quantizer.convert.checkpoint_source import general_entries, layer_number_entries, open_checkpoint
from quantizer.convert.source_model import FileTensor
from quantizer.gguf.gguf_reader import LocalFile
from quantizer.gguf.header import Entry, Header, encode_header, read_header
from quantizer.gguf.tensor_types import file_type_named, tensor_type_named
from quantizer.system.errors import UserError
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.checkpoints import TinyLlama
from tests.quantizer.memory_source import Memory

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
    "lacks blk.2.attn_norm.weight and 8 more": {"num_hidden_layers": 3},
    "has hidden_size = 'wide'": {"hidden_size": "wide"},
    "has rms_norm_eps = null": {"rms_norm_eps": None},
    "not a multiple of its 0 attention heads": {"num_attention_heads": 0},
    "do not split into 3": {"num_key_value_heads": 3},
    "is 272 × 256, but config.json implies 272 × 128": {"hidden_size": 128},
    "blk.0.attn_q.weight is 256 × 256, but config.json implies 512 × 256": {"head_dim": 128},
    "vocabulary of 100": {"vocab_size": 100},
    "rope scaling 'xpos'": {"rope_scaling": {"rope_type": "xpos", "factor": 2.0}},
    "invalid llama3 rope scaling": {"rope_scaling": LLAMA_3 | {"high_freq_factor": 0.5}},
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


OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "outlines.json").read_text())
N_LAYERS = 2
ENDINGS = ("alpha_n", "alpha_p", "beta", "eps")


def tensor(name: str, value: float, shape: tuple[int, ...] = (1,)) -> FileTensor:
    """A tensor of equal numbers in BF16, as Apertus is published."""
    data = struct.pack("<f", value)[2:]
    return FileTensor(name, shape, tensor_type_named("BF16"), Memory(data * shape[0]), 0)


def numbers() -> dict[str, FileTensor]:
    names = [f"model.layers.{i}.mlp.act_fn.{ending}" for i in range(N_LAYERS) for ending in ENDINGS]
    return {name: tensor(name, 0.5 * number) for number, name in enumerate(names)}


def entries(tensors: dict[str, FileTensor], name: str = "apertus") -> list[Entry]:
    architecture, config = find_architecture(OUTLINES[name]["config"] | {"num_hidden_layers": N_LAYERS})
    return list(layer_number_entries(tensors, config, architecture))


def test_the_numbers_of_all_layers_become_one_row() -> None:
    rows = {entry.key: struct.unpack("<IQ2f", entry.payload) for entry in entries(numbers())}
    f32 = 6
    assert rows == {f"xielu.{name}": (f32, 2, 0.5 * i, 0.5 * (i + 4)) for i, name in enumerate(ENDINGS)}


def test_other_architectures_have_no_such_rows() -> None:
    assert entries({}, "arcee") == []


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (None, "lacks model"),
        (tensor("", 1.0, (2,)), "not a single number"),
        (tensor("", float("inf")), "is inf"),
        (FileTensor("", (1,), tensor_type_named("I32"), Memory(bytes(4)), 0), "not a single number"),
    ],
)
def test_what_is_no_number_is_named(odd: FileTensor | None, message: str) -> None:
    name = "model.layers.1.mlp.act_fn.beta"
    tensors = {key: value for key, value in numbers().items() if key != name} | ({name: odd} if odd else {})
    with pytest.raises(CheckpointError, match=message) as caught:
        entries(tensors)
    assert name in str(caught.value)


SHARED, STACKED = ("blk.0.attn_q.weight", (1000, 2000)), ("blk.0.ffn_up_exps.weight", (1000, 3000, 8))
PHI_TOKENS = ("<unk>", "<s>", "</s>", "<|endoftext|>")


def described(folder: Path, words: tuple[str, ...] = (), *shapes: tuple[str, tuple[int, ...]]) -> Header:
    folder.mkdir()
    path = folder / "model.gguf"
    tensors = [FileTensor(name, shape, tensor_type_named("F32"), LocalFile(path, 0), 0) for name, shape in shapes]
    path.write_bytes(encode_header(list(general_entries(folder.name, folder, "llama", tensors, words)), []))
    return read_header(path)


@pytest.mark.parametrize(
    ("folder", "name"), [("phi3-tune", "Phi 3 Tune"), ("Tiny-PHI3-GPTQ", "Tiny Phi 3 GPTQ"), ("llama-3", "Llama 3")]
)
def test_a_name_that_promises_the_tokens_of_phi_3_is_spelt_apart(folder: str, name: str, tmp_path: Path) -> None:
    assert described(tmp_path / folder, ("hello",)).text("general.name") == name


def test_a_model_with_the_tokens_of_phi_3_keeps_its_name(tmp_path: Path) -> None:
    assert described(tmp_path / "phi3-tune", PHI_TOKENS).text("general.name") == "Phi3 Tune"


@pytest.mark.parametrize(("tensors", "label"), [([SHARED], "2.0M"), ([SHARED, STACKED], "8x5.0M")])
def test_a_size_label_has_one_expert_and_their_number(tensors: list[Any], label: str, tmp_path: Path) -> None:
    assert described(tmp_path / "model", (), *tensors).text("general.size_label") == label
