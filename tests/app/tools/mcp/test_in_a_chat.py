"""MCP servers behind the runner of a chat: whatever one does, its call has a result, and the next server works."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.protocol.chat import ToolCall
from app.tools.approval import ApprovalQuestion, ApprovalRule, Decision, ToolSettings
from app.tools.backend import CallRequest, FinishedCall
from app.tools.file_history import FileHistory
from app.tools.mcp.config import McpFile
from app.tools.mcp.server import mcp_servers
from app.tools.runner import ToolRunner
from app.tools.tool import ToolOutcome

pytest.importorskip("mcp", reason="the optional extra")

SERVER = Path(__file__).with_name("hostile_server.py")


class Person:
    """Someone who answers every question in the same way, and remembers them."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self.asked: list[ApprovalQuestion] = []

    async def ask(self, question: ApprovalQuestion) -> Decision:
        self.asked.append(question)
        return self._decision


@pytest.fixture(autouse=True)
def _is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_CLOSED_GRACE_S", "_ASKED_GRACE_S"):
        monkeypatch.setattr(f"quantizer.system.process_tree.{name}", 0.2)
    monkeypatch.setattr("app.tools.mcp.process._EXIT_WAIT_S", 0.2)


@asynccontextmanager
async def runner(folder: Path, modes: Sequence[str], timeout_s: float = 60.0) -> AsyncIterator[ToolRunner]:
    """Yield a runner of servers called as their modes; the first has this time for a call."""
    entries: dict[str, dict[str, object]] = {
        mode: {"command": sys.executable, "args": ["-I", str(SERVER), mode]} for mode in modes
    }
    entries[modes[0]]["timeout_s"] = timeout_s
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    tools = ToolRunner(mcp_servers(McpFile(path)), FileHistory(folder / "history").undo)
    try:
        yield tools
    finally:
        await tools.close()


async def called(tools: ToolRunner, name: str, person: Person, rules: tuple[ApprovalRule, ...] = ()) -> FinishedCall:
    servers = tuple(status.name for status in await tools.servers())
    settings = ToolSettings(enabled=servers, rules=rules)
    return await tools.run(CallRequest(ToolCall("c1", name, '{"a": 1}'), settings, person))


@pytest.mark.parametrize(
    ("mode", "outcome", "said"),
    [
        ("dies in a call", ToolOutcome.FAILED, "ended during the call: exit status 3"),
        ("hangs in a call", ToolOutcome.TIMED_OUT, "stopped after 0.5 s"),
        ("is stuck in a call", ToolOutcome.TIMED_OUT, "stopped after 0.5 s"),
        ("wrong id", ToolOutcome.TIMED_OUT, "stopped after 0.5 s"),
        ("huge result", ToolOutcome.FAILED, "a message of more than 16 MiB"),
        ("large result", ToolOutcome.DONE, "characters were left out here"),
        ("invalid result", ToolOutcome.FAILED, "answer is not valid"),
        ("asks", ToolOutcome.DONE, "asked in vain for"),
    ],
)
async def test_whatever_a_server_does_its_call_has_a_result_and_the_next_server_works(
    tmp_path: Path, mode: str, outcome: ToolOutcome, said: str
) -> None:
    timeout_s = 0.5 if outcome is ToolOutcome.TIMED_OUT else 60.0
    async with runner(tmp_path, (mode, "dies at start", "honest"), timeout_s) as tools:
        await tools.servers(start=True)
        person = Person(Decision.ONCE)
        bad = await called(tools, f"{mode.replace(' ', '_')}__call", person)
        assert (bad.result.outcome, said in bad.text) == (outcome, True), bad.text[-500:]
        assert len(bad.text) < 30_000
        good = await called(tools, "honest__call", person)
        assert (good.result.outcome, good.text) == (ToolOutcome.DONE, "done")
        states = {status.name: status.state for status in await tools.servers()}
        assert states["dies_at_start"] == "failed"


async def test_nothing_runs_before_the_person_agrees_and_a_server_that_changed_asks_again(tmp_path: Path) -> None:
    async with runner(tmp_path, ("changes in silence",)) as tools:
        await tools.servers(start=True)
        name = "changes_in_silence__call"
        denied = await called(tools, name, Person(Decision.DENY))
        assert denied.result.outcome is ToolOutcome.DENIED
        person = Person(Decision.TOOL)
        allowed = await called(tools, name, person)
        assert allowed.result.outcome is ToolOutcome.DONE
        assert allowed.rule is not None
        again = await called(tools, name, person, (allowed.rule,))
        assert (again.result.outcome, len(person.asked)) == (ToolOutcome.DONE, 1)
        (server,) = tools._servers.values()
        server.changed()  # type: ignore[attr-defined]  # the next list has another description
        changed = await called(tools, name, person, (allowed.rule,))
        assert (changed.result.outcome, len(person.asked)) == (ToolOutcome.DONE, 2)


async def test_the_question_shows_the_arguments_and_a_server_s_text_decides_nothing(tmp_path: Path) -> None:
    async with runner(tmp_path, ("terminal",)) as tools:
        await tools.servers(start=True)
        person = Person(Decision.DENY)
        await called(tools, "terminal__call", person)
        (question,) = person.asked
        assert (question.arguments, question.preview.text) == ('{"a": 1}', '{\n  "a": 1\n}')


async def test_stopping_a_call_leaves_the_server_for_the_next(tmp_path: Path) -> None:
    async with runner(tmp_path, ("hangs in a call",)) as tools:
        await tools.servers(start=True)
        call = asyncio.create_task(called(tools, "hangs_in_a_call__call", Person(Decision.ONCE)))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        environment = await called(tools, "hangs_in_a_call__environment", Person(Decision.ONCE))
        assert environment.result.outcome is ToolOutcome.DONE
