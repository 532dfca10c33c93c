"""Notifications: one line that covers nothing, dismissed with Esc, and the list of all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.widgets import Input

from app.protocol.job import Job
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply
from tests.tui.conftest import QUICK_CLOCK
from tests.tui.model_scenes import client_with_models
from tui.widgets.notifications import Notification, NotificationBoard, line_text

SIZES = pytest.mark.parametrize("size", [(80, 24), (60, 18), (20, 6)])
LONG = "The model cannot run: its file ends too early, as a download does that was cut. Download it again."
DONE = Job(id="job-1", kind="pull", title="pull org/model:Q4_K_M", arguments={}, created_s=1.0, state="running")


def _rows(user):
    return user.screen_text.split("\n")


def _row_of(user, text):
    return next(number for number, row in enumerate(_rows(user)) if text in row)


@SIZES
async def test_a_long_notification_takes_one_row_above_the_prompt_and_covers_no_other(open_app, size):
    async with open_app(ScriptedClient(), size=size) as user:
        await user.sees("Ask something")
        user.app.screen.warn(LONG)
        await user.sees("! The m")
        # Until the model is ready, what it does stands between the two.
        await user.until(lambda: _row_of(user, "! The m") == _row_of(user, "╭") - 1, "it is not above the prompt")
        assert sum("download" in row.lower() for row in _rows(user)) <= 1


@SIZES
async def test_a_notification_on_another_screen_is_the_row_above_its_keys(open_app, size):
    async with open_app(client_with_models(), size=size) as user:
        await user.presses("f8")
        await user.sees("Jobs", "f1 help")
        user.app.screen.warn(LONG)
        await user.sees("! The m")
        assert _row_of(user, "! The m") == size[1] - 2


@pytest.mark.slow
@SIZES
async def test_a_notification_leaves_every_row_of_a_dialog_readable(open_app, size):
    async with open_app(client_with_models(), size=size) as user:
        await user.presses("f7")
        await user.sees("Plan")
        await user.presses("m")
        await user.sees("╰")
        user.app.notify(LONG, severity="error", markup=False)
        await user.sees("! The m")
        assert _row_of(user, "! The m") == size[1] - 1
        assert _row_of(user, "╰") < size[1] - 1


@pytest.mark.slow
async def test_several_notifications_are_the_newest_and_a_number_and_ctrl_l_shows_them_whole(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.sees("ready")
        for text in ("The first.", "The second.", LONG):
            user.app.screen.warn(text)
        await user.sees("! The model cannot run", "+2", "Alt+N shows all")
        assert "The first." not in user.screen_text
        await user.presses("alt+n")
        await user.sees("Notifications, newest first", "The first.", "The second.", "Download it again.")
        await user.presses("escape")
        await user.no_longer_sees("Notifications, newest first")
        assert "The model cannot run" not in user.screen_text


@pytest.mark.slow
@pytest.mark.parametrize("key", ["f5", "f6", "f7", "f8", "f9", "f10"])
async def test_escape_dismisses_the_notification_and_leaves_the_screen_so_that_what_is_typed_is_no_key(open_app, key):
    async with open_app(client_with_models(), clock=QUICK_CLOCK) as user:
        await user.presses(key)
        await user.no_longer_sees("Type a question")
        user.app.screen.inform("Loading: Esc returns to the chat.")
        await user.sees("· Loading")
        await user.presses("escape", *"dear")
        await user.sees("│ dear")
        assert "Loading: Esc" not in user.screen_text


@pytest.mark.slow
async def test_escape_leaves_a_dialog_that_opened_under_a_notification(open_app):
    async with open_app(client_with_models(), clock=QUICK_CLOCK) as user:
        await user.presses("f10", "down", "enter")
        await user.sees("Enter confirms")
        user.app.notify("Noted.", markup=False)
        await user.sees("· Noted.")
        await user.presses("escape")
        await user.no_longer_sees("Enter confirms")
        assert "Noted." not in user.screen_text


@pytest.mark.slow
async def test_escape_clears_a_search_although_a_notification_is_shown(open_app):
    async with open_app(client_with_models(), clock=QUICK_CLOCK) as user:
        await user.presses("f6", "slash", *"tin")
        await user.sees("tin")
        user.app.screen.inform("Noted.")
        await user.sees("· Noted.")
        await user.presses("escape")
        await user.until(lambda: not user.app.screen.query(Input).first().value, "the search stayed")
        assert "Noted." not in user.screen_text


@pytest.mark.slow
async def test_escape_is_for_the_screen_while_a_notification_is_too_new_to_be_noticed(open_app):
    now_s = 0.0
    async with open_app(client_with_models(), clock=lambda: now_s) as user:
        await user.presses("f8")
        await user.sees("No jobs")
        user.app.screen.inform("Noted.")
        await user.presses("escape")
        await user.sees("Type a question", "· Noted.")
        now_s = 1.0
        await user.presses("escape")
        await user.no_longer_sees("Noted.")


@pytest.mark.slow
async def test_escape_stops_an_answer_at_once_although_a_notification_is_shown(open_app):
    client = ScriptedClient(ScriptedReply(deltas=("So far", " so good"), pause_after=1))
    async with open_app(client, clock=QUICK_CLOCK) as user:
        await user.asks("hello")
        await user.sees("So far")
        user.app.screen.inform("Noted.")
        await user.sees("· Noted.")
        await user.presses("escape")
        await user.sees("stopped")
        await user.no_longer_sees("Noted.")


async def test_a_notification_goes_along_to_another_screen_and_ends_with_its_time(open_app):
    async with open_app(client_with_models()) as user:
        await user.sees("ready")
        user.app.notify("Goes along.", timeout=60, markup=False)
        user.app.notify("For a moment.", timeout=0.3, markup=False)  # the newest alone is shown, with "+1"
        await user.presses("f8")
        await user.sees("No jobs")
        await user.until(
            lambda: "Goes along." in user.screen_text and "+1" not in user.screen_text,
            "the newer notification stayed on the screen",
        )


async def test_the_list_of_notifications_is_reached_by_its_slash_word_and_may_be_empty(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.asks("/notifications")
        await user.sees("No notifications in this session.")


def test_a_repeated_text_counts_once():
    board = NotificationBoard()
    for text in ("Again.", "Other.", "Again."):
        board.add(Notification(text))
    assert (board.newest.text, board.n_others) == ("Again.", 1)
    assert [each.text for each in board.latest] == ["Again.", "Other.", "Again."]


def test_removing_a_notification_shows_the_one_before_it():
    board = NotificationBoard()
    first, second = Notification("First."), Notification("Second.")
    board.add(first)
    board.add(second)
    board.remove(second)
    assert (board.newest, board.n_others) == (first, 0)
    board.dismiss()
    assert board.newest is None


@given(text=st.text(max_size=200), n_others=st.integers(0, 99), n_cells=st.integers(20, 200))
def test_the_line_fits_and_names_the_number_of_others(text, n_others, n_cells):
    line = line_text(Notification(text), n_others, n_cells)
    assert cell_len(line) <= n_cells
    assert "\n" not in line
    assert not n_others or f"+{n_others} " in line
