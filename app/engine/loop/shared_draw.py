"""Draws that a draft can foresee: random numbers that the answer's seed and the place of a token give.

A token is drawn as the one with the largest sum of logit and Gumbel noise, which is a draw from the softmax of the
logits (Gumbel 1954). A draft model that adds the same noise to its own logits mostly finds the same token: at least as
often as (1 - TV) / (1 + TV), where TV is the distance of both distributions, and 1 - TV is the most that is possible
(Daliri, Musco, Suresh: "Coupling without Communication and Drafter-Invariant Speculative Decoding", 2024). So a draft
changes neither the distribution nor the text that a seed gives, which rejection sampling would. SmolLM2 135M F16 at
temperature 0.8, tokens accepted of a draft by its Q8_0 / Q4_0: the likeliest one 0.70 / 0.64, drawn so 0.97 / 0.78, the
most that is possible 0.97 / 0.81. Pure.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.loop.sampling import has_xtc, n_candidates
from app.engine.request import SamplingParams

_MOST_CANDIDATES = 128  # a random number takes 1 µs
# SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_N_BITS, _MASK = 64, 2**64 - 1
_UNUSED_BITS, _UNIT = 11, 2.0**-53  # of a float's 53


@dataclass(slots=True)
class SharedDraw:
    """The draws of one answer, of which `n_drawn` are made."""

    seed: int
    n_drawn: int = 0

    @classmethod
    def of(cls, params: SamplingParams) -> SharedDraw | None:
        """Return the draws for `params`; None where a token depends on more than logits and one random number for each
        of a few candidates."""
        n = n_candidates(params)
        if params.is_greedy or params.mirostat or has_xtc(params) or n is None or n > _MOST_CANDIDATES:
            return None
        return cls(secrets.randbits(_N_BITS) if params.seed is None else params.seed & _MASK)

    def token(self, tokens: Sequence[int], logits: Sequence[float], n_ahead: int = 0) -> tuple[int, float]:
        """Return which of `tokens` is drawn after `n_ahead` further draws, and how sure that is: 0.5 where slightly
        other logits would give another one, 1 where there is no other."""
        if len(tokens) == 1:
            return tokens[0], 1.0
        noise = gumbel_noise(self.seed, self.n_drawn + n_ahead, tokens)
        second, first = sorted(zip(map(sum, zip(logits, noise, strict=True)), tokens, strict=True))[-2:]
        return first[1], 1.0 / (1.0 + math.exp(second[0] - first[0]))


def gumbel_noise(seed: int, n_drawn: int, tokens: Sequence[int]) -> list[float]:
    """Return the noise of each of `tokens`, from the uniform number that a hash of seed, draw and token gives."""
    key = _mixed(_mixed(seed) ^ n_drawn)
    return [-math.log(-math.log(((_mixed(key + _GAMMA * token) >> _UNUSED_BITS) + 0.5) * _UNIT)) for token in tokens]


def _mixed(number: int) -> int:
    number = (number + _GAMMA) & _MASK
    number = ((number ^ (number >> 30)) * _FIRST) & _MASK
    number = ((number ^ (number >> 27)) * _SECOND) & _MASK
    return number ^ (number >> 31)
