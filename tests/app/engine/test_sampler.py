from __future__ import annotations

import pytest

from app.engine.request import SamplingParams
from app.engine.sampler import Stage, check_grammar, stages
from quantizer.errors import RequestError


def test_greedy_is_one_stage() -> None:
    assert stages(SamplingParams(temperature=0.0)) == (Stage("greedy"),)


def test_the_chain_keeps_the_order_of_llama_cpp() -> None:
    params = SamplingParams(temperature=0.7, repeat_penalty=1.1, seed=5)
    assert [stage.name for stage in stages(params)] == ["penalties", "top_k", "top_p", "min_p", "temp", "dist"]


def test_stages_that_would_change_nothing_are_left_out() -> None:
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    assert stages(params) == (Stage("temp", (1.0,)), Stage("dist", (3,)))


def test_greedy_keeps_penalties() -> None:
    params = SamplingParams(temperature=0.0, frequency_penalty=0.5)
    assert [stage.name for stage in stages(params)] == ["penalties", "greedy"]


def test_without_a_seed_each_chain_draws_its_own() -> None:
    assert stages(SamplingParams())[-1] != stages(SamplingParams())[-1]


@pytest.mark.parametrize("seed", [-1, 2**63, 0])
def test_any_64_bit_seed_fits_the_native_32_bits(seed: int) -> None:
    assert 0 <= stages(SamplingParams(seed=seed))[-1].arguments[0] < 2**32


@pytest.mark.parametrize(
    "grammar", ["root ::= " + "(" * 101 + '"a"' + ")" * 101, 'r ::= "a"\n' * 1001, 'root ::= "\0"', 'root ::= "\ud800"']
)
def test_a_grammar_that_would_hurt_is_refused(grammar: str) -> None:
    with pytest.raises(RequestError):
        check_grammar(grammar)


def test_an_ordinary_grammar_passes() -> None:
    check_grammar('root ::= ("yes" | "no") [.!]?')
