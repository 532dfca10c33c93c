"""A scripted model repairs a file with the built-in tools, and each step is taken back byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.tools.approval import Decision, ToolSettings
from app.tools.builtin.servers import tool_runner
from app.tools.tool import ToolOutcome
from tests.app.chat.tool_chats import ask, call, calling, decide, opened_chat, roles, said, unbatched
from tests.app.client.scripted_client import ScriptedClient

pytestmark = pytest.mark.slow

__all__ = ["unbatched"]

BROKEN = b"def half(x):\r\n    return x * 2\r\n"
REPAIR = (
    calling(call(1, "read_file", path="half.py")),
    calling(call(2, "edit_file", path="half.py", old_text="x * 2", new_text="x / 2"), text="It doubles."),
    calling(call(3, "write_file", path="notes/done.md", content="Halved.\n")),
    said("Done."),
)


async def test_a_repair_runs_with_approval_and_each_step_restores_bytes(tmp_path: Path):
    folder = tmp_path / "project"
    folder.mkdir()
    source, notes = folder / "half.py", folder / "notes" / "done.md"
    source.write_bytes(BROKEN)
    tools = ToolSettings(enabled=("files",), folders=(str(folder),))
    runner = tool_runner(tmp_path)
    async with opened_chat(ScriptedClient(*REPAIR), runner, tmp_path, tools) as chat:
        questions = decide(chat, Decision.ONCE, Decision.ONCE)
        branch = await ask(chat, "Repair half.py.")
        assert [m.result.outcome for m in branch if m.result] == [ToolOutcome.DONE] * 3
        assert "return x * 2" in branch[2].content
        assert [question.preview.kind for question in questions] == ["diff", "diff"]
        repaired = source.read_bytes()
        assert (repaired, notes.read_bytes()) == (BROKEN.replace(b"* 2", b"/ 2"), b"Halved.\n")

        await chat.undo_step()
        assert (source.read_bytes(), notes.exists(), notes.parent.exists()) == (repaired, False, False)
        await chat.undo_step()
        assert source.read_bytes() == BROKEN
        assert roles(chat.conversation.branch) == ["user", "assistant", "tool"]
        await chat.redo_step()
        await chat.redo_step()
        assert (source.read_bytes(), notes.read_bytes()) == (repaired, b"Halved.\n")
        assert chat.conversation.branch == branch
    await runner.close()
