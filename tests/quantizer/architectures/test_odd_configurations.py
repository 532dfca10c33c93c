"""Configurations with odd values: each becomes what llama.cpp computes as transformers does, or is refused by name.

The numbers of YaRN were compared with transformers 5.24 on random checkpoints (F32 weights and cache): relative errors
of at most 8e-7, where 120 of 256 positions were longer than the original context of 64.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quantizer.architectures import ARCHITECTURES, find_architecture, generated_tensors, needed_tensors
from quantizer.architectures.metadata_rows import frequency_divisors
from quantizer.checkpoint.config import CheckpointError, Config

OUTLINES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "outlines.json").read_text())

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LOG = math.log(4.0)
USUAL = 1 + 0.1 * LOG  # what llama.cpp multiplies rotations by unless the file says otherwise
TYPE, FACTOR, ATTENTION, WEIGHT = (
    f"rope.scaling.{name}" for name in ("type", "factor", "attn_factor", "yarn_log_multiplier")
)
FAST, SLOW = "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"


def scaled(name: str, rope: Mapping[str, Any]) -> dict[str, Any]:
    return OUTLINES[name]["config"] | {"rope_parameters": YARN | rope, "head_dim": None}


def rows_of(config: dict[str, Any]) -> dict[str, Any]:
    architecture, parsed = find_architecture(config)
    return {row.key: value for row in architecture.hyperparameters if (value := row.read(parsed)) is not None}


def divisors_of(config: dict[str, Any]) -> list[tuple[float, ...]]:
    architecture, parsed = find_architecture(config)
    return [tensor.values for tensor in generated_tensors(architecture, parsed)]  # type: ignore[attr-defined]


def mscale(weight: float) -> float:
    return 1 + 0.1 * weight * LOG


@pytest.mark.parametrize("name", ["llama", "qwen3", "granite", "apertus", "qwen2moe", "gpt-oss", "smollm3"])
@pytest.mark.parametrize(
    ("rope", "wanted"),
    [
        ({}, USUAL),
        ({"attention_factor": 1.0}, 1.0),
        ({"attention_factor": 0.7}, 0.7),
        ({"mscale": 0.7, "mscale_all_dim": 0.3}, mscale(0.7) / mscale(0.3)),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.7}, USUAL),
        ({"mscale": 0.7, "mscale_all_dim": 0.3, "attention_factor": 1.2}, 1.2),
    ],
)
def test_the_attention_factor_of_yarn_is_what_transformers_computes(
    name: str, rope: dict[str, Any], wanted: float
) -> None:
    rows = rows_of(scaled(name, rope))
    assert USUAL * rows.get(ATTENTION, 1.0) == pytest.approx(wanted, rel=1e-12)
    assert (ATTENTION in rows) == (wanted != USUAL)


@pytest.mark.parametrize("weight", [None, 1.0, 0.6])
@pytest.mark.parametrize("factor", [None, 1.0, 0.7])
def test_ministral_divides_what_llama_cpp_derives_from_its_own_weight(
    weight: float | None, factor: float | None
) -> None:
    rows = rows_of(scaled("ministral3", {"mscale_all_dim": weight, "mscale": None, "attention_factor": factor}))
    derived = USUAL / mscale(rows.get(WEIGHT, 0.0))
    assert derived * rows.get(ATTENTION, 1.0) == pytest.approx(factor or USUAL, rel=1e-12)


@pytest.mark.parametrize("name", ["deepseek2", "deepseek3-yarn", "deepseek32-yarn"])
@pytest.mark.parametrize(
    ("rope", "rotations", "weight"),
    [
        ({}, USUAL, 0.0),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0, 1.0),
        ({"mscale": 0.7, "mscale_all_dim": 0.3}, mscale(0.7) / mscale(0.3), 0.3),
        ({"mscale_all_dim": 0.6}, USUAL, 0.6),
        ({"mscale_all_dim": 1.0}, USUAL, 1.0),
        ({"attention_factor": 0.7}, 0.7, 0.0),
    ],
)
def test_latent_attention_is_scaled_as_a_whole_and_in_its_rotated_part(
    name: str, rope: dict[str, Any], rotations: float, weight: float
) -> None:
    """llama.cpp derives both factors from two numbers, `WEIGHT` and `ATTENTION`."""
    rows = rows_of(scaled(name, rope))
    own = 10 * rows.get(WEIGHT, 0.0)
    of_both = own if name != "deepseek32-yarn" and own else 1.0
    rotated = mscale(of_both) / mscale(own) * rows.get(ATTENTION, 1.0)
    assert rotated == pytest.approx(rotations, rel=1e-12)
    assert rotated * mscale(own) == pytest.approx(mscale(weight), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "rope", "wanted"),
    [
        ("glm5", {"mscale_all_dim": 0.6}, (mscale(0.6) / USUAL) ** 2),
        ("glm5", {}, USUAL**-2),
        ("glm5", {"attention_factor": 1.0}, 1.0),
        ("glm5", {"rope_type": "linear"}, USUAL**-2),
        ("glm5", {"rope_type": "default"}, 1.0),
        *((name, {"mscale_all_dim": 0.6}, 1.0) for name in ("deepseek2", "deepseek3-yarn", "deepseek32-yarn")),
        *(
            (name, {"rope_type": "dynamic", "mscale_all_dim": 0.7}, mscale(0.7) ** 2)
            for name in ("deepseek2", "deepseek3-lite", "deepseek32-yarn", "glm5", "youtu")
        ),
        ("deepseek2", {"rope_type": "dynamic"}, 1.0),
    ],
)
def test_queries_are_as_sharp_as_the_class_has_it_where_the_graph_cannot_sharpen_them(
    name: str, rope: dict[str, Any], wanted: float
) -> None:
    """Of random checkpoints: 22 % off in a dynamic scaling before, 2.9e-7 since; GLM 5 with YaRN 2.9e-7."""
    architecture, parsed = find_architecture(scaled(name, rope))
    for kind in ("ATTN_Q", "ATTN_Q_B"):
        assert architecture.layout.row_factors[kind](parsed, 3) == pytest.approx([wanted] * 3, rel=1e-6)


def test_a_linear_scaling_of_latent_attention_leaves_its_sharpness_alone() -> None:
    """llama.cpp would multiply it by what YaRN's usual factor is."""
    rows = rows_of(scaled("deepseek3-yarn", {"rope_type": "linear"}))
    assert USUAL * mscale(10 * rows[WEIGHT]) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("name", ["qwen3", "deepseek3-yarn", "smollm3", "gpt-oss"])
def test_betas_are_written_where_a_graph_reads_no_divisors(name: str) -> None:
    config = scaled(name, {"beta_fast": 16.0, "beta_slow": 2.0})
    rows = rows_of(config)
    assert (rows[TYPE], rows[FAST], rows[SLOW]) == ("yarn", 16.0, 2.0)
    assert divisors_of(config) == []


READING = ("llama", "mistral", "mixtral", "granite", "arcee", "apertus", "ministral3", "exaone", "minicpm", "llama4")


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize(
    "rope", [{"beta_fast": 2.0, "beta_slow": 0.1}, {"truncate": False}, {"truncate": False, "attention_factor": 1.3}]
)
def test_a_ramp_that_llama_cpp_lacks_becomes_divisors_and_their_whole_factor(name: str, rope: dict[str, Any]) -> None:
    config = scaled(name, rope)
    rows, (divisors,) = rows_of(config), divisors_of(config)
    assert not {TYPE, FACTOR, FAST, SLOW} & rows.keys()
    assert rows[ATTENTION] == pytest.approx(rope.get("attention_factor", USUAL))
    assert divisors[0] == 1.0
    assert divisors[-1] == pytest.approx(4.0)
    assert list(divisors) == sorted(divisors)
    assert any(1.0 < each < 4.0 for each in divisors)


def test_divisors_of_yarn_are_those_of_the_paper() -> None:
    """Of a head of 16 at 64 original positions, with a ramp from pair 0 to 2.0157… (arXiv 2309.00071)."""
    (divisors,) = divisors_of(scaled("llama", {"truncate": False}))
    high = 16 * math.log(64 / (2 * math.pi)) / (2 * math.log(1e4))
    shares = [min(1.0, pair / high) for pair in range(8)]
    assert divisors == pytest.approx([1 / (share / 4 + 1 - share) for share in shares], rel=1e-12)


@pytest.mark.parametrize("name", ["llama", "ministral3"])
def test_a_ramp_that_llama_cpp_has_needs_no_divisors(name: str) -> None:
    config = scaled(name, {"beta_fast": 31.0, "beta_slow": 1.0})
    assert rows_of(config)[TYPE] == "yarn"
    assert divisors_of(config) == []


@pytest.mark.parametrize("name", ["qwen3", "deepseek3-yarn", "smollm3", "qwen2moe"])
def test_a_ramp_with_fractions_is_refused_where_no_divisors_are_read(name: str) -> None:
    with pytest.raises(CheckpointError, match="'yarn' with truncate = False"):
        divisors_of(scaled(name, {"truncate": False}))


def test_llama_3_scaling_is_refused_where_no_divisors_are_read() -> None:
    with pytest.raises(CheckpointError, match="rope scaling 'llama3'"):
        divisors_of(scaled("smollm3", {"rope_type": "llama3"}))


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({"beta_fast": 1.0, "beta_slow": 32.0}, "invalid yarn"),
        ({"factor": -2.0}, "invalid yarn"),
        ({"factor": 0}, "invalid yarn"),
        ({"rope_theta": 1.0}, "invalid yarn"),
        ({"attention_factor": 0.0}, "attention_factor"),
        ({"attention_factor": -1.0}, "attention_factor"),
    ],
)
def test_an_impossible_yarn_is_refused(rope: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        rows_of(scaled("qwen3", rope))


def test_a_missing_factor_is_that_of_both_contexts() -> None:
    assert rows_of(scaled("qwen3", {"factor": None}))[FACTOR] == 4.0


def test_rows_for_divisors_belong_to_entries_that_generate_them() -> None:
    """A row that leaves the scaling to divisors would lose it where none are generated, and the reverse."""
    odd = Config({"rope_parameters": YARN | {"truncate": False}, "max_position_embeddings": 256, "head_dim": 16})
    for of_class in ARCHITECTURES.values():
        for entry in (of_class, *of_class.variants):
            row = next((row for row in entry.hyperparameters if row.key == FACTOR), None)
            if row is not None:
                leaves_it = row.read(odd) is None
                assert leaves_it == (entry.tensors.generate is frequency_divisors), entry.hf_classes


def warnings_of(config: dict[str, Any]) -> str:
    architecture, parsed = find_architecture(config)
    return " ".join(architecture.approximations(parsed))


CAPPED = ("mistral", "mixtral", "ministral3", "starcoder2", "phi", "phi-long")


@pytest.mark.parametrize("name", CAPPED)
@pytest.mark.parametrize(("window", "n_context"), [(48, 48), (255, 255), (256, 256), (4096, 256), (None, 256)])
def test_a_window_that_the_graph_lacks_limits_the_context(name: str, window: int | None, n_context: int) -> None:
    """Within it both attend to the same tokens: relative errors below 2.4e-7, 28 to 58 % beyond it."""
    config = OUTLINES[name]["config"] | {"max_position_embeddings": 256, "sliding_window": window}
    assert rows_of(config)["context_length"] == n_context
    assert (f"to {n_context} of 256 tokens" in warnings_of(config)) == (n_context < 256)


def test_a_limited_context_leaves_the_ends_of_rope_scalings_alone() -> None:
    long = rows_of(OUTLINES["phi-long"]["config"] | {"sliding_window": 48})
    assert long["rope.scaling.original_context_length"] == 4096
    tempered = {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}
    rope = tempered | {"original_max_position_embeddings": 64}
    rows = rows_of(OUTLINES["ministral3"]["config"] | {"rope_parameters": rope, "sliding_window": 48})
    assert (rows["rope.scaling.original_context_length"], rows["context_length"]) == (64, 48)


def test_a_mistral_that_names_no_window_has_that_of_its_class_and_null_is_none() -> None:
    config = {key: value for key, value in OUTLINES["mistral"]["config"].items() if key != "sliding_window"}
    config |= {"max_position_embeddings": 32_768}
    assert rows_of(config)["context_length"] == 4096
    assert rows_of(config | {"sliding_window": None})["context_length"] == 32_768


def test_a_llama_follows_no_window() -> None:
    """Nor does it in transformers."""
    assert rows_of(OUTLINES["llama"]["config"] | {"sliding_window": 48})["context_length"] == 256


@pytest.mark.parametrize(
    ("caps", "final", "attention"),
    [
        ({}, 30.0, 50.0),
        ({"final_logit_softcapping": 7.0, "attn_logit_softcapping": 3.0}, 7.0, 3.0),
        ({"final_logit_softcapping": None}, 2.0**20, 50.0),
        ({"attn_logit_softcapping": None}, 30.0, 4096.0),
    ],
)
def test_a_gemma_2_is_capped_as_its_config_has_it(caps: dict[str, Any], final: float, attention: float) -> None:
    """llama.cpp caps in any case, so no cap is one that is out of reach; of attention's a warning tells."""
    config = {key: value for key, value in OUTLINES["gemma2"]["config"].items() if "softcapping" not in key} | caps
    rows = rows_of(config)
    assert (rows["final_logit_softcapping"], rows["attn_logit_softcapping"]) == (final, attention)
    assert ("4,096" in warnings_of(config)) == (attention == 4096.0)


@pytest.mark.parametrize(("configured", "has_biases"), [(None, True), (True, True), (False, False)])
def test_a_qwen_2_with_experts_has_biases_unless_its_config_denies_them(
    configured: bool | None, has_biases: bool
) -> None:
    """Without them, of a random checkpoint, the relative error is 2.2e-7."""
    needed = needed_tensors(*find_architecture(OUTLINES["qwen2moe"]["config"] | {"qkv_bias": configured}))
    assert ("blk.0.attn_q.bias" in needed) is has_biases


@pytest.mark.parametrize(
    ("name", "factor", "kind", "words"),
    [
        ("gemma3", 0.7, "default", "an attention factor of yarn"),
        ("gemma3", None, "yarn", "rope scaling 'yarn' is not supported"),
        ("gemma3", None, "default", ""),
        ("olmo3", 0.7, "default", ""),
        ("olmo3", 0.7, "linear", "rope scaling 'linear' is not supported"),
        ("laguna", 0.7, "default", ""),
        ("mellum", 0.7, "default", ""),
    ],
)
def test_a_scaling_of_full_attention_leaves_layers_with_a_window_alone_or_is_refused(
    name: str, factor: float | None, kind: str, words: str
) -> None:
    """Gemma 3's graph has one factor for all layers: 33 % off with 0.7, where OLMo 3 is right (3.4e-7)."""
    windowed = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
    rope = {"full_attention": YARN | {"attention_factor": factor}, "sliding_attention": windowed}
    config = OUTLINES[name]["config"] | {"rope_parameters": rope}
    if words:
        with pytest.raises(CheckpointError, match=words):
            rows_of(config)
    else:
        assert USUAL * rows_of(config).get(ATTENTION, 1.0) == pytest.approx(factor or USUAL)


def test_the_kind_that_published_qwen_2_vl_names_is_no_scaling() -> None:
    rope = {"type": "mrope", "mrope_section": [3, 3, 2]}
    config = OUTLINES["qwen2vl"]["config"] | {"rope_parameters": None, "rope_scaling": rope}
    assert divisors_of(config) == []
    assert TYPE not in rows_of(config)


PATTERN = "attention.sliding_window_pattern"


@pytest.mark.parametrize(
    ("name", "every"), [("gemma2", 2), ("gemma3", 6), ("gemma-embedding", 6), ("cohere2", 4), ("gpt-oss", 2)]
)
def test_windows_are_listed_where_they_are_not_those_that_the_graph_assumes(name: str, every: int) -> None:
    """Random checkpoints with another pattern: at most 4.4e-7 off."""
    config = {**OUTLINES[name]["config"], "num_hidden_layers": 4}
    for unlisted in ("layer_types", "sliding_window_pattern", "_sliding_window_pattern"):
        config.pop(unlisted, None)
    usual = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(4)]
    assert PATTERN not in rows_of(config)
    assert PATTERN not in rows_of(config | {"layer_types": usual})
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    assert rows_of(config | {"layer_types": kinds})[PATTERN] == [False, True, True, False]
    if name not in ("gemma2", "gpt-oss"):  # whose classes never read it
        assert rows_of(config | {"sliding_window_pattern": 3})[PATTERN] == [True, True, False, True]
    with pytest.raises(CheckpointError, match="does not list every layer"):
        rows_of(config | {"layer_types": kinds[:3]})


@pytest.mark.parametrize(
    ("name", "kind"), [("gemma2", "ATTN_Q"), ("gemma3", "ATTN_Q_NORM"), ("gemma-embedding", "ATTN_Q_NORM")]
)
@pytest.mark.parametrize("scalar", [None, 20, 32, 144])
def test_queries_of_gemma_are_scaled_by_the_scalar_of_its_config(name: str, kind: str, scalar: int | None) -> None:
    config = OUTLINES[name]["config"] | {"query_pre_attn_scalar": scalar, "head_dim": 32}
    architecture, parsed = find_architecture(config)
    factors = architecture.layout.row_factors[kind](parsed, 2)
    assert factors == pytest.approx([math.sqrt(32 / (scalar or 256))] * 2)


def test_the_largest_gemma_divides_its_queries_as_its_graph_does() -> None:
    large = {"query_pre_attn_scalar": 16, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32}
    for name, kind, n_layers in (("gemma2", "ATTN_Q", 46), ("gemma3", "ATTN_Q_NORM", 62)):
        config = OUTLINES[name]["config"] | large | {"num_hidden_layers": n_layers, "layer_types": None}
        architecture, parsed = find_architecture(config)
        assert architecture.layout.row_factors[kind](parsed, 1) == [1.0]


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "qwen3moe", "qwen2moe", "internvl", "qwen2vl"])
@pytest.mark.parametrize(
    ("settings", "n_context"),
    [
        ({"use_sliding_window": True}, 48),
        ({"use_sliding_window": True, "max_window_layers": 0}, 48),
        ({"use_sliding_window": True, "max_window_layers": 512}, 256),
        ({"use_sliding_window": True, "layer_types": ["full_attention"]}, 256),
        ({"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}, 48),
        ({"use_sliding_window": False}, 256),
        ({"use_sliding_window": None}, 256),
    ],
)
def test_a_window_of_some_layers_of_a_qwen_limits_the_context(
    name: str, settings: dict[str, Any], n_context: int
) -> None:
    windowless = {"sliding_window": 48, "max_position_embeddings": 256, "max_window_layers": 0, "layer_types": None}
    config = OUTLINES[name]["config"]
    own = config.get("text_config", config) | windowless | settings
    config = {**config, "text_config": own} if "text_config" in config else own
    assert rows_of(config)["context_length"] == n_context
    assert (f"to {n_context} of 256 tokens" in warnings_of(config)) == (n_context < 256)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("apertus", "attention_bias"),
        ("minicpm", "attention_bias"),
        ("nemotron-h", "attention_bias"),
        ("nemotron-h", "mlp_bias"),
        ("falcon-h1", "mlp_bias"),
    ],
)
def test_biases_that_the_graph_adds_are_taken(name: str, setting: str) -> None:
    """Random checkpoints with them: at most 2.1e-7 off. A bias that no graph adds is refused before it is written."""
    find_architecture(OUTLINES[name]["config"] | {setting: True})


@pytest.mark.parametrize(("name", "rows"), [("dots1", (2, 1)), ("mimo2", (2, 1))])
def test_experts_are_chosen_within_groups_where_there_are_several(name: str, rows: tuple[int, int]) -> None:
    keys = ("expert_group_count", "expert_group_used_count")
    config = OUTLINES[name]["config"] | {"n_group": 2, "topk_group": 1}
    assert tuple(rows_of(config)[key] for key in keys) == rows
    assert not set(keys) & rows_of(config | {"n_group": 1}).keys()
