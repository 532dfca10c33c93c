"""What is listed as converting, or not, is what the converter does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quantizer.architectures import ARCHITECTURES, UNCONVERTIBLE, find_architecture, generated_tensors
from quantizer.architectures.listing import ListedArchitecture, listed_architectures, refused_classes
from quantizer.architectures.projectors import PROJECTORS
from quantizer.checkpoint.config import CheckpointError

OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "outlines.json").read_text())
LISTED = listed_architectures()
SCALINGS: Mapping[str, Mapping[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 64},
}


def row_of(hf_class: str, architecture: str) -> ListedArchitecture:
    return next(row for row in LISTED if hf_class in row.classes and row.architecture == architecture)


def test_every_class_is_listed_as_converting_or_not() -> None:
    assert {name for row in LISTED for name in row.classes} == {*ARCHITECTURES, *PROJECTORS}
    assert {row.hf_class: row.reason for row in refused_classes()} == UNCONVERTIBLE
    assert not UNCONVERTIBLE.keys() & ARCHITECTURES.keys()


@pytest.mark.parametrize("name", ["llama", "qwen2moe", "gemma3", "falcon-h1", "nemotron-h-experts", "qwen35"])
def test_a_setting_is_refused_unless_it_is_as_listed(name: str) -> None:
    config = OUTLINES[name]["config"]
    architecture, _ = find_architecture(config)
    row = row_of(config["architectures"][0], architecture.gguf_name)
    assert row.required
    for key, value in row.required.items():
        find_architecture(config | {key: value})
        with pytest.raises(CheckpointError, match=key):
            find_architecture(config | {key: "another value"})
    assert row.derived == tuple(key for key, value in architecture.settings.assumed.items() if callable(value))


@pytest.mark.parametrize("name", ["llama", "qwen3", "smollm3", "deepseek3", "command-r", "gptneox", "olmo3", "gpt-oss"])
@pytest.mark.parametrize("kind", SCALINGS)
def test_a_rope_scaling_is_refused_where_it_is_listed(name: str, kind: str) -> None:
    config = OUTLINES[name]["config"]
    rope = {"rope_type": kind, "rope_theta": 1e4, **SCALINGS[kind]}
    architecture, parsed = find_architecture(config | {"rope_parameters": rope, "rope_scaling": None})
    row = row_of(config["architectures"][0], architecture.gguf_name)
    try:
        for each in architecture.hyperparameters:
            if each.key.startswith("rope."):
                each.read(parsed)
        generated_tensors(architecture, parsed)
    except CheckpointError:
        assert kind in row.refused_scalings
    else:
        assert kind not in row.refused_scalings


def test_models_whose_positions_do_not_rotate_refuse_no_scaling() -> None:
    assert row_of("GPT2LMHeadModel", "gpt2").refused_scalings == ()


def test_a_draft_head_with_yarn_rotates_whole_heads_unless_its_config_has_a_share() -> None:
    assert "yarn" not in row_of("DFlashDraftModel", "dflash").refused_scalings


@pytest.mark.parametrize(
    ("spelling", "usual"),
    [
        ("LLaMAForCausalLM", "LlamaForCausalLM"),
        ("LFM2ForCausalLM", "Lfm2ForCausalLM"),
        ("T5WithLMHeadModel", "T5ForConditionalGeneration"),
        ("BloomModel", "BloomForCausalLM"),
    ],
)
def test_other_spellings_of_a_class_convert_as_the_usual_one(spelling: str, usual: str) -> None:
    assert ARCHITECTURES[spelling] is ARCHITECTURES[usual]
