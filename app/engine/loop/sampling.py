"""The stages of a sampler chain for given SamplingParams, in order. Pure: `app.engine.llama` builds them.

Owns the order of the stages and the omission of those without effect. The order is llama.cpp's default
(common/common.h and common/sampling.cpp@llama-cpp-python 0.3.36): biases, penalties, DRY, top-n-sigma, top-k, typical,
top-p, min-p, XTC, temperature; mirostat replaces all but biases and temperature.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from app.engine.request import SamplingParams
from app.protocol.errors import RequestError

XTC_OFF_ABOVE = 0.5  # no two tokens can both be more likely
MIN_KEEP = 1

Arguments: TypeAlias = tuple[float | int | str | tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """One sampler of the chain: its name in `llama_sampler_init_<name>` and its arguments after any vocabulary. Those
    of "logit_bias" are (token, bias) pairs; those of "dry" end with the sequence breakers."""

    name: str
    arguments: Arguments = ()


def stages(params: SamplingParams, banned: Sequence[int] = ()) -> tuple[Stage, ...]:
    """Return the stages for `params` without the grammar; `banned` tokens are never chosen. A missing seed is random.
    Greedy chains contain what changes the most likely token: biases, penalties and DRY."""
    seed = secrets.randbits(32) if params.seed is None else params.seed % 2**32
    biases = (*params.logit_bias, *((token, -inf) for token in banned))
    head = (Stage("logit_bias", biases),) if biases else ()
    if params.mirostat and not params.is_greedy:
        mirostat = (seed, params.mirostat_tau, params.mirostat_eta)
        name = "mirostat" if params.mirostat == 1 else "mirostat_v2"
        return (*head, Stage("temp", (params.temperature,)), Stage(name, mirostat))
    head = (*head, *_against_repetition(params))
    if params.is_greedy:
        return (*head, Stage("greedy"))
    temperature = Stage("temp", (params.temperature,))
    if params.dynatemp_range > 0.0:
        dynamic = (params.temperature, params.dynatemp_range, params.dynatemp_exponent)
        temperature = Stage("temp_ext", dynamic)
    return (*head, *_truncations(params, seed), temperature, Stage("dist", (seed,)))


def n_history_tokens(params: SamplingParams, n_ctx: int) -> int:
    """Return how many of the last tokens, prompt included, the chain for `params` considers."""
    if params.mirostat and not params.is_greedy:
        return 0
    last_n = {"penalties": params.penalty_last_n, "dry": params.dry_penalty_last_n}
    counts = [last_n[stage.name] for stage in _against_repetition(params)]
    return max((n_ctx if n < 0 else min(n, n_ctx) for n in counts), default=0)


def n_candidates(params: SamplingParams, banned: Sequence[int] = ()) -> int | None:
    """Return how many of the likeliest tokens a chain for `params` can choose from, None where all others count too.
    A token that a bias lowers may give its place to another, so each adds one."""
    is_counted = params.is_greedy or (params.top_k > 0 and params.top_n_sigma <= 0.0 and not params.mirostat)
    if not is_counted or _against_repetition(params) or any(bias > 0.0 for _, bias in params.logit_bias):
        return None
    return (1 if params.is_greedy else params.top_k) + len(params.logit_bias) + len(banned)


def has_xtc(params: SamplingParams) -> bool:
    return params.xtc_probability > 0.0 and params.xtc_threshold <= XTC_OFF_ABOVE


def check_biases(params: SamplingParams, n_vocab: int) -> None:
    """Raise RequestError for a logit_bias of a token outside a vocabulary of `n_vocab`."""
    for token, _ in params.logit_bias:
        if not 0 <= token < n_vocab:
            cause = f"logit_bias contains token {token}; the vocabulary has {n_vocab} tokens."
            raise RequestError(cause, "Use ids from /tokenize of the same model.")


def _against_repetition(params: SamplingParams) -> tuple[Stage, ...]:
    penalties = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
    dry = (params.dry_multiplier, params.dry_base, params.dry_allowed_length, params.dry_penalty_last_n)
    chain: list[Stage] = []
    if penalties != (1.0, 0.0, 0.0) and params.penalty_last_n != 0:
        chain.append(Stage("penalties", (params.penalty_last_n, *penalties)))
    if params.dry_multiplier > 0.0 and params.dry_penalty_last_n != 0:
        chain.append(Stage("dry", (*dry, *params.dry_sequence_breakers)))
    return tuple(chain)


def _truncations(params: SamplingParams, seed: int) -> tuple[Stage, ...]:
    wanted: tuple[tuple[bool, str, Arguments], ...] = (
        (params.top_n_sigma > 0.0, "top_n_sigma", (params.top_n_sigma,)),
        (params.top_k > 0, "top_k", (params.top_k,)),
        (params.typical_p < 1.0, "typical", (params.typical_p, MIN_KEEP)),
        (params.top_p < 1.0, "top_p", (params.top_p, MIN_KEEP)),
        (params.min_p > 0.0, "min_p", (params.min_p, MIN_KEEP)),
        (has_xtc(params), "xtc", (params.xtc_probability, params.xtc_threshold, MIN_KEEP, seed)),
    )
    return tuple(Stage(name, arguments) for is_wanted, name, arguments in wanted if is_wanted)
