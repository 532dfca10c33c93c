"""What probably comes next, looked up in what was already said: prompt-lookup drafts. Pure.

An online suffix automaton (Blumer et al. 1985) over a text finds the longest suffix of the text that
occurred before, and counts say how it went on, as in SuffixDecoding (arXiv 2411.04975). Knows nothing of what a draft
costs or of how it is verified.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["NO_DRAFT", "Draft", "SuffixIndex", "SuffixReader"]

MAX_COUNTED_SUFFIXES = 8  # how many suffixes of the text, longest first, count a new occurrence


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow, and how likely `source` thinks each of them where those before it are right.

    Of a lookup, `chances[i]` is the share of occurrences that went on with `tokens[i]`, and `n_matched` the length in
    tokens of the suffix that occurred before; a model has no matches.
    """

    tokens: tuple[int, ...]
    chances: tuple[float, ...]
    n_matched: int
    source: str = ""

    def cut(self, n_tokens: int) -> Draft:
        """Return the first `n_tokens` of it."""
        return Draft(self.tokens[:n_tokens], self.chances[:n_tokens], self.n_matched, self.source)

    def named(self, source: str) -> Draft:
        """Return it as one of `source`."""
        return Draft(self.tokens, self.chances, self.n_matched, source)


NO_DRAFT = Draft((), (), 0)


@dataclass(slots=True)
class _State:
    """All suffixes with the same set of end positions, the first of which is `end`; the longest has `length` tokens."""

    length: int
    link: int
    following: dict[int, int]
    end: int = 0
    count: int = 1
    used: int = 0


class SuffixIndex:
    """An index of a growing text. `extend` takes O(1) amortised a token, `propose` O(tokens proposed).

    `n_matched` is the length of the longest suffix of the text that occurred before.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._states = [_State(0, -1, {})]
        self._last = 0
        self._n_tokens = 0
        self.n_matched = 0
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append `tokens` to the text."""
        for token in tokens:
            self._append(token)

    def __len__(self) -> int:
        return self._n_tokens

    @property
    def n_before(self) -> int:
        """How many tokens of the text end with that suffix where it occurred first."""
        return self._states[self._longest_repeated()].end

    def propose(self, n_tokens: int) -> Draft:
        """Return at most `n_tokens` that may follow the text: after the longest repeated suffix, the most frequent way
        on, and of equally frequent ones the latest."""
        return self.go_on(self._longest_repeated(), self.n_matched, n_tokens)

    def follow(self, place: int, n_matched: int, token: int) -> tuple[int, int]:
        """Return where a text stands that stood at `place` and goes on with `token`, and how much of it matches there.

        Place 0 is that of a text of which nothing matches.
        """
        states = self._states
        while place and token not in states[place].following:
            place = states[place].link
            n_matched = min(n_matched, states[place].length)  # a state may have been split since
        after = states[place].following.get(token)
        return (0, 0) if after is None else (after, n_matched + 1)

    def go_on(self, place: int, n_matched: int, n_tokens: int) -> Draft:
        """Return at most `n_tokens` that may follow a text at `place`, of which `n_matched` tokens match."""
        state = self._states[place]
        tokens: list[int] = []
        chances: list[float] = []
        while len(tokens) < n_tokens and (state := self._that_went_on(state)).length:
            token, after, chance = self._likeliest(state)
            tokens.append(token)
            chances.append(chance)
            state = after
        return Draft(tuple(tokens), tuple(chances), n_matched)

    def _longest_repeated(self) -> int:
        return max(0, self._states[self._last].link)

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
        self._n_tokens = n_tokens = self._n_tokens + 1
        new, newest = len(states), _State(n_tokens, 0, {}, n_tokens, 1, n_tokens)
        states.append(newest)
        index = self._last
        while index >= 0 and token not in (state := states[index]).following:
            state.following[token] = new
            index = state.link
        if index >= 0:
            newest.link = self._suffix_state(index, token)
            self._count_suffixes(newest.link)
        self._last, self.n_matched = new, states[newest.link].length

    def _suffix_state(self, state: int, token: int) -> int:
        """Return the state of the longest repeated suffix, splitting off a clone where none ends just there."""
        states = self._states
        target = states[state].following[token]
        if states[target].length == states[state].length + 1:
            return target
        original = states[target]
        clone = len(states)
        length, following = states[state].length + 1, dict(original.following)
        states.append(_State(length, original.link, following, original.end, original.count, original.used))
        original.link = clone
        while state >= 0 and states[state].following.get(token) == target:
            states[state].following[token] = clone
            state = states[state].link
        return clone

    def _count_suffixes(self, index: int) -> None:
        states, n_tokens = self._states, self._n_tokens
        for _ in range(MAX_COUNTED_SUFFIXES):
            if index <= 0:
                return
            state = states[index]
            state.count += 1
            state.used = n_tokens
            index = state.link


class SuffixReader:
    """Another text's place in an index: behind the longest of its suffixes that the index has.

    The index may grow meanwhile; a longer suffix is then found as the text goes on. O(1) amortised a token.
    """

    def __init__(self, index: SuffixIndex) -> None:
        self._index = index
        self._place = 0
        self.n_matched = 0

    def read(self, tokens: Iterable[int]) -> None:
        """Go on with `tokens` of the text."""
        for token in tokens:
            self._place, self.n_matched = self._index.follow(self._place, self.n_matched, token)

    def propose(self, n_tokens: int) -> Draft:
        """Return at most `n_tokens` that followed that suffix, chosen as `SuffixIndex.propose` does."""
        return self._index.go_on(self._place, self.n_matched, n_tokens)
