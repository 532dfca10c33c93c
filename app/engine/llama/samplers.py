"""Samplers without a grammar: from a row of logits to a token.

Owns native chains while they live, and the candidates that chains choose from. Knows nothing of how chains are built.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from app.engine.llama.native import NativeSampler, lib

__all__ = ["Candidates", "LlamaSampler", "allowed_by"]

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
    """One row of logits as chains see it: they sort, cut and mask it in place. Shared, for one samples at a time."""

    def __init__(self, context: int, n_vocab: int) -> None:
        self._context = context
        self._shape = (n_vocab,)
        self._unsorted = np.zeros(n_vocab, _CANDIDATE)
        self._unsorted["id"] = np.arange(n_vocab)
        self._data = np.empty(n_vocab, _CANDIDATE)
        self._bytes = self._unsorted.view(np.uint8), self._data.view(np.uint8)  # numpy copies records field by field

    def choose(self, chain: NativeSampler, row: int) -> int:
        """Return what `chain` chooses from all tokens by their logits in `row` of the last batch."""
        self._unsorted["logit"] = self._logits(row)
        source, target = self._bytes
        np.copyto(target, source)
        return _selected(chain, self._data)[0]

    def choose_from(self, chain: NativeSampler, row: int, tokens: NDArray[np.int32]) -> int | None:
        """Return what `chain` chooses from `tokens`, None where it leaves none of them a chance."""
        data = np.zeros(len(tokens), _CANDIDATE)
        data["id"], data["logit"] = tokens, self._logits(row)[tokens]
        token, logit = _selected(chain, data)
        return token if np.isfinite(logit) else None

    def _logits(self, row: int) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = np.ctypeslib.as_array(lib.llama_get_logits_ith(self._context, row), self._shape)
        return logits


def allowed_by(grammar: NativeSampler, tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return for each of `tokens` whether `grammar` lets it come next."""
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
