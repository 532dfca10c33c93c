from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.engine.speculative.suffix_index import SuffixIndex, SuffixReader


def longest_repeated_suffix(tokens: list[int]) -> int:
    """Return the length of the longest suffix that also ends somewhere before, by trying them all."""
    for n in range(len(tokens) - 1, 0, -1):
        suffix = tokens[-n:]
        if any(tokens[begin : begin + n] == suffix for begin in range(len(tokens) - n)):
            return n
    return 0


def test_nothing_repeated_gives_no_draft() -> None:
    assert SuffixIndex([1, 2, 3]).propose(8).tokens == ()
    assert SuffixIndex().propose(8).tokens == ()


def test_a_repeated_begin_is_continued_as_before() -> None:
    draft = SuffixIndex([5, 6, 7, 8, 9, 1, 5, 6]).propose(3)
    assert draft.tokens == (7, 8, 9)
    assert draft.chances == (1.0, 1.0, 1.0)
    assert draft.n_matched == 2


def test_the_longest_context_decides_and_not_the_most_frequent() -> None:
    draft = SuffixIndex([1, 2, 3, 9, 2, 4, 9, 2, 4, 8, 1, 2]).propose(1)
    assert draft.tokens == (3,)


def test_of_two_continuations_the_frequent_one_is_proposed_with_its_share() -> None:
    draft = SuffixIndex([7, 1, 0, 7, 2, 5, 7, 2, 6, 7]).propose(1)
    assert draft.tokens == (2,)
    assert draft.chances == (2 / 3,)


def test_of_equally_frequent_continuations_the_latest_is_proposed() -> None:
    assert SuffixIndex([7, 1, 0, 7, 2, 5, 7]).propose(1).tokens == (2,)


def test_a_draft_continues_past_the_end_of_the_text() -> None:
    assert SuffixIndex([1, 2, 1, 2]).propose(5).tokens == (1, 2, 1, 2, 1)


def test_a_copy_of_a_long_text_takes_one_pass_for_each_full_draft() -> None:
    text = [(n * 7919) % 1009 for n in range(500)]
    index, n_done, n_passes = SuffixIndex(text), 0, 0
    while n_done < len(text):
        draft = index.propose(15).tokens
        n_right = next((i for i, token in enumerate(draft) if text[n_done + i : n_done + i + 1] != [token]), len(draft))
        new = text[n_done : n_done + n_right + 1]
        index.extend(new)
        n_done += len(new)
        n_passes += 1
    assert n_passes <= len(text) / 16 + 3


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 6))
def test_the_matched_suffix_is_the_longest_that_occurred_before(tokens: list[int], n_tokens: int) -> None:
    draft = SuffixIndex(tokens).propose(n_tokens)
    assert draft.n_matched == longest_repeated_suffix(tokens)
    assert len(draft.tokens) <= n_tokens
    assert all(0 < chance <= 1 for chance in draft.chances)
    if draft.tokens:
        context = tokens[len(tokens) - draft.n_matched :]
        first = [*context, draft.tokens[0]]
        assert any(tokens[begin : begin + len(first)] == first for begin in range(len(tokens)))


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 30))
def test_an_index_grown_token_by_token_equals_one_made_at_once(tokens: list[int], cut: int) -> None:
    grown = SuffixIndex(tokens[:cut])
    grown.extend(tokens[cut:])
    assert grown.propose(8) == SuffixIndex(tokens).propose(8)


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=30))
def test_a_reader_is_after_the_longest_suffix_that_the_index_contains(text: list[int], other: list[int]) -> None:
    reader = SuffixReader(SuffixIndex(text))
    reader.read(other)
    ends = [other[len(other) - n :] for n in range(len(other), 0, -1)]
    longest = next((end for end in ends if any(text[i : i + len(end)] == end for i in range(len(text)))), [])
    assert reader.n_matched == len(longest)
    proposed = reader.propose(1).tokens
    assert proposed == () or any(text[i : i + len(proposed)] == list(proposed) for i in range(len(text)))


@given(st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=8), st.lists(st.integers(0, 2), max_size=8))
def test_a_reader_of_a_growing_index_never_matches_more_than_it_contains(
    parts: list[list[int]], other: list[int]
) -> None:
    index, text, new = SuffixIndex(), [], []
    reader = SuffixReader(index)
    for part in parts:
        index.extend(part)
        text += part
        new += other
        reader.read(other)
        matched = new[len(new) - reader.n_matched :]
        assert matched == [] or any(text[i : i + len(matched)] == matched for i in range(len(text)))
