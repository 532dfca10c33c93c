"""Calls of tools in the transcript: one line each, expanded by a key or a click, with what they returned."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from app.chat.conversation import Attachment, Chat, MediaFile, Message, MessageState, Transcript
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.protocol.chat import ToolCall
from app.tools.tool import FileChange, ToolOutcome, ToolResult
from tests.app.chat.attachments.files import picture_of
from tests.app.client.scripted_client import ScriptedClient

READ = ToolCall("call-1", "read_file", '{"path": "sum.py"}')
EDIT = ToolCall("call-2", "edit_file", '{"path": "sum.py", "old": "a - b", "new": "a + b"}')
RUN = ToolCall("call-3", "run_command", '{"argv": ["pytest", "-q"]}')
DIFF = "@@ -1,2 +1,2 @@\n def total(a, b):\n-    return a - b\n+    return a + b\n"


def done(call: ToolCall, title: str, **values) -> ToolResult:
    return ToolResult(
        **{"call_id": call.call_id, "tool": call.name, "title": title, "outcome": ToolOutcome.DONE, **values}
    )


REPAIR = (
    Message(id=1, parent_id=None, role="user", content="Repair the sum."),
    Message(id=2, parent_id=1, role="assistant", content="", calls=(READ,), model="guide"),
    Message(id=3, parent_id=2, role="tool", content="def total", result=done(READ, "read sum.py", detail="2 lines")),
    Message(id=4, parent_id=3, role="assistant", content="", calls=(EDIT, RUN), model="guide"),
    Message(
        id=5,
        parent_id=4,
        role="tool",
        content="Edited sum.py (+1 −1 lines).",
        result=done(EDIT, "edit sum.py", detail="+1 −1 lines", changes=(FileChange("/x/sum.py", "a", "b"),), diff=DIFF),
    ),
    Message(
        id=6,
        parent_id=5,
        role="tool",
        content="\x1b[31m1 failed\x1b[0m [b]x[/b]",
        result=done(RUN, "run pytest -q", outcome=ToolOutcome.FAILED, detail="exit status 1", duration_s=1.25),
    ),
    Message(id=7, parent_id=6, role="assistant", content="It is repaired.", model="guide"),
)


def keep(folder, messages=REPAIR) -> None:
    with ChatStore(folder) as store:
        store.transcripts.insert(Transcript(Chat(id=1, title="Repair", leaf_id=messages[-1].id), messages))


def opened(open_app, tmp_path, messages=REPAIR, size=(80, 24)):
    keep(tmp_path, messages)
    return open_app(ScriptedClient(), size, SqliteChatRepository(tmp_path))


async def test_calls_are_lines_below_each_other_and_their_answers_take_no_row(open_app, tmp_path):
    async with opened(open_app, tmp_path) as user:
        await user.sees("It is repaired.", "read sum.py", "Repair the sum.")  # earlier messages are mounted later
        rows = [row.strip(" ▌│▎") for row in user.screen_text.splitlines()]
        first = next(n for n, row in enumerate(rows) if "read sum.py" in row)
        assert rows[first : first + 3] == [
            "▸ ✓ read sum.py · 2 lines",
            "▸ ✓ edit sum.py · +1 −1 lines",
            "▸ ✗ run pytest -q · failed · exit status 1 · 1.2 s",
        ]
        assert rows[first - 2] == "Repair the sum."
        assert "It is repaired." in rows[first + 4]
        assert "wrote nothing" not in user.screen_text


@pytest.mark.slow
async def test_enter_expands_a_call_and_folds_it_again(open_app, tmp_path):
    async with opened(open_app, tmp_path, size=(80, 40)) as user:
        await user.sees("It is repaired.")
        await user.presses("ctrl+up", "ctrl+up", "ctrl+up")
        await user.sees("Output")
        await user.presses("enter")
        await user.sees(
            "▾ ✓ edit sum.py", "changed /x/sum.py", "@@ -1,2 +1,2 @@", "+    return a + b", '"new": "a + b"'
        )
        await user.presses("enter")
        await user.no_longer_sees("return a + b")


@pytest.mark.slow
async def test_a_click_expands_a_call(open_app, tmp_path):
    async with opened(open_app, tmp_path, size=(80, 40)) as user:
        await user.sees("It is repaired.", "read sum.py", "Repair the sum.")  # earlier messages are mounted later
        await user.pilot.pause()  # until nothing moves: the click is at a row
        rows = user.screen_text.splitlines()
        row = next(n for n, line in enumerate(rows) if "run pytest" in line)
        await user.pilot.click(offset=(rows[row].index("▸"), row))
        await user.sees("[31m1 failed[0m [b]x[/b]", '"pytest"')


@pytest.mark.slow
async def test_a_word_expands_the_last_call_and_the_output_can_be_copied(open_app, tmp_path):
    async with opened(open_app, tmp_path, size=(80, 40)) as user:
        await user.sees("It is repaired.")
        await user.asks("/output")
        await user.sees("▾ ✗ run pytest -q", "1 failed")
        await user.presses("ctrl+up", "ctrl+up", "y")
        await user.sees("Copied 26 characters.")


@pytest.mark.slow
async def test_deleting_a_call_deletes_what_follows(open_app, tmp_path):
    async with opened(open_app, tmp_path) as user:
        await user.sees("It is repaired.")
        await user.presses("ctrl+up", "ctrl+up", "delete")
        await user.no_longer_sees("It is repaired.")
        await user.no_longer_sees("run pytest")
        await user.sees("Deleted 2 messages")
        await user.presses("alt+u")
        await user.sees("run pytest", "It is repaired.")


async def test_a_call_that_was_cut_off_says_so_and_one_that_was_undone_too(open_app, tmp_path):
    cut = Message(
        id=3,
        parent_id=2,
        role="tool",
        content="",
        state=MessageState.PARTIAL,
        result=replace(REPAIR[2].result, outcome=ToolOutcome.RUNNING),
    )
    undone = replace(REPAIR[4], result=replace(REPAIR[4].result, is_undone=True))
    async with opened(open_app, tmp_path, (*REPAIR[:2], cut, REPAIR[3], undone)) as user:
        await user.sees("? read sum.py · cut off: what it did is not known", "✓ edit sum.py · +1 −1 lines · undone")


@pytest.mark.slow
async def test_a_picture_of_a_result_is_named_below_its_call_and_a_click_opens_it(open_app, tmp_path):
    content = picture_of()
    file = MediaFile(hashlib.sha256(content).hexdigest(), "image/png", len(content))
    seen = Attachment("picture 1", "", "image/png", "64 × 48, 192 B", (file,))
    looked = replace(REPAIR[2], attachments=(seen,))
    with ChatStore(tmp_path) as store:
        store.files.keep({file.sha256: content})
    async with opened(open_app, tmp_path, (*REPAIR[:2], looked)) as user:
        await user.sees("▀▀▀")  # the picture itself, which pushes its name down
        await user.sees("[picture 1, 64 × 48, 192 B]")
        rows = user.screen_text.splitlines()
        (y,) = (number for number, row in enumerate(rows) if "[picture 1" in row)
        assert "read sum.py" in "".join(rows[:y])
        await user.pilot.click(offset=(rows[y].index("[picture") + 2, y))
        await user.sees("Esc closes")
        assert "Ctrl+R" not in user.screen_text, "what was sent is not removed"
        await user.presses("ctrl+r", "escape")
        await user.no_longer_sees("Esc closes")
        assert "[picture 1" in user.screen_text
