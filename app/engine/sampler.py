"""SamplingParams -> the stages of a llama sampler chain, in order. Pure: `app.engine.llama` builds what is listed here.

Owns the order of the stages and which of them a setting makes needless. The order is llama.cpp's default
(common/common.h@llama-cpp-python 0.3.36): penalties, top-k, top-p, min-p, temperature.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from app.engine.request import SamplingParams
from quantizer.errors import RequestError

__all__ = ["Stage", "check_grammar", "stages"]

MAX_GRAMMAR_DEPTH = 100
MAX_GRAMMAR_RULES = 1000


@dataclass(frozen=True, slots=True)
class Stage:
    """One sampler of the chain: its name in `llama_sampler_init_<name>` and its arguments after any vocabulary."""

    name: str
    arguments: tuple[float | int, ...] = ()


def stages(params: SamplingParams) -> tuple[Stage, ...]:
    """Return the chain for `params`, without the grammar and the ban of end tokens. A seed is drawn when none is given.

    Greedy keeps the penalties, since they change which token is best.
    """
    chain: list[Stage] = []
    if params.repeat_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        penalties = (params.penalty_last_n, params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
        chain.append(Stage("penalties", penalties))
    if params.is_greedy:
        return (*chain, Stage("greedy"))
    if params.top_k > 0:
        chain.append(Stage("top_k", (params.top_k,)))
    if params.top_p < 1.0:
        chain.append(Stage("top_p", (params.top_p, 1)))
    if params.min_p > 0.0:
        chain.append(Stage("min_p", (params.min_p, 1)))
    seed = secrets.randbits(32) if params.seed is None else params.seed % 2**32
    return (*chain, Stage("temp", (params.temperature,)), Stage("dist", (seed,)))


def check_grammar(grammar: str) -> None:
    """Refuse a GBNF text that would overflow llama.cpp's recursive parser.

    Raises RequestError past 100 nested groups or 1,000 rules; its size is bounded by SamplingParams.
    """
    n_rules = grammar.count("::=")
    if n_rules > MAX_GRAMMAR_RULES:
        raise RequestError(f"The grammar has {n_rules} rules.", f"Use at most {MAX_GRAMMAR_RULES}.")
    depth = 0
    for character in grammar:
        depth += (character == "(") - (character == ")")
        if depth > MAX_GRAMMAR_DEPTH:
            raise RequestError("The grammar nests too deep.", f"Use at most {MAX_GRAMMAR_DEPTH} levels of groups.")
    if "\0" in grammar or any(0xD800 <= ord(character) < 0xE000 for character in grammar):
        raise RequestError("The grammar holds a NUL or a lone surrogate.", "Remove it.")
