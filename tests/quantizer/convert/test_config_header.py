from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from quantizer.architectures import find_architecture
from quantizer.checkpoint.config import CheckpointError
from quantizer.convert.checkpoint_source import config_header
from quantizer.convert.source_model import FileTensor
from quantizer.convert.tensor_mapping import map_tensors
from quantizer.gguf.gguf_reader import LocalFile
from quantizer.gguf.tensor_types import tensor_type_named
from tests.quantizer.checkpoints import TinyLlama

OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "outlines.json").read_text())


@pytest.mark.parametrize("name", OUTLINES)
def test_an_outline_has_the_shapes_that_conversion_gives(name: str) -> None:
    outline = OUTLINES[name]
    architecture, config = find_architecture(outline["config"])
    nothing, stored = LocalFile(Path("nothing"), 0), tensor_type_named("F32")
    there = {key: FileTensor(key, tuple(shape)[::-1], stored, nothing, 0) for key, shape in outline["tensors"].items()}
    converted = {tensor.name: math.prod(tensor.shape) for tensor in map_tensors(there, config, architecture).values()}
    header = config_header(outline["config"], name)
    outlined = {tensor.name: tensor.n_elements for tensor in header.tensors}
    assert {key: converted[key] for key in outlined} == outlined
    assert sum(outlined.values()) > 0.99 * sum(converted.values())
    assert header.architecture == architecture.gguf_name


def test_a_published_model_has_the_bytes_of_its_file() -> None:
    settings = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
    assert sum(tensor.n_elements for tensor in config_header(settings, "Qwen3-0.6B").tensors) == 596_049_920


@pytest.mark.parametrize(
    "changes",
    [{"architectures": ["Nobody"]}, {"hidden_size": None}, {"rms_norm_eps": 1e300}, {"hidden_size": "many"}],
)
def test_settings_that_make_no_sense_are_refused_in_a_sentence(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        config_header(OUTLINES["qwen3"]["config"] | changes, "model")


def test_what_a_conversion_would_refuse_is_refused_before_the_download() -> None:
    with pytest.raises(CheckpointError, match="model cannot be converted: its number of rope dimensions is odd"):
        config_header({**TinyLlama().config(), "head_dim": 1}, "model")
