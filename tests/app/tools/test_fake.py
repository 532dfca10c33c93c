"""The scripted tools keep the rules of the real ones."""

from __future__ import annotations

import pytest

from app.protocol.chat import ToolCall
from app.tools.approval import ApprovalRule, Decision, ToolSettings
from app.tools.backend import CallRequest
from app.tools.tool import Effect, FileChange, ToolOutcome, ToolOutput, ToolProgress, ToolResult
from quantizer.system.errors import StorageError
from tests.app.tools.fake import FakeToolBackend, FakeToolServer, ScriptedApprover, ScriptedCall, fake_tool

ON = ToolSettings(enabled=("fake",))
CHANGE = FileChange("/a", "", "1")


def backend(*calls: ScriptedCall, effect: Effect = Effect.WRITE) -> FakeToolBackend:
    return FakeToolBackend(FakeToolServer(tools=[fake_tool("act", effect)], script={"act": calls}))


async def finish(tools: FakeToolBackend, *decisions: Decision, settings: ToolSettings = ON) -> tuple[str, ToolResult]:
    approver = ScriptedApprover(*decisions)
    finished = await tools.run(CallRequest(ToolCall("1", "act", "{}"), settings, approver))
    return finished.text, finished.result


async def test_calls_take_the_script_in_order_and_its_last_again() -> None:
    tools = backend(ScriptedCall(ToolOutput("first")), ScriptedCall(ToolOutput("second")))
    texts = [(await finish(tools, Decision.ONCE))[0] for _ in range(3)]
    assert texts == ["first", "second", "second"]


async def test_what_is_refused_does_not_run() -> None:
    tools = backend(ScriptedCall())
    _, result = await finish(tools, Decision.DENY)
    assert (result.outcome, tools.server.called) == (ToolOutcome.DENIED, [])


async def test_reading_and_what_a_rule_allows_ask_nobody() -> None:
    assert (await finish(backend(effect=Effect.READ)))[1].outcome is ToolOutcome.DONE
    allowed = ToolSettings(enabled=("fake",), rules=(ApprovalRule("server", "fake"),))
    assert (await finish(backend(), settings=allowed))[1].outcome is ToolOutcome.DONE


async def test_an_undo_is_noted_and_refused_for_a_file_that_changed_since() -> None:
    tools = backend(ScriptedCall(changes=(CHANGE,), progress=(ToolProgress("half"),)))
    _, result = await finish(tools, Decision.ONCE)
    assert await tools.undo(result.changes) == (FileChange("/a", "1", ""),)
    tools.changed_since.add("/a")
    with pytest.raises(StorageError):
        await tools.undo(result.changes)
