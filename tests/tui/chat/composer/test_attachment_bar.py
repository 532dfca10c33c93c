"""Attachments that are opened: read, edited, put back into the prompt."""

from __future__ import annotations

import re

import pytest

from app.chat.conversation import Attachment
from tests.app.client.scripted_client import ScriptedClient
from tui.chat.composer.attachment_bar import MAX_EDITED_CHARACTERS, n_fitting
from tui.chat.transcript.message_view import label_rows

LINES = "\n".join(f"line {number}" for number in range(13))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (60, 18)])
async def test_a_paste_of_13_lines_can_be_opened_and_edited(open_app, size):
    client = ScriptedClient()
    async with open_app(client, size) as user:
        await user.pastes(LINES)
        await user.sees("[pasted 1 · 26 tokens, 1 % of the context ×]")
        await user.presses("ctrl+l")
        await user.sees("line 0", "line 6", "Ctrl+S saves")
        await user.types("a new ")
        await user.presses("ctrl+s")
        await user.no_longer_sees("Ctrl+S saves")
        await user.sees("[pasted 1 · 28 tokens, 1 % of the context ×]")
        await user.asks("Why?")
        await user.sees("Hello.")
    assert client.requests[0][0].content == f"pasted 1:\n```\na new {LINES}\n```\n\nWhy?"


@pytest.mark.slow
async def test_a_click_opens_an_attachment_and_escape_loses_no_change_unasked(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.pastes(LINES)
        await user.sees("[pasted 1")
        await user.pilot.click("AttachmentBar Static", offset=(3, 0))
        await user.sees("line 12")
        await user.types("x")
        await user.presses("escape")
        await user.sees("The text was changed: Ctrl+S saves it")
        await user.presses("escape")
        await user.no_longer_sees("line 12")
        await user.presses("ctrl+l")
        await user.sees("line 12")
        assert "xline 0" not in user.screen_text
        await user.presses("escape")
        await user.no_longer_sees("line 12")


@pytest.mark.slow
async def test_a_paste_is_put_into_the_prompt_where_the_cursor_is(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.types("Before ")
        await user.pastes(LINES)
        await user.sees("[pasted 1")
        await user.presses("ctrl+l")
        await user.sees("line 12")
        await user.presses("ctrl+l")
        await user.no_longer_sees("pasted 1")
        await user.types(" after")
        await user.presses("enter")
        await user.sees("Hello.")
    assert client.requests[0][0].content == f"Before {LINES} after"


@pytest.mark.slow
async def test_one_of_several_attachments_is_chosen_and_removed(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.pastes(LINES)
        await user.pastes(LINES.upper())
        await user.sees("[pasted 1", "[pasted 2")
        await user.presses("ctrl+l")
        await user.sees("Open an attachment", "1  pasted 1", "2  pasted 2")
        await user.presses("2")
        await user.sees("LINE 12")
        await user.presses("ctrl+r")
        await user.no_longer_sees("pasted 2")
        await user.sees("[pasted 1")
        await user.asks("/attachment pasted 1")
        await user.sees("line 12")


@pytest.mark.slow
async def test_an_emptied_attachment_is_none_and_without_any_there_is_nothing_to_open(open_app):
    async with open_app(ScriptedClient()) as user:
        await user.pastes(LINES)
        await user.sees("[pasted 1")
        await user.presses("ctrl+l")
        await user.sees("line 12")
        await user.presses("f7", "backspace", "ctrl+s")
        await user.no_longer_sees("pasted 1")
        await user.presses("ctrl+l")
        await user.sees("Nothing is attached yet")


async def test_what_a_text_field_cannot_show_in_time_is_not_opened(open_app):
    async with open_app(ScriptedClient()) as user:
        user.app.screen.composer.add([Attachment("big.log", "x" * (MAX_EDITED_CHARACTERS + 1))])
        await user.sees("[big.log")
        await user.presses("ctrl+l")
        await user.sees("big.log has 300,001 characters")


@pytest.mark.slow
async def test_a_hostile_text_is_shown_and_saved_without_its_control_characters(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        user.app.screen.composer.add([Attachment("[red]evil\x1b]0;x\x07", "a\x1b[31mb [bold]c[/bold]")])
        await user.sees("[[red]evil")
        await user.presses("ctrl+l")
        await user.sees("a[31mb [bold]c[/bold]", "─ [red]evil")
        await user.types("x")
        await user.presses("ctrl+s")
        await user.no_longer_sees("Ctrl+S saves")
        await user.asks("Go.")
        await user.sees("Hello.")
    assert "xa[31mb [bold]c[/bold]" in client.requests[0][0].content


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (40, 24), (120, 40)])
async def test_all_attachments_are_seen_or_counted(open_app, size):
    async with open_app(ScriptedClient(), size) as user:
        for number in range(1, 15):
            await user.pastes(LINES)
            await user.until(lambda number=number: len(user.app.screen.composer.attachments) == number, "not attached")
        await user.sees("more (Ctrl+L)")
        rows = [row for row in user.screen_text.splitlines() if "[pasted" in row or "more (Ctrl+L)" in row]
        assert len(rows) <= 3
        assert all(len(row) < size[0] for row in rows)
        n_shown, n_more = "".join(rows).count("×]"), int(re.search(r"\+(\d+) more", "".join(rows))[1])
        assert "".join(rows).count("[pasted") == n_shown
        assert n_shown + n_more == 14
        await user.presses("ctrl+l")
        await user.sees("Open an attachment")
        await user.presses("escape")
        for _ in range(n_more + 1):
            await user.presses("backspace")  # in an empty prompt: the last one
        await user.no_longer_sees("more (Ctrl+L)")
        assert user.screen_text.count("[pasted") == n_shown - 1
        await user.pilot.resize_terminal(200, 40)
        await user.pilot.pause()
        assert user.screen_text.count("[pasted") == n_shown - 1


@pytest.mark.slow
async def test_a_name_longer_than_the_row_keeps_its_cross(open_app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "long" * 30 + ".txt"
    (tmp_path / name).write_text("x")
    async with open_app(ScriptedClient()) as user:
        await user.asks(f"/attach {name}")
        await user.sees("… ×]")
        width = user.app.screen.query_one("AttachmentChip").size.width
        await user.pilot.click("AttachmentChip", offset=(width - 2, 0))
        await user.no_longer_sees("×]")


@pytest.mark.parametrize(
    ("widths", "n_columns", "n_shown"),
    [
        ((), 80, 0),
        ((10,) * 4, 80, 4),
        ((26,) * 10, 80, 8),
        ((26,) * 9, 80, 9),
        ((26,) * 6, 80, 6),
        ((78,) * 4, 80, 2),
        ((500,), 80, 1),
    ],
)
def test_chips_fill_three_rows(widths, n_columns, n_shown):
    assert n_fitting(widths, n_columns) == n_shown


@pytest.mark.slow
@pytest.mark.parametrize("n_columns", [24, 40, 60, 80, 120])
async def test_labels_of_a_question_are_whole_at_any_width(open_app, n_columns: int):
    async with open_app(ScriptedClient(), (n_columns, 30)) as user:
        names = [f"the notes of day {number}.txt" for number in range(1, 6)]
        user.app.screen.composer.add([Attachment(name, "word " * 300) for name in names])
        await user.asks("Why are they so?")
        await user.sees("Hello.")
        await user.presses("ctrl+home")
        rows = [row.strip().lstrip("▌").strip() for row in user.screen_text.splitlines()]
        labels = [row for row in rows if "[the notes" in row]
        assert len(labels) in (2, 3, 5)  # some stand side by side
        assert all(row.startswith("[") and row.endswith("]") for row in labels)
        assert "".join(labels).count("[") == "".join(labels).count("]") == 5
        assert not any("characters]" in row and "[" not in row for row in rows)


def test_a_label_longer_than_the_row_is_cut_and_stays_one_row():
    labels = ["a.txt, 3 characters", "日本語の長い名前.txt, 12 characters", "b, 1 page"]
    assert label_rows(labels, 20) == ["[a.txt, 3 characte…]", "[日本語の長い名前.…]", "[b, 1 page]"]
