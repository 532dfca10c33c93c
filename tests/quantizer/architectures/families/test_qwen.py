"""The language models of Qwen's vision models: experts stored either way round, and rotations in sections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantizer.architectures import find_architecture
from quantizer.checkpoint.config import CheckpointError
from quantizer.convert.source_model import FileTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.gguf.gguf_reader import LocalFile
from quantizer.gguf.tensor_types import tensor_type_named

OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[2] / "outlines.json").read_text())


def shapes(name: str) -> dict[str, tuple[int, ...]]:
    nothing, stored = LocalFile(Path("nothing"), 0), tensor_type_named("F32")
    architecture, config = find_architecture(OUTLINES[name]["config"])
    files = {
        key: FileTensor(key, tuple(shape)[::-1], stored, nothing, 0) for key, shape in OUTLINES[name]["tensors"].items()
    }
    return {key: tensor.shape for key, tensor in map_tensors(files, config, architecture).items()}


def with_sections(*sections: int) -> dict[str, Any]:
    config = OUTLINES["qwen3vl"]["config"]
    rope = config["text_config"]["rope_parameters"] | {"mrope_section": list(sections)}
    return config | {"text_config": config["text_config"] | {"rope_parameters": rope}}


def test_experts_are_the_same_stored_either_way_round() -> None:
    key = "model.language_model.layers.0.mlp.experts.down_proj"
    assert OUTLINES["qwen3vlmoe"]["tensors"][key] != OUTLINES["qwen3vlmoe-fused"]["tensors"][key]
    assert shapes("qwen3vlmoe") == shapes("qwen3vlmoe-fused")


def test_pairs_that_llama_cpp_leaves_unrotated_are_told() -> None:
    architecture, config = find_architecture(with_sections(24, 20, 20))
    assert architecture.approximations(config) == (
        "llama.cpp does not rotate 2 of the 64 pairs of a head, which turn slowest.",
    )
    architecture, config = find_architecture(with_sections(3, 3, 2))
    assert architecture.approximations(config) == ()


def test_sections_that_are_none_are_refused() -> None:
    architecture, config = find_architecture(with_sections(1, 1, 1, 1, 1))
    row = next(row for row in architecture.hyperparameters if row.key == "rope.dimension_sections")
    with pytest.raises(CheckpointError, match="no valid rope"):
        row.read(config)


def test_next_does_not_split_into_other_heads() -> None:
    outline = OUTLINES["qwen3next"]
    architecture, config = find_architecture(outline["config"] | {"linear_num_key_heads": 3})
    tensor = FileTensor("x", (64, 512), tensor_type_named("F32"), LocalFile(Path("nothing"), 0), 0)
    cut = architecture.layout.splits[".in_proj_qkvz.weight"][".in_proj_qkv.weight"]
    with pytest.raises(CheckpointError, match="do not split into 3 key heads"):
        cut(tensor, "x", config)
