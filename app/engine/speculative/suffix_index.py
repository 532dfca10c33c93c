"""The index of a growing text that finds drafts in it: an online suffix automaton with counts. Pure.

The automaton (Blumer et al. 1985) finds the longest suffix of the text that occurred before, and counts tell its most
frequent continuation, as in SuffixDecoding (arXiv 2411.04975). Independent of what a draft costs and of how it is
verified.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_COUNTED_SUFFIXES = 8  # suffixes of the text, longest first, that count a new occurrence


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow, and the probability that `source` gives each of them if those before it are right. For a
    lookup, `chances[i]` is the share of occurrences that continue with `tokens[i]`, and `n_matched` the length in
    tokens of the suffix that occurred before; a draft model has no match."""

    tokens: tuple[int, ...]
    chances: tuple[float, ...]
    n_matched: int
    source: str = ""

    def truncated(self, n_tokens: int) -> Draft:
        return Draft(self.tokens[:n_tokens], self.chances[:n_tokens], self.n_matched, self.source)

    def before_media(self) -> Draft:
        """Return the draft up to the first placeholder of a picture or sound, which nobody writes."""
        n_text = next((index for index, token in enumerate(self.tokens) if token < 0), len(self.tokens))
        return self if n_text == len(self.tokens) else self.truncated(n_text)

    def of_source(self, source: str) -> Draft:
        return Draft(self.tokens, self.chances, self.n_matched, source)


NO_DRAFT = Draft((), (), 0)


@dataclass(slots=True)
class _State:
    """The suffixes with one set of end positions, the first of which is `end`; the longest has `length` tokens."""

    length: int
    link: int
    following: dict[int, int]
    end: int = 0
    count: int = 1
    used: int = 0


class SuffixIndex:
    """An index of a growing text. `extend` takes O(1) amortised a token, `propose` O(tokens proposed). `n_matched` is
    the length of the longest suffix of the text that occurred before."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._states = [_State(0, -1, {})]
        self._last = 0
        self._n_tokens = 0
        self.n_matched = 0
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._append(token)

    def __len__(self) -> int:
        return self._n_tokens

    @property
    def first_end(self) -> int:
        """The number of tokens of the text up to the first occurrence of that suffix."""
        return self._states[self._longest_repeated()].end

    def propose(self, n_tokens: int) -> Draft:
        """Return at most `n_tokens` that may follow the text: the most frequent continuation of the longest repeated
        suffix, and of equally frequent ones the latest."""
        return self.continuation(self._longest_repeated(), self.n_matched, n_tokens)

    def advance(self, place: int, n_matched: int, token: int) -> tuple[int, int]:
        """Return where another text is after `token` if it was at `place`, and how many of its tokens match there.
        Without a match it is at place 0."""
        states = self._states
        while place and token not in states[place].following:
            place = states[place].link
            n_matched = min(n_matched, states[place].length)  # a state may have been split since
        after = states[place].following.get(token)
        return (0, 0) if after is None else (after, n_matched + 1)

    def continuation(self, place: int, n_matched: int, n_tokens: int) -> Draft:
        """Return at most `n_tokens` that may follow `place`, where `n_matched` tokens match."""
        state = self._states[place]
        tokens: list[int] = []
        chances: list[float] = []
        while len(tokens) < n_tokens:
            while not state.following and state.length:  # the end of the text has no continuation, a suffix of it has
                state = self._states[state.link]
            if not state.length:
                break
            following = [(token, self._states[index]) for token, index in state.following.items()]
            token, state = max(following, key=lambda item: (item[1].count, item[1].used))
            tokens.append(token)
            chances.append(state.count / sum(other.count for _, other in following))
        return Draft(tuple(tokens), tuple(chances), n_matched)

    def _longest_repeated(self) -> int:
        return max(0, self._states[self._last].link)

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
            # Only the longest suffixes count the new occurrence: a repetitive text has thousands of them.
            suffix = newest.link
            for _ in range(MAX_COUNTED_SUFFIXES):
                if suffix <= 0:
                    break
                state = states[suffix]
                state.count += 1
                state.used = n_tokens
                suffix = state.link
        self._last, self.n_matched = new, states[newest.link].length

    def _suffix_state(self, state: int, token: int) -> int:
        """Return the state of the longest repeated suffix, splitting off a clone if none ends exactly there."""
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


class SuffixReader:
    """The place of another text in an index: after the longest of its suffixes that the index contains. The index may
    grow meanwhile; a longer suffix is then found as the text continues. O(1) amortised a token."""

    def __init__(self, index: SuffixIndex) -> None:
        self._index = index
        self._place = 0
        self.n_matched = 0

    def read(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._place, self.n_matched = self._index.advance(self._place, self.n_matched, token)

    def propose(self, n_tokens: int) -> Draft:
        """Return at most `n_tokens` that followed that suffix, chosen as in `SuffixIndex.propose`."""
        return self._index.continuation(self._place, self.n_matched, n_tokens)
