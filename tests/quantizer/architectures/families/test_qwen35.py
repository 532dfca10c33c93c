"""Qwen 3.5's heads of values, which lie by their key heads in a checkpoint and in turns in llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantizer.architectures import find_architecture, needed_tensors
from quantizer.checkpoint.config import CheckpointError
from quantizer.convert.source_model import FileTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.gguf.tensor_types import tensor_type_named
from tests.quantizer.memory_source import Memory

OUTLINE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "outlines.json").read_text())["qwen35"]
LAYER = "model.layers.0.linear_attn"
N_KEY_HEADS, N_VALUE_HEADS, WIDTH = 2, 6, 32
IN_TURNS = [0, 3, 1, 4, 2, 5]  # the first head of either key, then the second of either


def converted(weights: dict[str, np.ndarray], settings: dict[str, Any]) -> dict[str, np.ndarray]:
    architecture, config = find_architecture(OUTLINE["config"] | settings)
    assert [row.read(config) for row in architecture.hyperparameters]
    single = tensor_type_named("F32")
    tensors = {
        name: FileTensor(name, array.shape[::-1], single, Memory(array.tobytes()), 0) for name, array in weights.items()
    }
    return {
        name: np.frombuffer(b"".join(made.slabs(5)), "<f4").reshape(made.shape[::-1])
        for name, made in map_tensors(tensors, config, architecture).items()
    }


def seeded() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(6)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in OUTLINE["tensors"].items()}


def test_values_and_what_goes_with_them_come_in_turns() -> None:
    theirs = seeded()
    ours = converted(theirs, {})
    n_others = 2 * N_KEY_HEADS * WIDTH

    def in_turns(values: np.ndarray) -> np.ndarray:
        return values.reshape(N_VALUE_HEADS, -1, *values.shape[1:])[IN_TURNS].reshape(values.shape)

    for name, ending in (("attn_qkv", "in_proj_qkv"), ("ssm_conv1d", "conv1d")):
        values = theirs[f"{LAYER}.{ending}.weight"].squeeze()
        assert np.array_equal(ours[f"blk.0.{name}.weight"][:n_others], values[:n_others])
        assert np.array_equal(ours[f"blk.0.{name}.weight"][n_others:], in_turns(values[n_others:]))
    for name, ending in (("attn_gate", "in_proj_z"), ("ssm_alpha", "in_proj_a"), ("ssm_beta", "in_proj_b")):
        assert np.array_equal(ours[f"blk.0.{name}.weight"], in_turns(theirs[f"{LAYER}.{ending}.weight"]))
    assert np.array_equal(ours["blk.0.ssm_out.weight"], in_turns(theirs[f"{LAYER}.out_proj.weight"].T).T)
    assert np.array_equal(ours["blk.0.ssm_dt.bias"], in_turns(theirs[f"{LAYER}.dt_bias"]))
    assert np.array_equal(ours["blk.0.ssm_a"], -np.exp(in_turns(theirs[f"{LAYER}.A_log"])))


def test_every_fourth_layer_attends() -> None:
    architecture, config = find_architecture(OUTLINE["config"])
    needed = needed_tensors(architecture, config)
    assert [f"blk.{i}.ssm_out.weight" in needed for i in range(4)] == [True, True, True, False]
    assert "blk.3.attn_q_norm.weight" in needed


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"layer_types": ["full_attention"]}, "which of 4 layers are full attention"),
        ({"rope_parameters": {"mrope_section": "all"}}, "mrope_section"),
        ({"linear_num_key_heads": 4}, "do not split into 6 value heads"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        converted(seeded(), settings)
