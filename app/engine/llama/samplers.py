"""Native sampler chains: built from the stages of `app.engine.loop.sampling`, applied to rows of logits.

Owns native chains and the candidates that they choose from. Independent of grammars.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.llama.native import NativeSampler, lib
from app.engine.loop.sampling import Stage, n_history_tokens, stages
from app.engine.protocol.messages import BackendFacts
from app.engine.request import SamplingParams

__all__ = ["Candidates", "ChainBuilder", "LlamaSampler", "allowed_by"]

MIROSTAT_M = 100  # tokens that estimate the exponent of Zipf's law, as in common/sampling.cpp@0.3.36
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class LlamaSampler:
    """A sampler chain over one context; it owns the chain."""

    def __init__(self, context: int, chain: NativeSampler) -> None:
        self._context = context
        self._chain = chain
        self._owned = ExitStack()
        self._owned.callback(lib.llama_sampler_free, chain)

    def sample(self, row: int) -> int:
        return int(lib.llama_sampler_sample(self._chain, self._context, row))

    def close(self) -> None:
        self._owned.close()


class Candidates:
    """One row of logits for chains, which sort, truncate and mask it in place. Shared: one sampler runs at a time."""

    def __init__(self, context: int, n_vocab: int) -> None:
        self._context = context
        self._shape = (n_vocab,)
        self._unsorted = np.zeros(n_vocab, _CANDIDATE)
        self._unsorted["id"] = np.arange(n_vocab)
        self._data = np.empty(n_vocab, _CANDIDATE)
        self._bytes = self._unsorted.view(np.uint8), self._data.view(np.uint8)  # numpy copies records field by field

    def choose(self, chain: NativeSampler, row: int) -> int:
        """Return the choice of `chain` from all tokens by their logits in `row` of the last batch."""
        self._unsorted["logit"] = self._logits(row)
        source, target = self._bytes
        np.copyto(target, source)
        return _selected(chain, self._data)[0]

    def choose_from(self, chain: NativeSampler, row: int, tokens: NDArray[np.int32]) -> int | None:
        """Return the choice of `chain` from `tokens`, None if none of them has a chance."""
        data = np.zeros(len(tokens), _CANDIDATE)
        data["id"], data["logit"] = tokens, self._logits(row)[tokens]
        token, logit = _selected(chain, data)
        return token if np.isfinite(logit) else None

    def _logits(self, row: int) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = np.ctypeslib.as_array(lib.llama_get_logits_ith(self._context, row), self._shape)
        return logits


def allowed_by(grammar: NativeSampler, tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return for each of `tokens` whether `grammar` allows it next."""
    data = np.zeros(len(tokens), _CANDIDATE)
    data["id"] = tokens
    lib.llama_sampler_apply(grammar, ctypes.byref(_token_array(data)))
    logits: NDArray[np.float32] = data["logit"]
    return np.isfinite(logits)


def _selected(chain: NativeSampler, data: NDArray[np.void]) -> tuple[int, float]:
    array = _token_array(data)
    lib.llama_sampler_apply(chain, ctypes.byref(array))
    chosen = array.data[array.selected]
    return int(chosen.id), float(chosen.logit)


def _token_array(data: NDArray[np.void]) -> lib.llama_token_data_array:
    pointer = ctypes.cast(ctypes.c_void_p(data.ctypes.data), lib.llama_token_data_p)
    return lib.llama_token_data_array(pointer, len(data), -1, False)


class ChainBuilder:
    """Builds sampler chains for one vocabulary. Their stages are those of `app.engine.loop.sampling`."""

    def __init__(self, vocab: int, facts: BackendFacts) -> None:
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
        """Return a new chain that has accepted `history`; the caller frees it."""
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for stage in stages(params, banned):
            build = self._builders.get(stage.name)
            sampler = build(stage) if build else getattr(lib, f"llama_sampler_init_{stage.name}")(*stage.arguments)
            lib.llama_sampler_chain_add(chain, sampler)
        n_back = n_history_tokens(params, self._facts.n_ctx)
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
        """Return a number of tokens to look back, limited since llama.cpp allocates memory for it at once."""
        return self._facts.n_ctx if last_n < 0 else min(last_n, self._facts.n_ctx)
