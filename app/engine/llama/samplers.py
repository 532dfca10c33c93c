"""Samplers: from a row of logits to a token, with a chain alone or with a grammar beside it.

Owns native samplers while they live. Knows nothing of how chains are built.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack

import numpy as np

from app.engine.llama.native import NativeSampler, lib, native_log
from app.engine.sampler import check_grammar
from quantizer.errors import RequestError

__all__ = ["Candidates", "GrammarSampler", "LlamaSampler", "new_grammar"]


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
    """One row of logits as samplers see it: they sort, cut and mask it in place. Shared, for one samples at a time."""

    def __init__(self, context: int, n_vocab: int) -> None:
        self._context = context
        self._shape = (n_vocab,)
        kind = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        self._unsorted = np.zeros(n_vocab, kind)
        self._unsorted["id"] = np.arange(n_vocab)
        self._data = np.empty(n_vocab, kind)
        self._bytes = self._unsorted.view(np.uint8), self._data.view(np.uint8)  # numpy copies records field by field
        self._one = np.zeros(1, kind)

    def fill(self, row: int) -> lib.llama_token_data_array:
        """Return every token with its logit in `row` of the last batch; valid until the next call."""
        logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(self._context, row), self._shape)
        self._unsorted["logit"] = logits
        source, target = self._bytes
        np.copyto(target, source)
        return _token_array(self._data)

    def allows_any(self, grammar: NativeSampler, array: lib.llama_token_data_array) -> bool:
        """Mask what `grammar` refuses in `array`, the one `fill` returned; return whether anything is left."""
        lib.llama_sampler_apply(grammar, ctypes.byref(array))
        return bool(np.isfinite(self._data["logit"]).any())

    def allows(self, grammar: NativeSampler, token: int) -> bool:
        """Return whether `grammar` lets `token` come next."""
        self._one[0] = (token, 0.0, 0.0)
        lib.llama_sampler_apply(grammar, ctypes.byref(_token_array(self._one)))
        return bool(np.isfinite(self._one["logit"][0]))


def _token_array(data: np.ndarray) -> lib.llama_token_data_array:
    pointer = ctypes.cast(ctypes.c_void_p(data.ctypes.data), lib.llama_token_data_p)
    return lib.llama_token_data_array(pointer, len(data), -1, False)


class GrammarSampler:
    """A sampler chain and a grammar, both owned.

    What the chain chooses is taken if the grammar allows it; only else the whole vocabulary is filtered, and the chain
    chooses again from what is left (source: common_sampler_sample, common/sampling.cpp@0.3.36). Where no stage cuts
    candidates off, both draws together are one from the allowed tokens: p + (1 - allowed) * p / allowed = p / allowed.
    With `is_filtered_first` the first draw is left out: mirostat learns from a draw even when its token is refused.
    """

    def __init__(
        self, candidates: Candidates, chain: NativeSampler, grammar: NativeSampler, *, is_filtered_first: bool
    ) -> None:
        self._candidates = candidates
        self._chain = chain
        self._grammar = grammar
        self._owned = ExitStack()
        for sampler in (chain, grammar):
            self._owned.callback(lib.llama_sampler_free, sampler)
        self._is_filtered_first = is_filtered_first

    def sample(self, row: int) -> int:
        """Return the token for `row`. Raises RequestError when the grammar allows no token of this vocabulary."""
        token = None if self._is_filtered_first else self._choose(self._candidates.fill(row))
        if token is None or not self._candidates.allows(self._grammar, token):
            token = self._choose_filtered(row)
        lib.llama_sampler_accept(self._grammar, token)
        lib.llama_sampler_accept(self._chain, token)
        return token

    def _choose(self, array: lib.llama_token_data_array) -> int:
        lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        return int(array.data[array.selected].id)

    def _choose_filtered(self, row: int) -> int:
        # Accepting a token that the grammar refuses would abort the process, as would choosing from nothing.
        array = self._candidates.fill(row)
        if self._candidates.allows_any(self._grammar, array):
            token = self._choose(array)
            if self._candidates.allows(self._grammar, token):
                return token
        raise RequestError("The grammar allows no token of this model here.", "Change the grammar or logit_bias.")

    def close(self) -> None:
        self._owned.close()


def new_grammar(vocab: int, grammar: str) -> NativeSampler:
    """Return the native sampler of a GBNF text. Raises RequestError for one that is not valid or would hurt."""
    check_grammar(grammar)
    sampler = lib.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    if not sampler:
        raise RequestError(
            f"The grammar is not valid GBNF: {native_log().last_words(1)}", "It needs a rule named root."
        )
    return sampler
