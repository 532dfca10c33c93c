"""Which part of a long chat is on the screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.widgets import Static

from app.chat.branches import TranscriptEntry
from app.chat.conversation import Message
from tui.chat.transcript.message_view import AnswerView
from tui.chat.transcript.transcript import STEP, MessageWindow, SteadyScroll, Transcript


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


class _Rows(App[None]):
    CSS = "Static { height: auto; }"

    def compose(self):
        with SteadyScroll():
            yield Static("\n".join(map(str, range(2000))))


async def test_what_fits_stays_at_the_bottom_when_the_end_is_no_longer_followed():
    class _Row(App[None]):
        def compose(self):
            with SteadyScroll():
                yield Static("one row")

    async with _Row().run_test(size=(40, 20)) as pilot:
        scroll, row = pilot.app.query_one(SteadyScroll), pilot.app.query_one(Static)
        for act in (scroll.follow, scroll.release_anchor, lambda: scroll.hold(row, 0)):
            act()
            scroll.refresh(layout=True)
            await pilot.pause()
            assert row.region.bottom == scroll.region.bottom


async def test_the_scroll_bar_is_drawn_again_only_when_its_thumb_moves():
    async with _Rows().run_test(size=(40, 20)) as pilot:
        scroll = pilot.app.query_one(SteadyScroll)
        await pilot.pause()
        bar = scroll.vertical_scrollbar
        looks = []
        for y in (0, 1, 1000, 0):
            scroll.scroll_to(y=y, animate=False)
            await pilot.pause()
            looks.append(bar.render_lines(bar.outer_size.region))
    at_top, one_row_below, in_the_middle, at_top_again = looks
    assert [*map(id, at_top)] == [*map(id, one_row_below)]
    assert [*map(list, in_the_middle)] != [*map(list, at_top)] == [*map(list, at_top_again)]


class TranscriptApp(App[None]):
    def compose(self) -> ComposeResult:
        yield Transcript()


async def test_an_answer_that_ends_after_the_app_took_the_transcript_apart_is_no_error():
    async with TranscriptApp().run_test() as pilot:
        transcript = pilot.app.query_one(Transcript)
        await transcript.remove_children()
        await transcript.clear()
        assert transcript.is_greeting


def _answer(content: str, *, is_running: bool = False, reasoning: str = "") -> TranscriptEntry:
    message = Message(role="assistant", content=content, reasoning=reasoning, id=1, parent_id=None)
    return TranscriptEntry(message=message, is_running=is_running)


@pytest.mark.parametrize("reasoning", ["", "Hmm."])
async def test_an_answer_that_was_removed_with_its_parts_can_still_grow_and_end(reasoning: str):
    async with TranscriptApp().run_test() as pilot:
        transcript = pilot.app.query_one(Transcript)
        await transcript.show([_answer("", is_running=True)])
        view = pilot.app.query_one(AnswerView)
        await view.remove()
        await view.write(_answer("Yes.", is_running=True, reasoning=reasoning), "Yes.")
        await view.show(_answer("Yes.", reasoning=reasoning))
        assert not transcript.query(AnswerView)


async def test_an_answer_that_ends_while_everything_is_removed_draws_nothing():
    async with TranscriptApp().run_test() as pilot:
        transcript = pilot.app.query_one(Transcript)
        removal = transcript.remove()
        await transcript.show([_answer("Yes.")])
        await removal
        assert not transcript.query(AnswerView)
