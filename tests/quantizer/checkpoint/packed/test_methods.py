from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantizer.checkpoint.config import CheckpointError
from quantizer.convert.checkpoint_source import open_checkpoint
from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.checkpoints import TinyLlama, write_tensors
from tests.quantizer.packers import (
    FORMATS,
    Packed,
    autoround,
    awq,
    compressed,
    fp8,
    gptq,
    hqq,
    int8_rows,
    nf4,
    nvfp4,
    read,
    torchao_int8,
    torchao_tiles,
)

Stored = dict[str, tuple[str, np.ndarray]]
TINY = TinyLlama(n_layers=1, n_embd=64, n_ff=96, dtype="F32")


def write_tiny(
    folder: Path, tensors: Stored, config: dict[str, Any] | None = None, metadata: dict[str, str] | None = None
) -> Path:
    """A tiny Llama with these tensors in place of its weights."""
    TINY.write(folder)
    write_tensors(folder / "model.safetensors", tensors, metadata)
    values = TINY.config() | ({"quantization_config": config} if config else {})
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def converted(folder: Path, file_type: str) -> bytes:
    output = folder.with_name("model.gguf")
    execute(plan(folder, file_type_named(file_type), output), 2, True, lambda _done: None)
    return output.read_bytes()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("file_type", ["F32", "F16"])
def test_a_packed_model_converts_as_the_plain_one_that_it_stands_for(tmp_path: Path, form: str, file_type: str) -> None:
    rng = np.random.default_rng(5)
    packed_tensors: Stored = {}
    plain_tensors: Stored = {}
    config: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    for name, weight in TINY.weights().items():
        plain_tensors[name] = packed_tensors[name] = ("F32", weight)
        if name.endswith("_proj.weight"):
            packed = FORMATS[form](rng, name.removesuffix(".weight"), weight.shape)
            del packed_tensors[name]
            packed_tensors |= packed.tensors
            metadata |= packed.metadata
            plain_tensors[name], config = ("F32", packed.weight), packed.config
    # the same folder name, as the name of the model comes from it
    ours = converted(write_tiny(tmp_path / "packed" / "model", packed_tensors, config, metadata), file_type)
    assert ours == converted(write_tiny(tmp_path / "plain" / "model", plain_tensors), file_type)


def test_the_first_gptq_models_say_it_in_a_file_of_its_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    tensors: Stored = {name: ("F32", weight) for name, weight in TINY.weights().items()}
    packed = gptq(rng, "model.layers.0.mlp.up_proj", tensors.pop("model.layers.0.mlp.up_proj.weight")[1].shape)
    folder = write_tiny(tmp_path / "model", tensors | packed.tensors)
    (folder / "model.safetensors").rename(folder / "gptq_model-4bit-32g.safetensors")
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 32, "desc_act": True}))
    (up,) = (tensor for tensor in open_checkpoint(folder).tensors if tensor.name == "blk.0.ffn_up.weight")
    np.testing.assert_array_equal(np.frombuffer(b"".join(up.slabs(7)), "<f4"), packed.weight.reshape(-1))


def test_the_first_models_of_modelopt_say_it_in_a_file_of_its_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    name = "model.layers.0.mlp.up_proj"
    tensors: Stored = {name: ("F32", weight) for name, weight in TINY.weights().items()}
    packed = nvfp4(rng, name, tensors.pop(f"{name}.weight")[1].shape)
    folder = write_tiny(tmp_path / "packed" / "model", tensors | packed.tensors)
    settings = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": ["lm_head"]}
    (folder / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": settings})
    )
    plain = write_tiny(tmp_path / "plain" / "model", tensors | {f"{name}.weight": ("F32", packed.weight)})
    assert converted(folder, "F32") == converted(plain, "F32")


def test_a_file_of_its_own_must_be_an_object(tmp_path: Path) -> None:
    folder = TINY.write(tmp_path / "model")
    (folder / "quantize_config.json").write_text("[4]")
    with pytest.raises(CheckpointError, match=r"quantize_config\.json is not an object"):
        open_checkpoint(folder)


def changed(packed: Packed, **changes: Any) -> Packed:
    return Packed(packed.tensors, packed.weight, packed.config | changes)


def without(packed: Packed, ending: str) -> Packed:
    kept = {name: tensor for name, tensor in packed.tensors.items() if not name.endswith(ending)}
    return Packed(kept, packed.weight, packed.config)


def edited(packed: Packed, ending: str, edit: Callable[[np.ndarray], np.ndarray], dtype: str | None = None) -> Packed:
    """The same with one part changed."""
    tensors = {
        name: (dtype or stored, edit(array)) if name.endswith(ending) else (stored, array)
        for name, (stored, array) in packed.tensors.items()
    }
    return Packed(tensors, packed.weight, packed.config)


def filled(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.full_like(array, value)


def state(**changes: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.frombuffer(json.dumps(json.loads(array.tobytes()) | changes).encode(), np.uint8)


def groups(**changes: Any) -> dict[str, Any]:
    """The groups of an int4 checkpoint and one more that differs."""
    settings = compressed(RNG, "w", (32, 64)).config["config_groups"]["group_0"]["weights"]
    return {"group_0": {"weights": settings}, "group_1": {"weights": settings | changes}}


def described(kind: str, attributes: object) -> Packed:
    """torchao's weight with another description."""
    metadata = TORCHAO.metadata | {"w.weight": json.dumps({"_type": kind, "_data": attributes})}
    return Packed(TORCHAO.tensors, TORCHAO.weight, TORCHAO.config, metadata)


def tiled(attributes: object) -> Packed:
    """torchao's tiles with another description."""
    metadata = TILED.metadata | {"w.weight": json.dumps({"_type": "Int4TilePackedTo4dTensor", "_data": attributes})}
    return Packed(TILED.tensors, TILED.weight, TILED.config, metadata)


RNG = np.random.default_rng(7)
TILED = torchao_tiles(RNG, "w", (32, 64))
AUTOROUND, HQQ, TORCHAO = autoround(RNG, "w", (32, 64)), hqq(RNG, "w", (32, 64)), torchao_int8(RNG, "w", (32, 64))
GPTQ, AWQ, INT4 = gptq(RNG, "w", (32, 64)), awq(RNG, "w", (32, 64)), compressed(RNG, "w", (32, 64), is_symmetric=False)
FP8, NF4, INT8 = fp8(RNG, "w", (32, 64), (16, 16)), nf4(RNG, "w", (32, 64)), int8_rows(RNG, "w", (32, 64))

BROKEN: dict[str, Packed] = {
    "quantization 'quip' is not supported": changed(GPTQ, quant_method="quip"),
    "quantization 'none' is not supported": changed(GPTQ, quant_method=None),
    "GPTQ of 1 bits": changed(GPTQ, bits=1),
    "does not have bits": changed(GPTQ, bits=None),
    "GPTQ format 'marlin'": changed(GPTQ, checkpoint_format="marlin"),
    "'w.scales' is missing": without(GPTQ, ".scales"),
    "'w.qzeros' is missing": without(GPTQ, ".qzeros"),
    "'w.scales' does not have one number for each group": changed(GPTQ, group_size=16),
    "has group_size = 'all'": changed(GPTQ, group_size="all"),
    "'w.qzeros' is 2 × 3, not 2 × 4": edited(GPTQ, ".qzeros", lambda array: array[:, :3]),
    "'w.qzeros' is stored as F16, not as I32": edited(GPTQ, ".qzeros", filled(1), "F16"),
    "'w.qweight' is 256, not a matrix": edited(GPTQ, ".qweight", np.ravel),
    "'w.g_idx' is 63, not 64": edited(GPTQ, ".g_idx", lambda array: array[1:]),
    "'w.g_idx' refers to groups beyond the 2": edited(GPTQ, ".g_idx", filled(2)),
    "refers to groups beyond the 2": edited(GPTQ, ".g_idx", filled(-1)),
    "w.weight holds NaN": edited(GPTQ, ".scales", filled(np.nan)),
    "w.weight holds NaN or infinite": edited(AWQ, ".scales", filled(np.inf)),
    "AWQ layout 'gemv'": changed(AWQ, version="GEMV"),
    "of 8 bits is not supported": changed(AWQ, bits=8),
    "not a multiple of the group size 0": changed(AWQ, group_size=0),
    "'w.qzeros' is 2 × 4, not 4 × 4": changed(AWQ, group_size=16),
    "format 'marlin-24' of compressed-tensors": changed(INT4, format="marlin-24"),
    "compressed-tensors checkpoint without a group of weights": changed(INT4, config_groups={}),
    "rotation of compressed-tensors": changed(INT4, transform_config={"config_groups": {"R3": {}}}),
    "format 'mxfp6-pack-quantized'": changed(INT4, format="mxfp6-pack-quantized"),
    "quantization 'W4A16_AWQ' of ModelOpt": changed(FP8, quant_method="modelopt", quant_algo="W4A16_AWQ"),
    "AutoRound layout 'auto_round:mlx'": changed(AUTOROUND, packing_format="auto_round:mlx"),
    "rotation of AutoRound": changed(AUTOROUND, rotation_config={"hadamard_type": "hadamard"}),
    "HQQ packing '4bit_i32' of axis 1": edited(HQQ, ".packing", lambda _: np.frombuffer(b"4bit_i32", np.uint8)),
    "HQQ packing '4bit_u8' of axis 2": edited(HQQ, ".axis", filled(2)),
    "'w.W_q' does not hold 33 × 64 numbers of 4 bits": edited(HQQ, ".shape", lambda _: np.array([33, 64])),
    "layer 'w' is 32 × 64, not a multiple of the group size 0": edited(HQQ, ".group_size", filled(0)),
    "'w.scale' is 32 × 2, not 64 × 1": edited(HQQ, ".scale", lambda array: array.reshape(32, 2)),
    "class 'Int4PreshuffledTensor' of torchao": described("Int4PreshuffledTensor", {}),
    "'w._weight_qdata' is stored as I8, not as I32": described("Int4TilePackedTo4dTensor", {}),
    "is not made of the tiles that": tiled({"shape": [32, 2048], "block_size": [1, 64]}),
    "not made of the tiles that": tiled({"shape": [32, 64], "block_size": [1, 48]}),
    "not made of the tiles": tiled({"shape": [1, 32, 64], "block_size": [1, 1, 64]}),
    "has 4 tiles for 40 rows": tiled({"shape": [40, 64], "block_size": [1, 32]}),
    "'w._weight_scale_and_zero' is 32 × 32 × 2, not 16 × 32 × 2": tiled({"shape": [32, 64], "block_size": [1, 64]}),
    "lack the metadata": Packed(TORCHAO.tensors, TORCHAO.weight, TORCHAO.config),
    "metadata of 'w.weight' has no attributes": described("Int4Tensor", None),
    "is not made of the pairs that the metadata describe": described("Int4Tensor", {"block_size": [1, 32]}),
    "'w._weight_scale' does not have one number": described("Int8Tensor", {"block_size": [1, 32]}),
    "scaling of torchao's activations": Packed(
        TORCHAO.tensors | {"w._weight_act_pre_scale": ("F32", np.ones(64))},
        TORCHAO.weight,
        TORCHAO.config,
        TORCHAO.metadata,
    ),
    "strategy 'tensor_group'": changed(INT4, config_groups={"group_0": {"weights": {"strategy": "tensor_group"}}}),
    "sparsity of compressed-tensors": changed(INT4, sparsity_config={"format": "sparse-24-bitmask"}),
    "weight of 4 bits of type 'float'": changed(
        INT4, config_groups={"group_0": {"weights": {"strategy": "channel", "num_bits": 4, "type": "float"}}}
    ),
    "'w.weight_packed' does not hold 33 × 64 numbers": edited(INT4, "_shape", lambda _: np.array([33, 64])),
    "'w.weight_packed' does not hold 32 × -64 numbers": edited(INT4, "_shape", lambda _: np.array([32, -64])),
    "'w.weight_packed' does not hold 32 × 4": edited(INT4, "_shape", lambda _: np.array([32, 1 << 62])),
    "'w.weight_zero_point' is missing": without(INT4, "_zero_point"),
    "'w.weight_zero_point' is 4 × 1, not 4 × 2": edited(INT4, "_zero_point", lambda array: array[:, :1]),
    "'w.weight_scale' does not have one number for each block": edited(INT4, "_scale", lambda array: array[:, :1]),
    "'w.weight' is stored as U8": edited(INT8, ".weight", lambda array: array, "U8"),
    "has weight_block_size = [0, 16]": changed(FP8, weight_block_size=[0, 16]),
    "'w.weight_scale_inv' does not have one number for each": changed(FP8, weight_block_size=[16, 16, 16]),
    "'w.weight_scale_inv' does not have one number": changed(FP8, weight_block_size=[16, 8]),
    "'w.weight' is stored as I8, not as F8_E4M3": edited(FP8, ".weight", lambda array: array, "I8"),
    "w.weight holds NaN or": edited(FP8, ".weight", filled(0x7F)),
    "'w.weight.absmax' is missing": without(NF4, ".absmax"),
    "'w.weight.quant_map' is 15, not 16": edited(NF4, ".quant_map", lambda array: array[1:]),
    "'w.weight' is 1024 × 1, not 1056 × 1": edited(NF4, "__nf4", state(shape=[33, 64])),
    "does not describe a matrix": edited(NF4, "__nf4", state(blocksize=0)),
    "has shape = [-32, -64]": edited(NF4, "__nf4", state(shape=[-32, -64])),
    "has nested_offset = inf": edited(NF4, "__nf4", state(nested_offset=float("inf"))),
    "is not valid JSON": edited(NF4, "__nf4", lambda array: array[1:]),
    "is not an object": edited(NF4, "__nf4", lambda _: np.frombuffer(b"[1]", np.uint8)),
    "is too large": edited(NF4, "__nf4", lambda _: np.zeros(1 << 17, np.uint8)),
}


@pytest.mark.parametrize("cause", BROKEN)
def test_what_does_not_fit_together_is_refused_with_its_cause(cause: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(BROKEN[cause].config, BROKEN[cause].tensors, metadata=BROKEN[cause].metadata)
    assert cause in caught.value.cause


def test_a_weight_that_is_there_both_packed_and_plain_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"w\.weight' is stored twice"):
        read(AWQ.config, AWQ.tensors | {"w.weight": ("F32", np.ones((32, 64)))})


def test_parts_of_packed_weights_without_a_word_in_the_config_are_refused(tmp_path: Path) -> None:
    tensors: Stored = {name: ("F32", weight) for name, weight in TINY.weights().items()}
    tensors["model.norm.weight"] = ("F8_E4M3", np.ones(64, np.uint8))
    with pytest.raises(CheckpointError, match=r"norm\.weight' is stored as F8_E4M3, but config\.json names no format"):
        open_checkpoint(write_tiny(tmp_path / "model", tensors))


def test_planning_a_packed_model_reads_no_weights(tmp_path: Path) -> None:
    """Hostile parts are found when they are read, not before: a plan costs headers only."""
    tensors: Stored = {name: ("F32", weight) for name, weight in TINY.weights().items()}
    name = "model.layers.0.self_attn.q_proj"
    del tensors[f"{name}.weight"]
    packed = edited(gptq(RNG, name, (64, 64)), ".scales", filled(np.nan))
    folder = write_tiny(tmp_path / "model", tensors | packed.tensors, packed.config)
    assert open_checkpoint(folder).tensors
    with pytest.raises(CheckpointError, match=r"holds NaN"):
        converted(folder, "F32")
    assert not (tmp_path / "model.gguf").exists()


def test_the_settings_may_lie_with_those_of_the_text_model(tmp_path: Path) -> None:
    folder = TINY.write(tmp_path / "model")
    values = TINY.config() | {"text_config": {"quantization_config": {"quant_method": "quip"}}}
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="quip"):
        open_checkpoint(folder)
