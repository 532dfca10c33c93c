"""Sampler chains: the stages of `app.engine.sampler` as native objects.

Owns how each stage is built. Knows nothing of logits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from app.engine.backend import ModelFacts
from app.engine.llama.native import NativeSampler, lib
from app.engine.request import SamplingParams
from app.engine.sampler import Stage, n_remembered, stages

__all__ = ["ChainBuilder"]

MIROSTAT_M = 100  # tokens that estimate the exponent of Zipf's law, as in common/sampling.cpp@0.3.36


class ChainBuilder:
    """Builds sampler chains for one vocabulary. Their stages are those of `app.engine.sampler`."""

    def __init__(self, vocab: int, facts: ModelFacts) -> None:
        self._vocab = vocab
        self._facts = facts
        self._dry: tuple[Stage, NativeSampler] | None = None
        # The stages whose llama_sampler_init_... takes more than their numbers.
        self._builders: dict[str, Callable[[Stage], NativeSampler]] = {
            "logit_bias": self._new_logit_bias,
            "penalties": self._new_penalties,
            "dry": self._new_dry,
            "mirostat": self._new_mirostat,
        }

    def build(self, params: SamplingParams, banned: Sequence[int], history: Sequence[int]) -> NativeSampler:
        """Return a new chain, the caller's to free, that has seen `history`."""
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for stage in stages(params, banned):
            build = self._builders.get(stage.name)
            sampler = build(stage) if build else getattr(lib, f"llama_sampler_init_{stage.name}")(*stage.arguments)
            lib.llama_sampler_chain_add(chain, sampler)
        n_back = n_remembered(params, self._facts.n_ctx)
        for token in history[max(0, len(history) - n_back) :]:
            lib.llama_sampler_accept(chain, token)
        return chain

    def close(self) -> None:
        if self._dry is not None:
            lib.llama_sampler_free(self._dry[1])
            self._dry = None

    def _new_logit_bias(self, stage: Stage) -> NativeSampler:
        pairs = stage.arguments
        biases = (lib.llama_logit_bias * len(pairs))(*pairs)
        return lib.llama_sampler_init_logit_bias(self._facts.n_vocab, len(pairs), biases)

    def _new_penalties(self, stage: Stage) -> NativeSampler:
        last_n, *penalties = stage.arguments
        return lib.llama_sampler_init_penalties(self._facts.n_vocab, self._n_back(last_n), *penalties)

    def _new_dry(self, stage: Stage) -> NativeSampler:
        # Looking for its breakers in the whole vocabulary takes 130 ms where that has 128k tokens; a clone takes none.
        if self._dry is None or self._dry[0] != stage:
            self.close()
            self._dry = stage, self._new_dry_prototype(stage)
        return lib.llama_sampler_clone(self._dry[1])

    def _new_dry_prototype(self, stage: Stage) -> NativeSampler:
        multiplier, base, allowed_length, last_n, *texts = stage.arguments
        breakers = (ctypes.c_char_p * len(texts))(*(str(text).encode("utf-8", "replace") for text in texts))
        n_back = self._n_back(last_n)
        return lib.llama_sampler_init_dry(self._vocab, multiplier, base, allowed_length, n_back, breakers, len(texts))

    def _new_mirostat(self, stage: Stage) -> NativeSampler:
        return lib.llama_sampler_init_mirostat(self._facts.n_vocab, *stage.arguments, MIROSTAT_M)

    def _n_back(self, last_n: Any) -> int:
        """Return a count of tokens to look back; llama.cpp reserves memory for it at once."""
        return self._facts.n_ctx if last_n < 0 else min(last_n, self._facts.n_ctx)
