"""Language models of classes that see: which one of several, and heads that are rotated by halves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantizer.architectures import find_architecture
from quantizer.checkpoint.config import CheckpointError, Config

OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[2] / "outlines.json").read_text())


def whole(name: str, **language: Any) -> dict[str, Any]:
    """The config of an outline with other settings of its language model."""
    config: dict[str, Any] = OUTLINES[name]["config"]
    return config | {"text_config": config["text_config"] | language}


@pytest.mark.parametrize(
    ("name", "architecture"), [("internvl", "qwen2"), ("internvl-qwen3", "qwen3"), ("internvl-experts", "qwen3moe")]
)
def test_the_language_model_is_the_one_that_the_config_names(name: str, architecture: str) -> None:
    assert find_architecture(whole(name))[0].gguf_name == architecture


def test_a_language_model_that_none_of_the_class_has_is_refused() -> None:
    with pytest.raises(CheckpointError, match="language model 'mamba' is not supported in InternVLFor"):
        find_architecture(whole("internvl", model_type="mamba"))


def test_neighbours_come_to_lie_in_two_halves_of_what_is_rotated() -> None:
    entry, config = find_architecture(whole("glm4v"))
    rows = entry.layout.row_orders["ATTN_Q"](config, 32)
    first = [0, 2, 4, 6, 1, 3, 5, 7, *range(8, 16)]
    assert rows.tolist() == [*first, *(np.array(first) + 16).tolist()]


@pytest.mark.parametrize(("share", "n_rows"), [(0.5, 33), (0.2, 32), (2.0, 32)])
def test_heads_that_cannot_be_rotated_in_pairs_are_refused(share: float, n_rows: int) -> None:
    entry, config = find_architecture(whole("glm4v"))
    values = config.values | {"rope_parameters": config.values["rope_parameters"] | {"partial_rotary_factor": share}}
    with pytest.raises(CheckpointError, match="do not split into heads"):
        entry.layout.row_orders["ATTN_Q"](Config(values), n_rows)
