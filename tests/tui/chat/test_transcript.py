"""Which part of a long chat is on the screen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tui.chat.transcript import STEP, MessageWindow


@given(st.integers(0, 50), st.data())
def test_a_window_at_a_position_has_it_and_stays_within_the_chat(n_messages, data):
    position = data.draw(st.integers(0, n_messages))
    window = MessageWindow.at(position, n_messages)
    assert 0 <= window.first <= window.last <= n_messages
    assert len(window) == min(STEP, n_messages)
    assert position in window or position == n_messages


@given(st.integers(1, 50), st.data())
def test_going_on_in_both_directions_shows_all(n_messages, data):
    window = MessageWindow.at(data.draw(st.integers(0, n_messages)), n_messages)
    for _ in range(n_messages):
        window = window.earlier().later(n_messages)
    assert window == MessageWindow(0, n_messages)


@given(*[st.integers(0, 20)] * 4)
def test_what_two_windows_have_in_common_is_in_both(a, b, c, d):
    one, other = MessageWindow(min(a, b), max(a, b)), MessageWindow(min(c, d), max(c, d))
    common = one.common(other)
    assert {n for n in range(21) if n in common} == {n for n in range(21) if n in one and n in other}
    assert other.first <= common.first <= common.last <= other.last


def test_a_chat_that_became_shorter_cuts_its_window():
    assert MessageWindow(2, 8).cut(5) == MessageWindow(2, 5)
    assert MessageWindow(4, 8).cut(1) == MessageWindow(1, 1)
