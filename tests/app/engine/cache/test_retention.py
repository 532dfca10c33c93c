"""Which saved states go first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.engine.cache.retention import StateKey, dropping_order

DOCUMENT = list(range(1000))


def _key(tokens: Sequence[int], namespace: str = "", *, is_checkpoint: bool = False) -> StateKey:
    return StateKey(namespace, np.asarray(tokens, np.int32), is_checkpoint)


def _order(*states: tuple[list[int], int], is_checkpoint: bool = False) -> list[int]:
    keys = [_key(tokens, is_checkpoint=is_checkpoint) for tokens, _ in states]
    return list(dropping_order(keys, [n_bytes for _, n_bytes in states]))


def test_states_that_share_nothing_go_by_their_last_use_whatever_their_size() -> None:
    assert _order(*[([number] * n_tokens, 8 * n_tokens) for number, n_tokens in enumerate((400, 7, 90))]) == [0, 1, 2]


def test_of_two_chats_about_a_document_the_later_one_outlives_a_chat_used_after_the_first() -> None:
    first, second = [*DOCUMENT, 7, 8], [*DOCUMENT, 9]
    other = [5] * 800
    assert _order((first, 1002), (other, 800), (second, 1001)) == [0, 1, 2]
    assert _order((other, 800), (first, 1002), (second, 1001)) == [1, 0, 2]


def test_the_last_chat_that_has_a_document_is_as_good_as_any_other() -> None:
    other = [5] * 800
    assert _order((DOCUMENT, 1000), (other, 800)) == [0, 1]


def test_the_checkpoint_behind_a_document_outlives_those_of_the_turns_after_it_but_the_last() -> None:
    ends = (20, 1000, 1040, 1100, 1160)
    order = _order(*[([*DOCUMENT, *([7] * 500)][:end], 5000) for end in ends], is_checkpoint=True)
    assert [ends[number] for number in order] == [20, 1040, 1100, 1000, 1160]


def test_the_same_tokens_under_two_names_are_one_too_many() -> None:
    assert _order(([5] * 90, 90), (DOCUMENT, 1000), (DOCUMENT, 1000)) == [1, 0, 2]


def test_states_of_another_namespace_do_not_stand_in() -> None:
    keys = [_key(DOCUMENT), _key([5] * 90), _key(DOCUMENT, "adapter")]
    assert list(dropping_order(keys, [1000, 90, 1000])) == [0, 1, 2]


def test_nothing_is_dropped_of_nothing() -> None:
    assert list(dropping_order([], [])) == []


_tokens = st.lists(st.integers(0, 2), max_size=6)


@given(st.lists(st.tuples(_tokens, st.sampled_from(["", "a"]), st.booleans(), st.integers(0, 9)), max_size=9))
def test_the_order_is_that_of_comparing_each_state_with_each_other(
    states: list[tuple[list[int], str, bool, int]],
) -> None:
    def n_spared(number: int, left: list[int]) -> int:
        tokens, _, is_checkpoint, _ = states[number]
        alike = [states[each][0] for each in left if each != number and states[each][1:3] == states[number][1:3]]
        if is_checkpoint:  # an equal one counts where it comes before in the order of the tokens
            alike = [other for other in alike if other == tokens[: len(other)] and other != tokens]
        return len(tokens) - max((_n_equal(other, tokens) for other in alike), default=0)

    keys = [_key(tokens, namespace, is_checkpoint=is_checkpoint) for tokens, namespace, is_checkpoint, _ in states]
    unique = {(key.namespace, key.is_checkpoint, key.tokens.tobytes()) for key in keys}
    if len(unique) < len(keys):  # which of two equals spares nothing is left open
        assert sorted(dropping_order(keys, [each[3] for each in states])) == list(range(len(states)))
        return
    left = list(range(len(states)))
    for dropped in dropping_order(keys, [each[3] for each in states]):
        values = {number: n_spared(number, left) / max(1, states[number][3]) for number in left}
        largest = max(values.values()) or 1.0
        scores = {number: 2 * number / len(states) + values[number] / largest for number in left}
        assert scores[dropped] == min(scores.values())
        left.remove(dropped)
    assert not left


def _n_equal(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
