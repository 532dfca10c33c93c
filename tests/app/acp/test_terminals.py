"""Commands in the terminals of an editor: shown within their call, with the person's approval as anywhere."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from app.protocol.chat import ToolCall
from tests.app.acp.editors import FakeEditor, asks, opened_editor
from tests.app.chat.tool_chats import call, calling, said, unbatched
from tests.app.client.scripted_client import ScriptedClient

__all__ = ["unbatched"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the fake terminal is of POSIX")


def python(code: str, **more: Any) -> ToolCall:
    return call(1, "run_command", argv=[sys.executable, "-I", "-c", code], **more)


async def prompted(editor: FakeEditor, tmp_path: Path, *calls: ToolCall) -> ScriptedClient:
    client = ScriptedClient(calling(*calls), said("Done."))
    async with opened_editor(client, editor, tmp_path, tools=("commands",)) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await connection.prompt(session_id=session_id, prompt=asks("Run it."))
    return client


async def test_a_command_runs_in_the_editor_and_its_terminal_stands_in_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    editor = FakeEditor(has_terminals=True)
    code = "import os, sys; print(os.getcwd(), repr(os.environ['MY_SECRET'])); sys.exit(3)"
    client = await prompted(editor, tmp_path, python(code))
    ((asked, _),) = editor.asked
    assert "runs in a terminal of your editor" in asked.content[0].content.text
    (result,) = [turn for turn in client.requests[1] if turn.role == "tool"]
    assert result.content == f"{tmp_path} ''\n[exit status 3]", "what the person did not allow is empty"
    shown = [[content.type for content in update.content] for update in editor.of_kind("tool_call_update")]
    assert shown[-1] == ["terminal"]
    assert ["terminal"] in shown[:-1], "it is there while the command runs"
    assert {content.terminal_id for content in editor.of_kind("tool_call_update")[-1].content} == {"term-1"}
    assert editor.terminals == {}, "it was released"


async def test_a_command_that_is_denied_opens_no_terminal(tmp_path: Path) -> None:
    editor = FakeEditor(["deny"], has_terminals=True)
    await prompted(editor, tmp_path, python("1"))
    assert editor.opened == []


async def test_what_the_editor_does_not_run_nobody_runs(tmp_path: Path) -> None:
    editor = FakeEditor(has_terminals=True)
    editor.refuses = True
    client = await prompted(editor, tmp_path, python("open('made', 'w')"))
    assert client.requests[1][-1].content.startswith("The editor did not run the command.")
    assert not (tmp_path / "made").exists()


async def test_a_command_that_takes_too_long_is_ended_with_what_it_printed(tmp_path: Path) -> None:
    editor = FakeEditor(has_terminals=True)
    code = "import time; print('begun', flush=True); time.sleep(600)"
    client = await prompted(editor, tmp_path, python(code, timeout_s=1))
    assert client.requests[1][-1].content == "begun\n[stopped: it took more than 1 s]"
    assert editor.terminals == {}


async def test_stopping_the_prompt_ends_the_command(tmp_path: Path) -> None:
    editor = FakeEditor(has_terminals=True)
    client = ScriptedClient(calling(python("import time; time.sleep(600)")))
    async with opened_editor(client, editor, tmp_path, tools=("commands",)) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        prompt = asyncio.create_task(connection.prompt(session_id=session_id, prompt=asks("Run it.")))
        await editor.until(lambda: editor.terminals)
        (process,) = editor.terminals.values()
        await connection.cancel(session_id=session_id)
        assert (await prompt).stop_reason == "cancelled"
        assert (process.returncode, editor.terminals) == (-9, {})


async def test_a_terminal_that_opens_after_the_prompt_was_stopped_is_released_at_once(tmp_path: Path) -> None:
    editor = FakeEditor(has_terminals=True)
    may_open, is_asked, create = asyncio.Event(), asyncio.Event(), editor.create_terminal

    async def asks_its_person_first(**request: Any) -> Any:
        is_asked.set()
        await may_open.wait()
        return await create(**request)

    editor.create_terminal = asks_its_person_first  # type: ignore[method-assign]
    client = ScriptedClient(calling(python("import time; time.sleep(600)")))
    async with opened_editor(client, editor, tmp_path, tools=("commands",)) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        prompt = asyncio.create_task(connection.prompt(session_id=session_id, prompt=asks("Run it.")))
        await is_asked.wait()
        await connection.cancel(session_id=session_id)
        assert (await prompt).stop_reason == "cancelled"
        may_open.set()
        await editor.until(lambda: editor.opened and not editor.terminals)


async def test_a_terminal_that_is_lost_is_said_and_the_chat_goes_on(tmp_path: Path) -> None:
    editor = FakeEditor(has_terminals=True)

    async def lost(**_: Any) -> None:
        raise KeyError

    editor.wait_for_terminal_exit = lost  # type: ignore[method-assign]
    client = await prompted(editor, tmp_path, python("print(1)"))
    assert client.requests[1][-1].content.startswith("The editor lost the terminal of the command.")
    assert editor.text == "Done."
