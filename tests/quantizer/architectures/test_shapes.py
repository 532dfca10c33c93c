"""Experts come to the same tensors however a checkpoint stores them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantizer.architectures import find_architecture
from quantizer.checkpoint.config import CheckpointError
from quantizer.convert.source_model import FileTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.gguf.tensor_types import tensor_type_named
from tests.quantizer.memory_source import Memory

OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "outlines.json").read_text())
# name of an outline -> what its experts' gate, up and down are called where they are numbered
NUMBERED = {
    "mixtral": ("w1", "w3", "w2"),
    "qwen2moe": ("gate_proj", "up_proj", "down_proj"),
    "qwen3moe": ("gate_proj", "up_proj", "down_proj"),
    "deepseek3": ("gate_proj", "up_proj", "down_proj"),
}
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")


def converted(outline: dict[str, Any], weights: dict[str, np.ndarray]) -> dict[str, bytes]:
    architecture, config = find_architecture(outline["config"])
    single = tensor_type_named("F32")
    tensors = {
        name: FileTensor(name, array.shape[::-1], single, Memory(array.tobytes()), 0) for name, array in weights.items()
    }
    return {name: b"".join(made.slabs(5)) for name, made in map_tensors(tensors, config, architecture).items()}


def fused(weights: dict[str, np.ndarray], names: tuple[str, str, str]) -> dict[str, np.ndarray]:
    """The weights with the experts of each layer in one tensor, as transformers 5 holds them."""
    rest = {name: array for name, array in weights.items() if not EXPERT.fullmatch(name)}
    stacks: dict[str, list[np.ndarray]] = {}
    for name, array in weights.items():
        if match := EXPERT.fullmatch(name):
            stacks.setdefault(f"{match[1]}.{match[3]}", []).append(array)
    for container in {name.rpartition(".")[0] for name in stacks}:
        gate, up, down = (np.stack(stacks[f"{container}.{name}"]) for name in names)
        in_memory = container.replace("block_sparse_moe", "mlp")
        rest[f"{in_memory}.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        rest[f"{in_memory}.down_proj"] = down
    return rest


@pytest.mark.parametrize("name", NUMBERED)
def test_fused_experts_become_the_tensors_of_numbered_ones(name: str) -> None:
    rng = np.random.default_rng(3)
    outline = OUTLINES[name]
    weights = {key: rng.standard_normal(shape, np.float32) for key, shape in outline["tensors"].items()}
    assert converted(outline, fused(weights, NUMBERED[name])) == converted(outline, weights)


def test_multipliers_become_part_of_the_weights() -> None:
    outline = OUTLINES["falcon-h1"]
    config = outline["config"]
    weights = {key: np.ones(shape, np.float32) for key, shape in outline["tensors"].items()}
    tensors = {name: np.frombuffer(data, np.float32) for name, data in converted(outline, weights).items()}
    key = np.float32(config["key_multiplier"] * config["attention_in_multiplier"])
    assert np.allclose(tensors["blk.0.attn_k.weight"], key)
    first, *_, last = tensors["blk.0.ssm_in.weight"] / np.float32(config["ssm_in_multiplier"])
    assert np.allclose((first, last), (config["ssm_multipliers"][0], config["ssm_multipliers"][-1]))


@pytest.mark.parametrize("shape", [[96, 64], [3, 96, 64], [4, 95, 64]])
def test_fused_experts_of_another_shape_are_refused(shape: list[int]) -> None:
    outline = OUTLINES["qwen3moe-fused"]
    weights = {key: np.zeros(of, np.float32) for key, of in outline["tensors"].items()}
    weights["model.layers.0.mlp.experts.gate_up_proj"] = np.zeros(shape, np.float32)
    with pytest.raises(CheckpointError, match=r"a matrix for each expert|but config\.json implies"):
        converted(outline, weights)
