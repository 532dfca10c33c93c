"""Native sampler chains of the stages of `app.engine.loop.sampling`, and the candidates that they choose from."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Choice
from app.engine.llama.native import NativeSampler, lib
from app.engine.loop.sampling import Stage, n_history_tokens, stages
from app.engine.loop.shared_draw import SharedDraw
from app.engine.media.chunks import is_placeholder
from app.engine.messages import BackendFacts
from app.engine.request import SamplingParams

_MIROSTAT_M = 100  # tokens that estimate the exponent of Zipf's law, as in common/sampling.cpp@0.3.36
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
_N_ROWS = 64  # that a vocabulary is folded into: of 65,000 to 262,000 tokens as fast as any
_LARGE_VOCABULARY = 100_000  # from so many tokens on a second pass takes longer than a few more functions
_FEW = 8  # tokens that are found one after the other
_MAX_SHORT = 256  # tokens of a list whose memory is reused
_MAX_ROWS = 256  # of logits whose numpy arrays are kept


class LlamaSampler:
    """A sampler chain, which it owns. A chain that cannot choose beyond the `n_likeliest` tokens is given little more.
    llama.cpp's own way lists the whole vocabulary for each token and sorts out its best: of 248,000 tokens that takes
    0.35 ms, this 0.1, of 8 and fewer 0.02. The choice is the same. A `draw`, which requires such a chain, replaces the
    draw at its end."""

    def __init__(
        self,
        candidates: Candidates,
        chain: NativeSampler,
        n_likeliest: int | None = None,
        draw: SharedDraw | None = None,
    ) -> None:
        self._candidates = candidates
        self.chain = chain
        self._n_likeliest = n_likeliest
        self._draw = draw
        self._owned = ExitStack()
        self._owned.callback(lib.llama_sampler_free, chain)

    def sample(self, row: int) -> int:
        if self._n_likeliest is None:
            return int(lib.llama_sampler_sample(self.chain, self._candidates.context, row))  # accepts the token, too
        token = self.choose(row)
        self.accept(token)
        return token

    def foresee(self, logits: NDArray[np.float32], n_ahead: int) -> tuple[int, float] | None:
        if self._draw is None or self._n_likeliest is None:
            return None
        left = self._candidates.left_by(self.chain, logits, likeliest(logits, self._n_likeliest))
        return self._draw.token(left["id"].tolist(), left["logit"].tolist(), n_ahead) if len(left) else None

    def choose(self, row: int) -> int:
        if self._draw is not None and (drawn := self.foresee(self._candidates.logits(row), 0)) is not None:
            return drawn[0]
        n = self._n_likeliest
        token = None if n is None else self._candidates.choose_likeliest(self.chain, row, n)
        return self._candidates.choose(self.chain, row) if token is None else token

    def choice(self, row: int) -> Choice:
        return self._candidates.choice(self.chain, row)

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self.chain, token)
        if self._draw is not None:
            self._draw.n_drawn += 1

    def close(self) -> None:
        self._owned.close()


def likeliest(logits: NDArray[np.float32], n: int) -> NDArray[np.intp]:
    """Return the tokens of the `n` largest `logits`, and perhaps some more, ascending; none where some are NaN. The
    n-th largest of the maxima of columns is a lower bound for the n-th largest of all."""
    n_columns = len(logits) // _N_ROWS
    if not 0 < n <= n_columns:
        return np.arange(len(logits))
    if n <= _FEW:
        return _few_largest(logits, n)
    end = _N_ROWS * n_columns
    folded = logits[:end].reshape(_N_ROWS, n_columns)
    maxima = folded.max(axis=0)
    bound = np.partition(maxima, n_columns - n)[n_columns - n]
    if len(logits) < _LARGE_VOCABULARY:
        return np.flatnonzero(logits >= bound)
    # Only columns whose largest reaches the bound are read again, not all logits: of 262,144 between two steps the
    # whole choice takes 0.46 instead of 0.58 ms. NaN is below nothing.
    columns = np.flatnonzero(~(maxima < bound))
    rows, places = np.nonzero(folded[:, columns] >= bound)
    found: NDArray[np.intp] = rows * n_columns + columns[places]
    return np.concatenate([found, end + np.flatnonzero(logits[end:] >= bound)])


def _few_largest(logits: NDArray[np.float32], n: int) -> NDArray[np.intp]:
    """Return the tokens of the `n` largest `logits`, ascending; none where some are NaN, all where few are finite. One
    after the other: each numpy function that a step drove out of the processor's caches takes 10 to 20 µs."""
    found: list[tuple[int, float]] = []
    for _ in range(n):
        token = int(logits.argmax())
        found.append((token, float(logits[token])))
        logits[token] = -np.inf
    for token, logit in reversed(found):
        logits[token] = logit
    if not all(math.isfinite(logit) for _, logit in found):
        return np.arange(0 if any(math.isnan(logit) for _, logit in found) else len(logits))
    return np.array(sorted(token for token, _ in found), np.intp)


class Candidates:
    """One row of logits for chains, which sort, truncate and mask it in place. Shared: one sampler runs at a time."""

    def __init__(self, context: int, n_vocab: int) -> None:
        self.context = context
        self._n_vocab = n_vocab
        # By address: making an array takes longer than reading the few logits of it that count.
        self._rows: dict[int, NDArray[np.float32]] = {}
        self._short = np.zeros(_MAX_SHORT, _CANDIDATE)
        self._short_pointer = _pointer_to(self._short)

    @cached_property
    def _unsorted(self) -> NDArray[np.void]:
        unsorted = np.zeros(self._n_vocab, _CANDIDATE)
        unsorted["id"] = np.arange(self._n_vocab)
        return unsorted

    @cached_property
    def _data(self) -> NDArray[np.void]:
        return np.empty(self._n_vocab, _CANDIDATE)

    @cached_property
    def all(self) -> NDArray[np.int32]:
        return np.arange(self._n_vocab, dtype=np.int32)

    def choose(self, chain: NativeSampler, row: int) -> int:
        """Return the choice of `chain` from all tokens by their logits in `row` of the last batch."""
        self._unsorted["logit"] = self.logits(row)
        # As bytes, since numpy copies records field by field. Chains sort in place, so the copy is what they get.
        np.copyto(self._data.view(np.uint8), self._unsorted.view(np.uint8))
        return _selected(chain, _token_array(self._data))[0]

    def choose_likeliest(self, chain: NativeSampler, row: int, n: int) -> int | None:
        """Return the choice of a `chain` that cannot reach beyond the `n` likeliest tokens, None without any."""
        logits = self.logits(row)
        tokens = likeliest(logits, n)
        if len(tokens) == 1:  # the chain has no choice
            return int(tokens[0])
        return self._choose_from(chain, logits, tokens) if len(tokens) else None

    def choose_fit(
        self, chain: NativeSampler, row: int, tokens: NDArray[np.int32], is_fit: Callable[[int], bool]
    ) -> int | None:
        """Return the choice of `chain` from those of `tokens` that are fit, None if none of them has a chance."""
        while len(tokens):
            token = self._choose_from(chain, self.logits(row), tokens)
            if token is None or is_fit(token):
                return token
            tokens = tokens[tokens != token]
        return None

    def choice(
        self,
        chain: NativeSampler,
        row: int,
        tokens: NDArray[np.int32] | None = None,
        is_fit: Callable[[int], bool] | None = None,
    ) -> Choice:
        """Return what `chain` leaves of `tokens`, or of all, and of that what is fit. A chain without a draw at its end
        leaves its choice. The chain stays as it is: what draws within it (XTC) draws the same once more."""
        tokens = self.all if tokens is None else tokens
        data = np.zeros(len(tokens), _CANDIDATE)
        data["id"], data["logit"] = tokens, self.logits(row)[tokens]
        array = _token_array(data)
        with ExitStack() as owned:
            copy = lib.llama_sampler_clone(chain)
            owned.callback(lib.llama_sampler_free, copy)
            chosen, _ = _selected(copy, array)
            last = lib.llama_sampler_chain_get(copy, lib.llama_sampler_chain_n(copy) - 1)
            is_greedy = lib.llama_sampler_name(last) == b"greedy"
        if is_greedy:
            return Choice(np.array([chosen], np.int32), np.ones(1))
        left = _left(array)
        left = left[np.argsort(-left["logit"], kind="stable")]
        if is_fit is not None:
            left = left[np.array([is_fit(int(token)) for token in left["id"]], bool)]
        weights = np.exp(left["logit"].astype(np.float64) - left["logit"][:1])
        return Choice(left["id"].copy(), weights / weights.sum())

    def left_by(
        self, chain: NativeSampler, logits: NDArray[np.float32], tokens: NDArray[np.signedinteger]
    ) -> NDArray[np.void]:
        """Return what `chain` leaves of `tokens`, with logits that its temperature has divided."""
        if not len(tokens):
            return np.zeros(0, _CANDIDATE)
        array, _memory = self._array(logits, tokens)
        lib.llama_sampler_apply(chain, ctypes.byref(array))
        return _left(array)

    def _choose_from(
        self, chain: NativeSampler, logits: NDArray[np.float32], tokens: NDArray[np.signedinteger]
    ) -> int | None:
        """Return the choice of `chain` from `tokens`, None if none of them has a chance."""
        array, _memory = self._array(logits, tokens)
        token, logit = _selected(chain, array)
        return token if math.isfinite(logit) else None

    def _array(
        self, logits: NDArray[np.float32], tokens: NDArray[np.signedinteger]
    ) -> tuple[lib.llama_token_data_array, NDArray[np.void]]:
        """Return `tokens` as a chain takes them, and the memory of that, which the next call may use again."""
        data, pointer = self._short[: len(tokens)], self._short_pointer
        if len(tokens) > _MAX_SHORT:
            data = np.zeros(len(tokens), _CANDIDATE)
            pointer = _pointer_to(data)
        data["id"], data["logit"], data["p"] = tokens, logits[tokens], 0.0
        # A new array each time: llama.cpp's XTC (0.3.36) moves its pointer.
        return lib.llama_token_data_array(pointer, len(tokens), -1, False), data

    def logits(self, row: int) -> NDArray[np.float32]:
        pointer = lib.llama_get_logits_ith(self.context, row)
        address = ctypes.addressof(pointer.contents)
        if (logits := self._rows.get(address)) is None:
            if len(self._rows) >= _MAX_ROWS:
                self._rows.clear()
            logits = self._rows[address] = np.ctypeslib.as_array(pointer, (self._n_vocab,))
        return logits


def allowed_by(grammar: NativeSampler, tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
    data = np.zeros(len(tokens), _CANDIDATE)
    data["id"] = tokens
    lib.llama_sampler_apply(grammar, ctypes.byref(_token_array(data)))
    logits: NDArray[np.float32] = data["logit"]
    return np.isfinite(logits)


def _selected(chain: NativeSampler, array: lib.llama_token_data_array) -> tuple[int, float]:
    lib.llama_sampler_apply(chain, ctypes.byref(array))
    chosen = array.data[array.selected]
    return int(chosen.id), float(chosen.logit)


def _left(array: lib.llama_token_data_array) -> NDArray[np.void]:
    """Return what a chain left of an array. llama.cpp moves the pointer, and not each of its samplers fills in the
    probabilities."""
    address = ctypes.addressof(array.data.contents)
    left = np.frombuffer((ctypes.c_char * (array.size * _CANDIDATE.itemsize)).from_address(address), _CANDIDATE)
    finite: NDArray[np.void] = left[np.isfinite(left["logit"])]
    return finite


def _token_array(data: NDArray[np.void]) -> lib.llama_token_data_array:
    return lib.llama_token_data_array(_pointer_to(data), len(data), -1, False)


def _pointer_to(data: NDArray[np.void]) -> Any:
    return ctypes.cast(ctypes.c_void_p(data.ctypes.data), lib.llama_token_data_p)


class ChainBuilder:
    """Builds sampler chains for one vocabulary. Their stages are those of `app.engine.loop.sampling`."""

    def __init__(self, vocab: int, facts: BackendFacts) -> None:
        self._vocab = vocab
        self._facts = facts
        self._dry: tuple[Stage, NativeSampler] | None = None
        # The stages whose llama_sampler_init_... takes more than their numbers.
        self._builders: dict[str, Callable[[Stage], NativeSampler]] = {
            "logit_bias": self._new_logit_bias,
            "penalties": lambda stage: lib.llama_sampler_init_penalties(
                facts.n_vocab, self._n_back(stage.arguments[0]), *stage.arguments[1:]
            ),
            "dry": self._new_dry,
            "mirostat": lambda stage: lib.llama_sampler_init_mirostat(facts.n_vocab, *stage.arguments, _MIROSTAT_M),
        }

    def build(self, params: SamplingParams, banned: Sequence[int], history: Sequence[int]) -> NativeSampler:
        """Return a new chain that has accepted the text of `history`; the caller frees it."""
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for stage in stages(params, banned):
            build = self._builders.get(stage.name)
            sampler = build(stage) if build else getattr(lib, f"llama_sampler_init_{stage.name}")(*stage.arguments)
            lib.llama_sampler_chain_add(chain, sampler)
        n_back = n_history_tokens(params, self._facts.n_ctx)
        text = (token for token in reversed(history) if not is_placeholder(token))
        for token in reversed([*islice(text, n_back)]):  # penalties and DRY look no further back
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

    def _new_dry(self, stage: Stage) -> NativeSampler:
        # llama.cpp looks for the sequence breakers in the whole vocabulary, 130 ms for 128k tokens; cloning is free.
        if self._dry is None or self._dry[0] != stage:
            self.close()
            *numbers, last_n = stage.arguments[:4]
            texts = stage.arguments[4:]
            breakers = (ctypes.c_char_p * len(texts))(*(str(text).encode("utf-8", "replace") for text in texts))
            n_back = self._n_back(last_n)
            self._dry = stage, lib.llama_sampler_init_dry(self._vocab, *numbers, n_back, breakers, len(texts))
        return lib.llama_sampler_clone(self._dry[1])

    def _n_back(self, last_n: Any) -> int:
        """Return a number of tokens to look back, limited since llama.cpp allocates memory for it at once."""
        return self._facts.n_ctx if last_n < 0 else min(last_n, self._facts.n_ctx)
