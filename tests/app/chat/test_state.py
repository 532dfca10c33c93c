"""The questions about calls of tools: one after the other, answered once, withdrawn with their call."""

from __future__ import annotations

import asyncio

import pytest

from app.chat.state import ApprovalQueue
from app.protocol.chat import Tool
from app.tools.approval import ApprovalQuestion, Decision
from app.tools.tool import BoundCommand, Effect, Preview, ServerTool

WRITE = ServerTool("files", "write_file", Tool("write_file", "Write a file."), Effect.WRITE)
RUN = ServerTool("commands", "run_command", Tool("run_command", "Run a command."), Effect.RUN)


def question(title: str) -> ApprovalQuestion:
    return ApprovalQuestion(WRITE, "{}", Preview("diff", title, ""))


async def test_questions_wait_in_their_order_and_each_gets_its_own_answer():
    n_changes = []
    queue = ApprovalQueue(lambda: n_changes.append(len(queue.questions)))
    first, second = question("one"), question("two")
    asking = [asyncio.create_task(queue.ask(each)) for each in (first, second)]
    await asyncio.sleep(0)
    assert queue.questions == (first, second)
    assert queue.answer(first, Decision.ONCE)
    assert queue.questions == (second,)
    assert queue.answer(second, Decision.DENY)
    assert await asyncio.gather(*asking) == [Decision.ONCE, Decision.DENY]
    assert n_changes == [1, 2, 1, 0]


async def test_an_answer_to_a_question_that_is_gone_decides_nothing():
    queue = ApprovalQueue(lambda: None)
    first, second = question("same"), question("same")  # equal, and not the same
    asking = [asyncio.create_task(queue.ask(each)) for each in (first, second)]
    await asyncio.sleep(0)
    assert queue.answer(first, Decision.ONCE)
    assert not queue.answer(first, Decision.ONCE)
    assert queue.questions[0] is second
    asking[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking[1]
    assert queue.questions == ()
    assert not queue.answer(second, Decision.ONCE)
    assert await asking[0] is Decision.ONCE


async def test_a_question_takes_only_its_own_decisions():
    queue = ApprovalQueue(lambda: None)
    run = ApprovalQuestion(
        RUN, "{}", Preview("command", "run ls", "ls", BoundCommand(("ls",), "/bin/ls", "/bin/ls", "/x"))
    )
    asking = asyncio.create_task(queue.ask(run))
    await asyncio.sleep(0)
    assert not queue.answer(run, Decision.SERVER)  # never all commands
    assert queue.answer(run, Decision.TOOL)
    assert await asking is Decision.TOOL
