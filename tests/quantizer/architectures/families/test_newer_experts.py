from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from quantizer.architectures import ARCHITECTURES, find_architecture
from quantizer.checkpoint.config import CheckpointError

OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[2] / "outlines.json").read_text())
PLAIN = {"rope_type": "default", "rope_theta": 1e5}


def rows(name: str, **settings: Any) -> dict[str, object]:
    architecture, config = find_architecture(OUTLINES[name]["config"] | settings)
    found = {row.key: row.read(config) for row in architecture.hyperparameters}
    return {key: value for key, value in found.items() if value is not None}


def test_only_what_gguf_lacks_takes_the_names_of_a_relative() -> None:
    """A newer gguf makes `names_of` and most of `own_names` needless: remove them where this fails."""
    known = set(gguf.MODEL_ARCH_NAMES.values())
    entries = [entry for entry in ARCHITECTURES.values() if entry.names.map_of]
    assert entries
    assert not [entry.gguf_name for entry in entries if entry.gguf_name in known]
    assert {entry.names.map_of for entry in entries} <= known


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mellum", {"rope_parameters": {"full_attention": PLAIN, "sliding_attention": PLAIN | {"rope_theta": 1e4}}}),
        ("mellum", {"rope_parameters": {"full_attention": PLAIN, "sliding_attention": PLAIN | {"rope_type": "yarn"}}}),
        ("mellum", {"mlp_layer_types": ["dense", "sparse"]}),
        ("mellum", {"norm_topk_prob": False}),
        ("cohere2moe", {"shared_expert_combination_strategy": "sum"}),
        ("cohere2moe", {"mlp_layer_types": ["sparse", "dense"]}),
        ("cohere2moe", {"prefix_dense_sliding_window_pattern": 4}),
        ("laguna", {"gating": "per-layer"}),
        ("laguna", {"moe_router_logit_softcapping": 30.0}),
        ("laguna", {"mlp_layer_types": ["sparse", "dense"]}),
        ("granite-swa", {"no_rope_layers": [1, 1]}),
        ("hy3", {"mlp_layer_types": ["sparse", "dense"]}),
        ("hy3", {"route_norm": False}),
        ("deepseek32", {"index_head_dim": 48}),
        ("deepseek32", {"layer_types": ["full_attention", "indexed_attention"]}),
    ],
)
def test_what_llama_cpp_would_ignore_is_refused(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="does not support for this architecture"):
        rows(name, **settings)


def test_layers_with_windows_are_listed_one_by_one() -> None:
    kinds = ["full_attention", "sliding_attention"]
    for name in ("mellum", "cohere2moe", "laguna", "granite-swa"):
        found = rows(name, layer_types=kinds)
        assert found["attention.sliding_window"] == 40
        assert found["attention.sliding_window_pattern"] == [False, True]


def test_a_model_without_windows_has_no_row_of_them() -> None:
    found = rows("laguna", layer_types=["full_attention"] * 2)
    assert not {"attention.sliding_window", "attention.sliding_window_pattern"} & found.keys()


def test_layers_without_positions_are_told_and_the_others_share_a_base() -> None:
    found = rows("granite-swa", layer_rope_theta=[0, 1e5])
    assert (found["attention.rope_pattern"], found["rope.freq_base"]) == ([False, True], 1e5)
    assert "attention.rope_pattern" not in rows("granite-swa", layer_rope_theta=[1e5, 1e5])
    with pytest.raises(CheckpointError, match="several rope_theta"):
        rows("granite-swa", layer_rope_theta=[1e4, 1e5])


@pytest.mark.parametrize("setting", ["layer_types", "mlp_layer_types", "num_attention_heads_per_layer"])
def test_a_list_that_is_too_short_is_refused(setting: str) -> None:
    with pytest.raises(CheckpointError, match=r"shorter than|too short"):
        rows("laguna", **{setting: [4] if setting.startswith("num") else ["dense"]})


def test_an_unknown_choice_of_experts_is_refused() -> None:
    with pytest.raises(CheckpointError, match="expert scoring function"):
        rows("cohere2moe", expert_selection_fn="sinkhorn")
