"""Attachments that are opened: read, edited, put back into the prompt."""

from __future__ import annotations

import pytest

from app.chat.conversation import Attachment
from tests.app.client.scripted_client import ScriptedClient
from tui.chat.composer.attachment_bar import MAX_EDITED_CHARACTERS

LINES = "\n".join(f"line {number}" for number in range(13))


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
