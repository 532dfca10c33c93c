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

from quantizer.architectures import ARCHITECTURES, find_architecture, generated_tensors
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


def test_a_graph_without_the_weight_refuses_a_yarn_that_needs_it() -> None:
    with pytest.raises(CheckpointError, match="mscale_all_dim"):
        rows_of(scaled("glm5", {"mscale_all_dim": 0.6}))


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
