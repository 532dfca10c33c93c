"""GLM, EXAONE, HunYuan, ERNIE and their like: settings that change what is written, and those that are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from quantizer.architectures import find_architecture, generated_tensors, needed_tensors
from quantizer.checkpoint.config import CheckpointError

OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "outlines.json").read_text())

LLAMA_3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 64}


def rows(name: str, **settings: Any) -> dict[str, Any]:
    architecture, config = find_architecture(OUTLINES[name]["config"] | settings)
    return {row.key: row.read(config) for row in architecture.hyperparameters}


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("glm", "head_dim", 32),
        ("glm4moe", "scoring_func", "softmax"),
        ("glm4moe-lite", "mlp_layer_types", ["sparse", "sparse"]),
        ("glm4moe-lite", "rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.5}),
        ("solar-open", "first_k_dense_replace", 1),
        ("youtu", "attention_bias", True),
        ("youtu", "rope_interleave", False),
        ("seed-oss", "attention_out_bias", True),
        ("arcee", "hidden_act", "silu"),
        ("jais2", "mlp_bias", False),
        ("minicpm3", "scale_emb", 1),
        ("minicpm3", "scale_depth", 1.0),
        ("minicpm3", "dim_model_base", 64),
        ("exaone4", "sliding_window", 4096),
        ("exaone-moe", "sliding_window_pattern", 3),
        ("hunyuan", "attention_bias", True),
        ("hunyuan-moe", "moe_intermediate_size", [48]),
        ("hunyuan-moe", "num_shared_expert", 2),
        ("ernie45", "use_bias", True),
        ("ernie45-moe", "moe_layer_interval", 2),
        ("ernie45-moe", "moe_layer_end_index", 0),
    ],
)
def test_a_setting_that_llama_cpp_would_not_follow_is_refused(name: str, setting: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=f"{setting} = .*does not support"):
        find_architecture(OUTLINES[name]["config"] | {setting: value})


def test_a_setting_under_a_name_of_its_own_is_refused_by_the_usual_one() -> None:
    with pytest.raises(CheckpointError, match="hidden_act = gelu"):
        find_architecture(OUTLINES["exaone"]["config"] | {"activation_function": "gelu"})


@pytest.mark.parametrize(
    "name",
    [
        "glm",
        "glm4moe",
        "glm4moe-lite",
        "youtu",
        "seed-oss",
        "jais2",
        "hunyuan",
        "hunyuan-moe",
        "ernie45-moe",
        "qwen3",
        "gemma2",
    ],
)
def test_a_scaling_by_divisors_that_a_graph_does_not_read_is_refused(name: str) -> None:
    architecture, config = find_architecture(OUTLINES[name]["config"] | {"rope_parameters": LLAMA_3})
    with pytest.raises(CheckpointError, match=r"rope scaling 'llama3', which .* does not support"):
        generated_tensors(architecture, config)


def test_experts_as_wide_as_config_json_repeats_for_every_layer_are_known() -> None:
    n_layers = OUTLINES["hunyuan-moe"]["config"]["num_hidden_layers"]
    repeated = {"moe_intermediate_size": [96] * n_layers, "num_shared_expert": [1] * n_layers}
    assert rows("hunyuan-moe", **repeated)["expert_feed_forward_length"] == 96


def test_layers_with_different_numbers_of_experts_are_refused() -> None:
    with pytest.raises(CheckpointError, match="layers with different numbers of experts"):
        rows("hunyuan-moe", moe_topk=[2, 1])


@pytest.mark.parametrize(
    ("settings", "windows"),
    [
        ({}, [True, True, True, False, True]),
        ({"sliding_window_pattern": 2}, [True, False, True, False, True]),
        ({"sliding_window_pattern": None}, [True, True, True, False, True]),
        ({"sliding_window_pattern": 1}, [False] * 5),
        ({"first_k_dense_replace": 1, "prefix_dense_intermediate_size": 96}, [False, True, True, True, False]),
        ({"layer_types": ["full_attention", "sliding_attention"] * 3}, [False, True, False, True, False]),
    ],
)
def test_layers_of_a_cohere_with_experts_have_windows_though_none_are_listed(
    settings: dict[str, Any], windows: list[bool]
) -> None:
    found = rows("cohere2moe", num_hidden_layers=5, **settings)
    assert (found["attention.sliding_window"], found["attention.sliding_window_pattern"]) == (40, windows)


def test_a_fixed_factor_stretches_the_base_of_rotations() -> None:
    stretched = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0}
    base = rows("hunyuan", head_dim=128, rope_parameters=stretched)["rope.freq_base"]
    assert math.isclose(base, 11_158_839.9251, rel_tol=1e-9)  # the base published with Hunyuan-A13B
    assert rows("hunyuan", rope_parameters=stretched | {"alpha": None})["rope.freq_base"] == 1e4


@pytest.mark.parametrize("changes", [{"alpha": -3.0}, {"alpha": 1e300}])
def test_an_absurd_factor_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(CheckpointError, match="alpha = "):
        rows("hunyuan", rope_parameters={"rope_type": "dynamic"} | changes)


def test_the_windows_of_an_exaone_of_64_layers_are_written() -> None:
    windowed = rows("exaone4", num_hidden_layers=64, sliding_window=4096, sliding_window_pattern="LLLG")
    assert windowed["attention.sliding_window"] == 4096
    assert windowed["attention.sliding_window_pattern"] == [True, True, True, False] * 16
    assert rows("exaone4")["attention.sliding_window"] is None


def test_an_exaone_of_64_layers_without_windows_is_refused() -> None:
    """llama.cpp gives it windows whatever the metadata says."""
    with pytest.raises(CheckpointError, match="has sliding_window = null"):
        rows("exaone4", num_hidden_layers=64)


def test_biases_are_required_as_configured() -> None:
    for name, is_biased in (("glm", True), ("glm-yarn", False), ("seed-oss", True)):
        needed = needed_tensors(*find_architecture(OUTLINES[name]["config"]))
        assert ("blk.0.attn_k.bias" in needed) == is_biased
