"""What probably comes next, looked up in what was already said: prompt-lookup drafts. Pure.

An online suffix automaton (Blumer et al. 1985) over prompt and answer finds the longest suffix of the text that
occurred before, and counts say how it went on, as in SuffixDecoding (arXiv 2411.04975). Knows nothing of what a draft
costs or of how it is verified.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Draft", "SuffixIndex"]

MAX_COUNTED_SUFFIXES = 32  # how many suffixes of the text, longest first, count a new occurrence


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow. `chances[i]` is the share of occurrences that went on with `tokens[i]`.

    `n_matched` is the length in tokens of the suffix that occurred before.
    """

    tokens: tuple[int, ...]
    chances: tuple[float, ...]
    n_matched: int

    def cut(self, n_tokens: int) -> Draft:
        """Return the first `n_tokens` of it."""
        return Draft(self.tokens[:n_tokens], self.chances[:n_tokens], self.n_matched)


@dataclass(slots=True)
class _State:
    """All suffixes with the same set of end positions; the longest has `length` tokens."""

    length: int
    link: int
    following: dict[int, int]
    count: int = 1
    used: int = 0


class SuffixIndex:
    """An index of a growing text. `extend` takes O(1) amortised a token, `propose` O(tokens proposed)."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._states = [_State(0, -1, {})]
        self._last = 0
        self._n_tokens = 0
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append `tokens` to the text."""
        for token in tokens:
            self._append(token)

    @property
    def n_matched(self) -> int:
        """The length of the longest suffix of the text that occurred before."""
        return self._longest_repeated().length

    def propose(self, n_tokens: int) -> Draft:
        """Return at most `n_tokens` that may follow the text: after the longest repeated suffix, the most frequent way
        on, and of equally frequent ones the latest."""
        state = self._longest_repeated()
        n_matched = state.length
        tokens: list[int] = []
        chances: list[float] = []
        while len(tokens) < n_tokens and (state := self._that_went_on(state)).length:
            token, after, chance = self._likeliest(state)
            tokens.append(token)
            chances.append(chance)
            state = after
        return Draft(tuple(tokens), tuple(chances), n_matched)

    def _longest_repeated(self) -> _State:
        return self._states[max(0, self._states[self._last].link)]

    def _that_went_on(self, state: _State) -> _State:
        """Return the longest suffix of `state` that something followed; the text's own end has nothing after it."""
        while not state.following and state.length:
            state = self._states[state.link]
        return state

    def _likeliest(self, state: _State) -> tuple[int, _State, float]:
        ways = [(token, self._states[index]) for token, index in state.following.items()]
        token, after = max(ways, key=lambda way: (way[1].count, way[1].used))
        return token, after, after.count / sum(way[1].count for way in ways)

    def _append(self, token: int) -> None:
        states = self._states
        self._n_tokens += 1
        new = len(states)
        states.append(_State(self._n_tokens, 0, {}, used=self._n_tokens))
        state = self._last
        while state >= 0 and token not in states[state].following:
            states[state].following[token] = new
            state = states[state].link
        if state >= 0:
            states[new].link = self._suffix_state(state, token)
        self._last = new
        self._count_suffixes(states[new].link)

    def _suffix_state(self, state: int, token: int) -> int:
        """Return the state of the longest repeated suffix, splitting off a clone where none ends just there."""
        states = self._states
        target = states[state].following[token]
        if states[target].length == states[state].length + 1:
            return target
        original = states[target]
        clone = len(states)
        states.append(
            _State(states[state].length + 1, original.link, dict(original.following), original.count, original.used)
        )
        original.link = clone
        while state >= 0 and states[state].following.get(token) == target:
            states[state].following[token] = clone
            state = states[state].link
        return clone

    def _count_suffixes(self, state: int) -> None:
        for _ in range(MAX_COUNTED_SUFFIXES):
            if state <= 0:
                return
            self._states[state].count += 1
            self._states[state].used = self._n_tokens
            state = self._states[state].link
