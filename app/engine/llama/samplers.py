"""Native samplers: chains of the stages of `app.engine.loop.sampling`, alone or under a grammar.

Owns native chains, the candidates that they choose from and native grammars. Independent of how grammars are generated.
"""

from __future__ import annotations

import codecs
import ctypes
import math
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.grammar.first_characters import FirstCharacters
from app.engine.grammar.gbnf import check_grammar
from app.engine.llama.native import NativeSampler, lib, native_log, tokenize
from app.engine.loop.sampling import Stage, n_history_tokens, stages
from app.engine.media.chunks import is_placeholder
from app.engine.protocol.messages import BackendFacts
from app.engine.request import SamplingParams
from app.protocol.errors import RequestError

MIROSTAT_M = 100  # tokens that estimate the exponent of Zipf's law, as in common/sampling.cpp@0.3.36
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
_N_ROWS = 64  # that a vocabulary is folded into: of 65,000 to 262,000 tokens as fast as any
_FEW = 8  # tokens that are found one after the other
_MAX_SHORT = 256  # tokens of a list whose memory is used again
_MAX_ROWS = 256  # of logits whose arrays are kept
_BEGINS_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")  # which Python takes until its last byte
# What a grammar has: texts, characters and comments, in which nothing else begins, and tokens by id or by name.
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#.*|<\[(\d+)\]>|(<[^>]*>)')


class LlamaSampler:
    """A sampler chain over one context; it owns the chain."""

    def __init__(self, context: int, chain: NativeSampler) -> None:
        self._context = context
        self.chain = chain
        self._owned = ExitStack()
        self._owned.callback(lib.llama_sampler_free, chain)

    def sample(self, row: int) -> int:
        return int(lib.llama_sampler_sample(self.chain, self._context, row))

    def choose(self, candidates: Candidates, row: int) -> int:
        """Return the choice of the chain, without recording it."""
        return candidates.choose(self.chain, row)

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self.chain, token)

    def close(self) -> None:
        self._owned.close()


def likeliest(logits: NDArray[np.float32], n: int) -> NDArray[np.intp]:
    """Return the tokens of the `n` largest `logits`, and perhaps some more, ascending; none where some are NaN.

    A few are found one after the other, since each function of numpy that a step drove out of the processor's caches
    takes 10 to 20 µs. The n-th largest of the maxima of columns is a lower bound for the n-th largest of all.
    """
    n_columns = len(logits) // _N_ROWS
    if not 0 < n <= n_columns:
        return np.arange(len(logits))
    if n <= _FEW:
        return _largest(logits, n)
    maxima = logits[: _N_ROWS * n_columns].reshape(_N_ROWS, n_columns).max(axis=0)
    bound = np.partition(maxima, n_columns - n)[n_columns - n]
    return np.flatnonzero(logits >= bound)


def _largest(logits: NDArray[np.float32], n: int) -> NDArray[np.intp]:
    """Return the tokens of the `n` largest `logits`, ascending; none where some are NaN, all where few are finite."""
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


class LikeliestSampler:
    """A sampler chain that cannot choose beyond the `n` likeliest tokens, and is given little more; it owns the chain.

    llama.cpp's own way lists the whole vocabulary for each token and sorts out its best: of 248,000 tokens that takes
    0.35 ms, this 0.1, of 8 and fewer 0.02. The choice is the same.
    """

    def __init__(self, candidates: Candidates, chain: NativeSampler, n: int) -> None:
        self._candidates = candidates
        self.chain = chain
        self._n = n
        self._owned = ExitStack()
        self._owned.callback(lib.llama_sampler_free, chain)

    def sample(self, row: int) -> int:
        token = self.choose(self._candidates, row)
        lib.llama_sampler_accept(self.chain, token)
        return token

    def choose(self, candidates: Candidates, row: int) -> int:
        """Return the choice of the chain, without recording it."""
        token = candidates.choose_likeliest(self.chain, row, self._n)
        return candidates.choose(self.chain, row) if token is None else token

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self.chain, token)

    def close(self) -> None:
        self._owned.close()


class Candidates:
    """One row of logits for chains, which sort, truncate and mask it in place. Shared: one sampler runs at a time."""

    def __init__(self, context: int, n_vocab: int) -> None:
        self._context = context
        self._n_vocab = n_vocab
        self._rows: dict[int, NDArray[np.float32]] = {}  # by address: to make an array takes longer than to read it

    @cached_property
    def _unsorted(self) -> NDArray[np.void]:
        unsorted = np.zeros(self._n_vocab, _CANDIDATE)
        unsorted["id"] = np.arange(self._n_vocab)
        return unsorted

    @cached_property
    def _data(self) -> NDArray[np.void]:
        return np.empty(self._n_vocab, _CANDIDATE)

    @cached_property
    def _short(self) -> NDArray[np.void]:
        return np.zeros(_MAX_SHORT, _CANDIDATE)

    @cached_property
    def _short_pointer(self) -> Any:
        return _pointer_to(self._short)

    @cached_property
    def all(self) -> NDArray[np.int32]:
        """The ids of all tokens."""
        return np.arange(self._n_vocab, dtype=np.int32)

    def choose(self, chain: NativeSampler, row: int) -> int:
        """Return the choice of `chain` from all tokens by their logits in `row` of the last batch."""
        self._unsorted["logit"] = self._logits(row)
        np.copyto(self._data.view(np.uint8), self._unsorted.view(np.uint8))  # numpy copies records field by field
        return _selected(chain, _token_array(self._data))[0]

    def choose_likeliest(self, chain: NativeSampler, row: int, n: int) -> int | None:
        """Return the choice of a `chain` that cannot reach beyond the `n` likeliest tokens, None without any."""
        logits = self._logits(row)
        tokens = likeliest(logits, n)
        if len(tokens) == 1:  # the chain has no choice
            return int(tokens[0])
        return self._choose_from(chain, logits, tokens) if len(tokens) else None

    def choose_fit(
        self, chain: NativeSampler, row: int, tokens: NDArray[np.int32], is_fit: Callable[[int], bool]
    ) -> int | None:
        """Return the choice of `chain` from those of `tokens` that are fit, None if none of them has a chance."""
        while len(tokens):
            token = self._choose_from(chain, self._logits(row), tokens)
            if token is None or is_fit(token):
                return token
            tokens = tokens[tokens != token]
        return None

    def _choose_from(
        self, chain: NativeSampler, logits: NDArray[np.float32], tokens: NDArray[np.signedinteger]
    ) -> int | None:
        """Return the choice of `chain` from `tokens`, None if none of them has a chance."""
        data, pointer = self._short[: len(tokens)], self._short_pointer
        if len(tokens) > _MAX_SHORT:
            data = np.zeros(len(tokens), _CANDIDATE)
            pointer = _pointer_to(data)
        data["id"], data["logit"], data["p"] = tokens, logits[tokens], 0.0
        array = lib.llama_token_data_array(pointer, len(tokens), -1, False)  # not kept: XTC moves its pointer
        token, logit = _selected(chain, array)
        return token if math.isfinite(logit) else None

    def _logits(self, row: int) -> NDArray[np.float32]:
        pointer = lib.llama_get_logits_ith(self._context, row)
        address = ctypes.addressof(pointer.contents)
        if (logits := self._rows.get(address)) is None:
            if len(self._rows) >= _MAX_ROWS:
                self._rows.clear()
            logits = self._rows[address] = np.ctypeslib.as_array(pointer, (self._n_vocab,))
        return logits


def allowed_by(grammar: NativeSampler, tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return for each of `tokens` whether `grammar` allows it next."""
    data = np.zeros(len(tokens), _CANDIDATE)
    data["id"] = tokens
    lib.llama_sampler_apply(grammar, ctypes.byref(_token_array(data)))
    logits: NDArray[np.float32] = data["logit"]
    return np.isfinite(logits)


def _selected(chain: NativeSampler, array: lib.llama_token_data_array) -> tuple[int, float]:
    lib.llama_sampler_apply(chain, ctypes.byref(array))
    chosen = array.data[array.selected]
    return int(chosen.id), float(chosen.logit)


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
            "penalties": self._new_penalties,
            "dry": self._new_dry,
            "mirostat": self._new_mirostat,
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
        for token in reversed([*islice(text, n_back)]):  # no more of a long prompt is read than counts
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
            *numbers, last_n = stage.arguments[:4]
            texts = stage.arguments[4:]
            breakers = (ctypes.c_char_p * len(texts))(*(str(text).encode("utf-8", "replace") for text in texts))
            n_back = self._n_back(last_n)
            self._dry = stage, lib.llama_sampler_init_dry(self._vocab, *numbers, n_back, breakers, len(texts))
        return lib.llama_sampler_clone(self._dry[1])

    def _new_mirostat(self, stage: Stage) -> NativeSampler:
        return lib.llama_sampler_init_mirostat(self._facts.n_vocab, *stage.arguments, MIROSTAT_M)

    def _n_back(self, last_n: Any) -> int:
        """Return a number of tokens to look back, limited since llama.cpp allocates memory for it at once."""
        return self._facts.n_ctx if last_n < 0 else min(last_n, self._facts.n_ctx)


class Grammar:
    """Parser state of a GBNF text over one vocabulary, whose tokens `characters` groups and `piece` writes.

    Its text is what clients get, and whole characters: in llama.cpp's own a special token that is no output stands for
    its name, and some bytes of no character for one. Tokens that the text asks for by id or name, outside of quotes,
    are taken as they are. Raises RequestError for a text that is invalid or too complex.
    """

    def __init__(
        self,
        vocab: int,
        text: str,
        characters: Callable[[], FirstCharacters],
        piece: Callable[[int], bytes],
        is_eog: Callable[[int], bool],
    ) -> None:
        check_grammar(text)
        self._native = lib.llama_sampler_init_grammar(vocab, text.encode(), b"root")
        if not self._native:
            cause = f"The grammar is not valid GBNF: {native_log().last_lines(1)}"
            raise RequestError(cause, "It needs a rule named root.")
        self._vocab = vocab
        self._characters = characters
        self._piece = piece
        self._is_eog = is_eog
        self._asked = _asked_tokens(vocab, text)
        self._as_they_are = frozenset(self._asked.tolist())
        self._excludes_tokens = "!<" in text  # then it allows tokens whatever they begin with
        self._last: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")

    def allows(self, token: int) -> bool:
        """Return whether `token` may come next."""
        return self.is_text(token) and bool(allowed_by(self._native, np.array([token], np.int32))[0])

    def is_text(self, token: int) -> bool:
        """Return whether the text goes on as characters with `token`, or may end with it."""
        if token in self._as_they_are:
            return True
        state = self._decoder.getstate()
        if self._is_eog(token):
            return not state[0]
        if not (piece := self._piece(token)):
            return False
        try:
            self._decoder.decode(piece)
            rest, _ = self._decoder.getstate()
        except UnicodeDecodeError:
            return False
        finally:
            self._decoder.setstate(state)
        return not _BEGINS_SURROGATE.match(rest)

    def allowed(self) -> NDArray[np.int32]:
        """Return all tokens that llama.cpp's grammar allows next, ascending; some may not be text."""
        characters = self._characters()
        is_in_character = self._last is not None and not characters.is_whole(self._last)
        if self._excludes_tokens or is_in_character:
            possible = characters.all
        else:
            possible = characters.possible(allowed_by(self._native, characters.probes), self._asked)
        return possible[allowed_by(self._native, possible)]

    def accept(self, token: int) -> None:
        """Advance by `token`; one that is not allowed would abort the process."""
        lib.llama_sampler_accept(self._native, token)
        self._last = token
        if token in self._as_they_are:
            self._decoder.reset()
        elif not self._is_eog(token):
            self._decoder.decode(self._piece(token))

    def is_complete(self) -> bool:
        """Return whether the text may end here."""
        ends = (lib.llama_vocab_eos(self._vocab), lib.llama_vocab_eot(self._vocab))
        return any(self.allows(token) for token in ends if token >= 0 and self._is_eog(token))

    def close(self) -> None:
        lib.llama_sampler_free(self._native)


class GrammarSampler:
    """A sampler chain and a grammar, both owned.

    The chain's choice is accepted if the grammar allows it; otherwise the vocabulary is filtered and the chain chooses
    from the rest (source: common_sampler_sample, common/sampling.cpp@0.3.36). If no stage removes candidates, both
    draws together equal one from the allowed tokens: p + (1 - allowed) * p / allowed = p / allowed.
    With `is_filtered_first` the first draw is omitted: mirostat adapts to a draw even if its token is rejected.
    """

    def __init__(
        self, candidates: Candidates, chain: NativeSampler, grammar: Grammar, *, is_filtered_first: bool
    ) -> None:
        self._candidates = candidates
        self._chain = chain
        self._grammar = grammar
        self._owned = ExitStack()
        self._owned.callback(grammar.close)
        self._owned.callback(lib.llama_sampler_free, chain)
        self._is_filtered_first = is_filtered_first

    def sample(self, row: int) -> int:
        """Return the token for `row`. Raises RequestError if the grammar allows no token of this vocabulary."""
        token = None if self._is_filtered_first else self._candidates.choose(self._chain, row)
        if token is None or not self._grammar.allows(token):
            token = self._candidates.choose_fit(self._chain, row, self._grammar.allowed(), self._grammar.is_text)
        if token is None:
            raise RequestError("The grammar allows no token of this model here.", "Change the grammar or logit_bias.")
        self._grammar.accept(token)
        lib.llama_sampler_accept(self._chain, token)
        return token

    def accept(self, token: int) -> None:
        """Record `token`. Raises RequestError if the grammar does not allow it."""
        if not self._grammar.allows(token):
            raise RequestError("The grammar does not allow reasoning to end here.", "Change the grammar or the budget.")
        self._grammar.accept(token)
        lib.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        self._owned.close()


def _asked_tokens(vocab: int, text: str) -> NDArray[np.int32]:
    """Return the tokens that `text` asks for by id, or by name outside of quotes, ascending."""
    n_vocab = lib.llama_vocab_n_tokens(vocab)
    found = _TOKEN.findall(text)
    asked = {int(number) for number, _ in found if number and int(number) < n_vocab}
    for name in {name for _, name in found if name}:
        tokens = tokenize(vocab, name, add_special=False, parse_special=True)
        asked.update(tokens if len(tokens) == 1 else ())
    return np.array(sorted(asked), np.int32)
