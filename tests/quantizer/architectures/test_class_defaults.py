"""A setting that config.json lacks, has as null, or has with its class's default: one file, or a refusal that names it.

What the classes take was written down from transformers by tests/bench/models/class_defaults.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantizer.architectures import CLASS_DEFAULTS, find_architecture, generated_tensors, needed_tensors
from quantizer.checkpoint.config import CheckpointError

OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "outlines.json").read_text())
PATTERN = "attention.sliding_window_pattern"


def config_of(outline: str, without: set[str] = frozenset(), **settings: Any) -> dict[str, Any]:  # type: ignore[assignment]
    """Return the config of an outline, its language model's settings changed."""
    whole = OUTLINES[outline]["config"]
    own = {key: value for key, value in whole.get("text_config", whole).items() if key not in without} | settings
    if "text_config" not in whole:
        return own
    return {**{key: value for key, value in whole.items() if key not in without}, "text_config": own}


def file_of(config: dict[str, Any]) -> str:
    """Return all that decides a file's header and how its weights change, or the cause of a refusal."""
    try:
        architecture, parsed = find_architecture(config)
        rows = {row.key: row.read(parsed) for row in architecture.hyperparameters}
        generated = [str(tensor) for tensor in generated_tensors(architecture, parsed)]
        factors = {kind: list(map(float, of(parsed, 2))) for kind, of in architecture.layout.row_factors.items()}
        needed = needed_tensors(architecture, parsed)
    except CheckpointError as error:
        return f"refused: {error}"
    return json.dumps([architecture.gguf_name, rows, generated, factors, needed])


WITH_DEFAULTS = [name for name, outline in OUTLINES.items() if outline["config"]["architectures"][0] in CLASS_DEFAULTS]


@pytest.mark.parametrize("outline", WITH_DEFAULTS)
def test_a_missing_setting_is_the_default_of_its_class(outline: str) -> None:
    row = CLASS_DEFAULTS[OUTLINES[outline]["config"]["architectures"][0]]
    own = OUTLINES[outline]["config"].get("text_config", OUTLINES[outline]["config"])
    if own.get("model_type") not in (None, row["of"]):
        pytest.skip("a language model of another class")
    aliases = find_architecture(OUTLINES[outline]["config"])[0].settings.aliases
    for key, default in row["values"].items():
        names = {key, *(alias for alias, usual in aliases.items() if usual == key)}
        missing, stated, null = (
            file_of(config_of(outline, names, **more)) for more in ({}, {key: default}, {key: None})
        )
        assert stated == missing, key
        if key not in row["null"]:
            assert null == missing, key
        elif null.startswith("refused"):
            assert any(name in null for name in names), key


@pytest.mark.parametrize(
    ("outline", "key", "row", "value"),
    [
        ("deepseek3", "routed_scaling_factor", "expert_weights_scale", 2.5),
        ("deepseek3", "n_group", "expert_group_count", 8),
        ("glm4moe", "routed_scaling_factor", "expert_weights_scale", 1.0),
        ("qwen3", "head_dim", "attention.key_length", 128),
        ("gemma", "num_key_value_heads", "attention.head_count_kv", 16),
    ],
)
def test_a_default_is_that_of_transformers(outline: str, key: str, row: str, value: float) -> None:
    architecture, config = find_architecture(config_of(outline, {key}))
    rows = {each.key: each.read(config) for each in architecture.hyperparameters}
    assert rows[row] == value


def test_a_model_in_a_class_that_takes_several_has_the_defaults_of_its_own() -> None:
    """Mistral Small names a window of its class where Ministral 3 has none."""
    seeing = {"architectures": ["Mistral3ForConditionalGeneration"], "tie_word_embeddings": False}
    contexts = []
    for outline in ("mistral", "ministral3"):
        own = config_of(outline, {"sliding_window", "architectures"}, max_position_embeddings=32_768)
        architecture, config = find_architecture({**seeing, "text_config": own})
        contexts.append(next(row.read(config) for row in architecture.hyperparameters if row.key == "context_length"))
    assert contexts == [4096, 32_768]


@pytest.mark.parametrize("outline", ["gemma2", "gpt-oss"])
def test_a_pattern_that_the_class_never_reads_is_not_followed(outline: str) -> None:
    unlisted = {"layer_types", "sliding_window_pattern"}
    assert file_of(config_of(outline, unlisted, sliding_window_pattern=3)) == file_of(config_of(outline, unlisted))


@pytest.mark.parametrize("outline", ["gemma2", "gemma3", "gpt-oss", "cohere2", "olmo3", "granite-swa", "cohere2moe"])
def test_a_window_of_null_is_refused_by_name_where_the_graph_needs_one(outline: str) -> None:
    assert "sliding_window = null" in file_of(config_of(outline, sliding_window=None))


@pytest.mark.parametrize("kinds", [3, "full_attention", [1], {"0": "full_attention"}])
@pytest.mark.parametrize("outline", ["mistral", "qwen3", "gemma3", "olmo3", "gpt-oss"])
def test_kinds_of_layers_that_are_no_list_of_names_are_refused(outline: str, kinds: Any) -> None:
    assert "layer_types in config.json is not a list" in file_of(config_of(outline, layer_types=kinds))


def test_a_flag_that_null_switches_off_is_refused_where_the_graph_has_it_on() -> None:
    assert "mamba_conv_bias" in file_of(config_of("falcon-h1", mamba_conv_bias=None))
