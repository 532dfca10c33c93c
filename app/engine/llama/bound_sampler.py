"""A sampler whose text is bound by one grammar after another, and free in between: for the tool calls of an answer.

Owns which grammar binds. Independent of when one does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack

from app.engine.llama.native import lib
from app.engine.llama.samplers import Candidates, Grammar, LikeliestSampler, LlamaSampler
from app.protocol.errors import RequestError


class BoundSampler:
    """A sampler that is `free` until it is bound; then its chain chooses from what the grammar allows.

    `is_filtered_first` is as for GrammarSampler, and so is what is chosen.
    """

    def __init__(
        self,
        free: LlamaSampler | LikeliestSampler,
        candidates: Candidates,
        new_grammar: Callable[[str, Collection[int]], Grammar],
        *,
        is_filtered_first: bool,
    ) -> None:
        self._free = free
        self._candidates = candidates
        self._chain = free.chain
        self._new_grammar = new_grammar
        self._is_filtered_first = is_filtered_first
        self._grammar: Grammar | None = None
        self._owned = ExitStack()
        self._owned.callback(free.close)

    def sample(self, row: int) -> int:
        """Return the token for `row`. Raises RequestError if a bound grammar allows no token of this vocabulary."""
        grammar = self._grammar
        if grammar is None:
            return self._free.sample(row)
        token = None if self._is_filtered_first else self._free.choose(self._candidates, row)
        if token is None or not grammar.allows(token):
            token = self._candidates.choose_fit(self._chain, row, grammar.allowed(), grammar.is_text)
        if token is None:
            raise RequestError("The grammar of a call allows no token of this model here.", "Change logit_bias.")
        grammar.accept(token)
        lib.llama_sampler_accept(self._chain, token)
        return token

    def sample_other(self, row: int, refused: Collection[int]) -> int:
        """Return a token for `row` that is none of `refused`, of which penalties know as if they had been written."""
        token = self._candidates.choose_fit(self._chain, row, self._candidates.all, lambda token: token not in refused)
        if token is None:
            raise RequestError("No token of this model is left here.", "Change logit_bias.")
        lib.llama_sampler_accept(self._chain, token)
        return token

    def accept(self, token: int) -> None:
        """Record `token`. Raises RequestError if a bound grammar does not allow it."""
        if self._grammar is not None:
            if not self._grammar.allows(token):
                raise RequestError("The grammar of calls does not allow reasoning to end here.", "Change the budget.")
            self._grammar.accept(token)
        self._free.accept(token)

    def bind(self, grammar: str, visible: Collection[int] = ()) -> None:
        """Allow what `grammar` allows from now on, with "" anything. Raises RequestError as Grammar does."""
        new = self._new_grammar(grammar, visible) if grammar else None
        self._release()
        self._grammar = new

    def is_complete(self) -> bool:
        return self._grammar is None or self._grammar.is_complete()

    def close(self) -> None:
        self._release()
        self._owned.close()

    def _release(self) -> None:
        if self._grammar is not None:
            self._grammar.close()
            self._grammar = None
