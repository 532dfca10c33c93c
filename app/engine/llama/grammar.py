"""Sampling under a grammar: the tokens it allows, and the chain's choice among them.

Owns native grammars. Independent of how grammars are generated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from app.engine.grammar.first_characters import FirstCharacters
from app.engine.llama.native import NativeSampler, lib, native_log
from app.engine.llama.samplers import Candidates, allowed_by
from app.engine.llama.tokenizer import tokenize
from app.engine.loop.sampling import check_grammar
from quantizer.errors import RequestError

__all__ = ["Grammar", "GrammarSampler"]

_TOKEN_BY_ID, _TOKEN_BY_NAME = re.compile(r"<\[(\d+)\]>"), re.compile(r"(?=(<[^>]*>))")


class Grammar:
    """Parser state of a GBNF text over one vocabulary, whose tokens `characters` groups.

    Raises RequestError for a text that is invalid or too complex.
    """

    def __init__(self, vocab: int, text: str, characters: Callable[[], FirstCharacters]) -> None:
        check_grammar(text)
        self._native = lib.llama_sampler_init_grammar(vocab, text.encode(), b"root")
        if not self._native:
            cause = f"The grammar is not valid GBNF: {native_log().last_lines(1)}"
            raise RequestError(cause, "It needs a rule named root.")
        self._characters = characters
        self._named = _named_tokens(vocab, text)
        self._excludes_tokens = "!<" in text  # then it allows tokens whatever they begin with
        self._last: int | None = None

    def allows(self, token: int) -> bool:
        """Return whether `token` may come next."""
        return bool(allowed_by(self._native, np.array([token], np.int32))[0])

    def allowed(self) -> NDArray[np.int32]:
        """Return all tokens that may come next, ascending."""
        possible = self._possible()
        return possible[allowed_by(self._native, possible)]

    def accept(self, token: int) -> None:
        """Advance by `token`; one that is not allowed would abort the process."""
        lib.llama_sampler_accept(self._native, token)
        self._last = token

    def close(self) -> None:
        lib.llama_sampler_free(self._native)

    def _possible(self) -> NDArray[np.int32]:
        """Return a superset of the tokens that may come next."""
        characters = self._characters()
        is_in_character = self._last is not None and not characters.is_whole(self._last)
        if self._excludes_tokens or is_in_character:
            return characters.all
        return characters.possible(allowed_by(self._native, characters.probes), self._named)


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
            token = self._choose_allowed(row)
        self._grammar.accept(token)
        lib.llama_sampler_accept(self._chain, token)
        return token

    def close(self) -> None:
        self._owned.close()

    def _choose_allowed(self, row: int) -> int:
        allowed = self._grammar.allowed()
        token = self._candidates.choose_from(self._chain, row, allowed) if len(allowed) else None
        if token is None:
            raise RequestError("The grammar allows no token of this model here.", "Change the grammar or logit_bias.")
        return token


def _named_tokens(vocab: int, text: str) -> NDArray[np.int32]:
    """Return a superset of the tokens that `text` names, by id or by text."""
    n_vocab = lib.llama_vocab_n_tokens(vocab)
    named = {int(token) for token in _TOKEN_BY_ID.findall(text) if int(token) < n_vocab}
    for name in set(_TOKEN_BY_NAME.findall(text)):
        tokens = tokenize(vocab, name, add_special=False, parse_special=True)
        named.update(tokens if len(tokens) == 1 else ())
    return np.array(sorted(named), np.int32)
