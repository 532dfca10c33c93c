"""`localllm acp` as editors start it: a process that is driven over its standard streams by the package's client."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from acp import spawn_agent_process

from app.chat.store.chat_store import ChatStore
from quantizer.system.process import python_command
from tests.app.acp.editors import FakeEditor, asks
from tests.app.cli.in_process import TELLS_MODULES
from tests.patience import PATIENCE_S
from tests.tui.calling_engine import calling_engine

pytestmark = pytest.mark.slow

EDIT = ("edit_file", {"path": "notes.txt", "old_text": "two", "new_text": "2"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("one\ntwo\n", encoding="utf-8")
    return folder


@asynccontextmanager
async def _started(editor: FakeEditor, environment: Mapping[str, str], *arguments: str) -> AsyncIterator[Any]:
    command, *rest = python_command("app.cli.main", "acp", *arguments)
    kwargs = {"stderr": subprocess.DEVNULL, "shutdown_timeout": PATIENCE_S}
    spawned = spawn_agent_process(
        lambda _: editor, command, *rest, env=environment, transport_kwargs=kwargs, use_unstable_protocol=True
    )
    async with asyncio.timeout(PATIENCE_S), spawned as (connection, process):
        await connection.initialize(protocol_version=1, client_capabilities=editor.capabilities)
        yield connection
        process.stdin.close()
        assert await process.wait() == 0  # it ends when its input does


async def test_an_editor_chats_allows_a_change_cancels_and_opens_the_chat_again(environment, folder, tmp_path):
    environment = {**environment, "LOCALLLM_DATA_DIR": str(tmp_path / "data")}
    editor = FakeEditor()
    with calling_engine([EDIT, "It is changed."]) as url:
        async with _started(editor, environment, "--connect", url) as connection:
            session = await connection.new_session(cwd=str(folder), mcp_servers=[])
            answered = await connection.prompt(session_id=session.session_id, prompt=asks("Make it 2."))
            assert (answered.stop_reason, editor.text) == ("end_turn", "It is changed.")
            assert next(option.kind for option in editor.asked[0][1]) == "allow_once"
            assert editor.of_kind("tool_call_update")[-1].content[0].new_text == "one\n2"
            await connection.prompt(session_id=session.session_id, prompt=asks("/undo"))
            assert "As before:" in editor.text
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "one\ntwo\n"

    async def cancelled() -> str:
        await connection.cancel(session_id=session.session_id)
        return "cancelled"

    again = FakeEditor([cancelled])
    with calling_engine([EDIT, "It is changed."]) as url:
        async with _started(again, environment, "--connect", url) as connection:
            listed = await connection.list_sessions(cwd=str(folder))
            assert [each.session_id for each in listed.sessions] == [session.session_id]
            await connection.load_session(cwd=str(folder), session_id=session.session_id, mcp_servers=[])
            stopped = await connection.prompt(session_id=session.session_id, prompt=asks("Again."))
            assert stopped.stop_reason == "cancelled"
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "one\ntwo\n"
    with ChatStore(tmp_path / "data") as store:
        assert [chat.title for chat in store.chats.page()] == ["Make it 2."]


async def test_a_model_of_the_service_answers_an_editor(environment, folder):
    editor = FakeEditor()
    async with _started(editor, environment) as connection:
        session = await connection.new_session(cwd=str(folder), mcp_servers=[])
        answered = await connection.prompt(session_id=session.session_id, prompt=asks("<say>Good day.</say>"))
        assert answered.stop_reason == "end_turn"
        assert "Good day." in editor.text
        assert editor.of_kind("usage_update")[-1].used > 0


def test_rubbish_is_answered_with_sentences_and_the_process_ends_with_its_input(environment):
    requests = (
        {"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": 5},
        {"jsonrpc": "2.0", "id": 2, "method": "session/list"},
    )
    lines = ["rubbish", "[]", *map(json.dumps, requests)]
    command = python_command("app.cli.main", "acp", "--connect", "http://127.0.0.1:9")
    done = subprocess.run(
        command, input="\n".join(lines), env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    *rubbish, first, second = sorted(map(json.loads, done.stdout.splitlines()), key=lambda answer: answer["id"] or 0)
    assert [answer["error"]["code"] for answer in rubbish] == [-32700, -32600]
    assert "The request is not valid" in first["error"]["message"]
    assert "sessions" in second["result"]


def test_help_imports_neither_the_protocol_nor_a_client(environment):
    command = [sys.executable, "-c", TELLS_MODULES, "acp", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert "Answer an editor that speaks the Agent Client Protocol" in done.stdout
    assert not {"acp", "pydantic", "httpx", "app.acp"} & set(done.stderr.split())
