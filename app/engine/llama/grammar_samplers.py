"""Grammars over a vocabulary, and the sampler that they bind: for a whole answer, or for each of its tool calls.

Independent of how grammars are generated and of when one binds.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Choice
from app.engine.grammar.gbnf import check_grammar
from app.engine.llama.native import lib, native_log, tokenize
from app.engine.llama.samplers import Candidates, LlamaSampler, allowed_by
from app.protocol.errors import RequestError

# Bytes of a character by the upper half of its first byte; 0 where none begins (source: RFC 3629, section 3).
_CHARACTER_BYTES = (1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 3, 4)

Tokens = NDArray[np.int32]

# Python's incremental decoder keeps the first two bytes of a surrogate and refuses only its third.
_BEGINS_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")
# GBNF's strings, character classes and comments, in which nothing else begins; tokens by id and by name.
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#.*|<\[(\d+)\]>|(<[^>]*>)')


class Grammar:
    """Parser state of a GBNF text over one vocabulary, whose tokens `characters` groups and `piece` writes. Stricter
    than llama.cpp's own grammars, which let a special token pass for its name and some invalid UTF-8 for a character:
    here the text is what clients get, in whole characters. Tokens that the grammar names outside of quotes, by id or
    name, always count. Raises RequestError for a grammar that is invalid or too complex."""

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
        self._named = _named_tokens(vocab, text)
        self._named_set = frozenset(self._named.tolist())
        self._excludes_tokens = "!<" in text  # then a token may pass whatever it begins with
        self._last: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")

    def allows(self, token: int) -> bool:
        return self.is_text(token) and bool(allowed_by(self._native, np.array([token], np.int32))[0])

    def is_text(self, token: int) -> bool:
        """Return whether the text stays valid UTF-8 with `token`, or may end with it."""
        if token in self._named_set:
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
        """Return all tokens that llama.cpp's grammar allows next, ascending; some may not be text. To ask llama.cpp
        about each of 128,000 tokens takes 20 ms. A grammar that refuses a character refuses every token that begins
        with it, so tokens of a single character are asked first, and then those that may pass."""
        characters = self._characters()
        is_in_character = self._last is not None and not characters.is_whole(self._last)
        if self._excludes_tokens or is_in_character:
            possible = characters.all
        else:
            possible = characters.possible(allowed_by(self._native, characters.probes), self._named)
        return possible[allowed_by(self._native, possible)]

    def accept(self, token: int) -> None:
        """Advance by `token`; llama.cpp ends the process for one that is not allowed."""
        lib.llama_sampler_accept(self._native, token)
        self._last = token
        if token in self._named_set:
            self._decoder.reset()
        elif not self._is_eog(token):
            self._decoder.decode(self._piece(token))

    def is_complete(self) -> bool:
        ends = (lib.llama_vocab_eos(self._vocab), lib.llama_vocab_eot(self._vocab))
        return any(self.allows(token) for token in ends if token >= 0 and self._is_eog(token))

    def close(self) -> None:
        lib.llama_sampler_free(self._native)


class GrammarSampler:
    """The sampler `free`, which it owns, until a grammar is bound; then its chain chooses from what that allows.

    The chain's own choice is taken if the grammar allows it; otherwise the vocabulary is filtered and the chain chooses
    from the rest (source: common_sampler_sample, common/sampling.cpp@0.3.36). If no stage removes candidates, both
    draws together equal one from the allowed tokens: p + (1 - allowed) * p / allowed = p / allowed.
    With `is_filtered_first` the first draw is omitted: mirostat adapts to a draw even if its token is rejected.
    """

    def __init__(
        self,
        free: LlamaSampler,
        candidates: Candidates,
        new_grammar: Callable[[str, Collection[int]], Grammar],
        *,
        is_filtered_first: bool,
    ) -> None:
        self._free = free
        self._candidates = candidates
        self._new_grammar = new_grammar
        self._is_filtered_first = is_filtered_first
        self._grammar: Grammar | None = None
        self._bound = ExitStack()

    def sample(self, row: int) -> int:
        """Return the token for `row`. Raises RequestError if the bound grammar allows no token of this vocabulary."""
        grammar = self._grammar
        if grammar is None:
            return self._free.sample(row)
        token = None if self._is_filtered_first else self._free.choose(row)
        if token is None or not grammar.allows(token):
            token = self._candidates.choose_fit(self._free.chain, row, grammar.allowed(), grammar.is_text)
        if token is None:
            raise RequestError("The grammar allows no token of this model here.", "Change the grammar or logit_bias.")
        grammar.accept(token)
        self._free.accept(token)
        return token

    def foresee(self, logits: NDArray[np.float32], n_ahead: int) -> tuple[int, float] | None:
        """Return what `free` foresees; None under a grammar, which may refuse it."""
        return self._free.foresee(logits, n_ahead) if self._grammar is None else None

    def choice(self, row: int) -> Choice:
        """Return what may be chosen for `row`: of the tokens that the grammar allows, what the chain leaves."""
        if (grammar := self._grammar) is None:
            return self._free.choice(row)
        return self._candidates.choice(self._free.chain, row, grammar.allowed(), grammar.is_text)

    def sample_other(self, row: int, refused: Collection[int]) -> int:
        chain, every = self._free.chain, self._candidates.all
        token = self._candidates.choose_fit(chain, row, every, lambda token: token not in refused)
        if token is None:
            raise RequestError("No token of this model is left here.", "Change logit_bias.")
        self._free.accept(token)
        return token

    def accept(self, token: int) -> None:
        if self._grammar is not None:
            if not self._grammar.allows(token):
                cause = "The grammar does not allow reasoning to end here."
                raise RequestError(cause, "Change the grammar or the budget.")
            self._grammar.accept(token)
        self._free.accept(token)

    def bind(self, grammar: str, visible: Collection[int] = ()) -> None:
        new = self._new_grammar(grammar, visible) if grammar else None
        self._bound.close()
        self._grammar = new
        if new is not None:
            self._bound.callback(new.close)

    def is_complete(self) -> bool:
        return self._grammar is None or self._grammar.is_complete()

    def close(self) -> None:
        self._bound.close()
        self._grammar = None
        self._free.close()


def _named_tokens(vocab: int, text: str) -> NDArray[np.int32]:
    """Return the tokens that `text` names by id, or by their name outside of quotes, ascending."""
    n_vocab = lib.llama_vocab_n_tokens(vocab)
    found = _TOKEN.findall(text)
    named = {int(number) for number, _ in found if number and int(number) < n_vocab}
    for name in {name for _, name in found if name}:
        tokens = tokenize(vocab, name, add_special=False, parse_special=True)
        named.update(tokens if len(tokens) == 1 else ())
    return np.array(sorted(named), np.int32)


class FirstCharacters:
    """The tokens of a vocabulary, grouped by first character: one token of that single character stands for all of
    them. `pieces` are their bytes, in the order of their ids. `all` are the ids. `probes` are the tokens to check: one
    for each group, then `alone`, those without such a token: parts of characters, characters that are no token
    themselves, and `ends`."""

    def __init__(self, pieces: Iterable[bytes], ends: Iterable[int]) -> None:
        alone = set(ends)
        members: dict[bytes, list[int]] = {}
        probe_of: dict[bytes, int] = {}
        whole: list[bool] = []
        for token, piece in enumerate(pieces):
            whole.append(_is_whole(piece))
            n_bytes = _CHARACTER_BYTES[piece[0] >> 4] if piece else 0
            character = piece[:n_bytes] if len(piece) >= n_bytes else b""  # none where it begins with an incomplete one
            if token in alone or not character:
                alone.add(token)
                continue
            members.setdefault(character, []).append(token)
            if piece == character:
                probe_of[character] = token
        for character in members.keys() - probe_of.keys():
            alone.update(members.pop(character))
        self._is_whole = np.array(whole, bool)
        self._group = np.full(len(whole), len(members), np.int32)  # the last group has the tokens alone
        for index, character in enumerate(members):
            self._group[members[character]] = index
        self._n_groups = len(members)
        self.all: Tokens = np.arange(len(whole), dtype=np.int32)
        self.alone: Tokens = np.array(sorted(alone), np.int32)
        probes = np.array([probe_of[character] for character in members], np.int32)
        self.probes: Tokens = np.concatenate([probes, self.alone])

    def is_whole(self, token: int) -> bool:
        """Return whether the bytes of `token` are whole characters."""
        return bool(self._is_whole[token])

    def possible(self, is_allowed: NDArray[np.bool_], always: Tokens) -> Tokens:
        """Return `always` and the tokens whose probe is allowed, ascending; `is_allowed` has an entry a probe."""
        is_possible = np.append(is_allowed[: self._n_groups], False)[self._group]
        is_possible[self.alone] = is_allowed[self._n_groups :]
        is_possible[always] = True
        return np.flatnonzero(is_possible).astype(np.int32)


def _is_whole(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
