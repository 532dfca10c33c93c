from __future__ import annotations

import math

import pytest

from app.engine.loop.sampling import Stage, check_biases, n_candidates, n_history_tokens, stages
from app.engine.request import SamplingParams
from app.protocol.errors import RequestError


def test_greedy_is_one_stage() -> None:
    assert stages(SamplingParams(temperature=0.0)) == (Stage("greedy"),)


def test_stages_have_the_order_of_llama_cpp() -> None:
    params = SamplingParams(temperature=0.7, repeat_penalty=1.1, seed=5)
    assert [stage.name for stage in stages(params)] == ["penalties", "top_k", "top_p", "min_p", "temp", "dist"]


def test_all_stages_together_have_the_order_of_llama_cpp() -> None:
    params = SamplingParams(
        logit_bias=((5, 1.0),), repeat_penalty=1.1, dry_multiplier=0.8, top_n_sigma=1.0, typical_p=0.9,
        xtc_probability=0.5, dynatemp_range=0.5,
    )  # fmt: skip
    assert [stage.name for stage in stages(params)] == [
        "logit_bias", "penalties", "dry",
        "top_n_sigma", "top_k", "typical", "top_p", "min_p", "xtc", "temp_ext", "dist",
    ]  # fmt: skip


@pytest.mark.parametrize(("version", "name"), [(1, "mirostat"), (2, "mirostat_v2")])
def test_mirostat_replaces_all_but_biases_and_temperature(version: int, name: str) -> None:
    params = SamplingParams(mirostat=version, repeat_penalty=1.1, logit_bias=((5, 1.0),), seed=9)
    assert [stage.name for stage in stages(params)] == ["logit_bias", "temp", name]
    assert stages(params)[-1].arguments == (9, 5.0, 0.1)


def test_every_random_stage_draws_from_the_one_seed() -> None:
    chain = {stage.name: stage.arguments for stage in stages(SamplingParams(xtc_probability=0.5))}
    assert chain["xtc"][-1] == chain["dist"][0]


def test_a_greedy_chain_contains_what_changes_the_best_token() -> None:
    params = SamplingParams(temperature=0.0, mirostat=2, dry_multiplier=0.8, xtc_probability=1.0, typical_p=0.1)
    assert [stage.name for stage in stages(params, banned=[7])] == ["logit_bias", "dry", "greedy"]


def test_xtc_above_one_half_is_left_out() -> None:
    assert "xtc" not in {stage.name for stage in stages(SamplingParams(xtc_probability=1.0, xtc_threshold=0.51))}


def test_banned_tokens_are_biases_of_minus_infinity() -> None:
    assert stages(SamplingParams(logit_bias=((1, 2.0),)), banned=[3])[0] == Stage(
        "logit_bias", ((1, 2.0), (3, -math.inf))
    )


@pytest.mark.parametrize(
    ("changes", "n_tokens"),
    [
        ({}, 0),
        ({"repeat_penalty": 1.1}, 64),
        ({"repeat_penalty": 1.1, "penalty_last_n": -1}, 1000),
        ({"repeat_penalty": 1.1, "dry_multiplier": 1.0, "dry_penalty_last_n": 300}, 300),
        ({"repeat_penalty": 1.1, "mirostat": 2}, 0),
    ],
)
def test_a_chain_looks_back_as_far_as_its_longest_stage(changes: dict[str, float], n_tokens: int) -> None:
    assert n_history_tokens(SamplingParams(**changes), n_ctx=1000) == n_tokens


def test_a_bias_of_a_token_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RequestError, match="token 300"):
        check_biases(SamplingParams(logit_bias=((300, 1.0),)), n_vocab=300)


def test_stages_that_would_change_nothing_are_left_out() -> None:
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    assert stages(params) == (Stage("temp", (1.0,)), Stage("dist", (3,)))


def test_a_greedy_chain_contains_penalties() -> None:
    params = SamplingParams(temperature=0.0, frequency_penalty=0.5)
    assert [stage.name for stage in stages(params)] == ["penalties", "greedy"]


def test_without_a_seed_each_chain_draws_its_own() -> None:
    assert stages(SamplingParams())[-1] != stages(SamplingParams())[-1]


@pytest.mark.parametrize("seed", [-1, 2**63, 0])
def test_any_64_bit_seed_fits_the_native_32_bits(seed: int) -> None:
    assert 0 <= stages(SamplingParams(seed=seed))[-1].arguments[0] < 2**32


@pytest.mark.parametrize(
    ("params", "n"),
    [
        (SamplingParams(temperature=0.0), 1),
        (SamplingParams(top_k=40), 40),
        (SamplingParams(top_k=40, logit_bias=((5, -1.0), (6, -2.0))), 42),
        (SamplingParams(top_k=40, logit_bias=((5, 1.0),)), None),
        (SamplingParams(top_k=0), None),
        (SamplingParams(top_k=40, top_n_sigma=1.0), None),
        (SamplingParams(top_k=40, mirostat=2), None),
        (SamplingParams(top_k=40, repeat_penalty=1.1), None),
        (SamplingParams(temperature=0.0, dry_multiplier=0.8), None),
    ],
)
def test_a_chain_chooses_from_as_many_as_its_first_truncation_leaves(params: SamplingParams, n: int | None) -> None:
    assert n_candidates(params) == n


def test_each_banned_token_may_give_its_place_to_another() -> None:
    assert n_candidates(SamplingParams(temperature=0.0), banned=(3, 4)) == 3
