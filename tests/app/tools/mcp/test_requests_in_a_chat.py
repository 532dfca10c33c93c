"""A server that asks for a form or for the model while its call runs, in a chat: the person decides, and it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.chat.conversation import MessageContent
from app.chat.events import ApprovalNeeded, ChatEvent, FormNeeded
from app.chat.session import OpenChat
from app.protocol.chat import Message, ToolCall
from app.tools.approval import ApprovalQuestion, Decision, ToolSettings
from app.tools.runner import ToolRunner
from app.tools.server_requests import Form, FormValue, SamplingRequest
from app.tools.tool import ToolOutcome
from quantizer.system.errors import UserError
from tests.app.chat.tool_chats import ask, calling, opened_chat, said, unbatched, until
from tests.app.client.scripted_client import ScriptedClient
from tests.app.tools.mcp.scripted import CONFIG, Answer, Script, ScriptedConnection

__all__ = ["unbatched"]

ON = ToolSettings(enabled=("notes",))
CALL = calling(ToolCall("c1", "notes__search", "{}"))
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def text(said: object) -> Mapping[str, Any]:
    return {"content": [{"type": "text", "text": str(said)}]}


def tools(answer: Answer, timeout_s: float = 60.0) -> ToolRunner:
    return ToolRunner([Script(answer).server(config=replace(CONFIG, timeout_s=timeout_s))], lambda _: ())


def person(chat: OpenChat, *decisions: Decision, values: Mapping[str, FormValue] | None = None) -> list[object]:
    """Decide in this order, and fill `values` into forms; return what the person was shown."""
    shown: list[object] = []
    left = list(decisions)

    async def draw(event: ChatEvent) -> None:
        if isinstance(event, ApprovalNeeded):
            shown.append(event.question)
            chat.approvals.answer(event.question, left.pop(0))
        elif isinstance(event, FormNeeded):
            shown.append(event.form)
            chat.approvals.filled(event.form, values)

    chat.view = draw
    return shown


async def fills(connection: ScriptedConnection, *_: object) -> Mapping[str, Any]:
    return text(await connection.observer.fill("Who are you?", FORM))


async def samples(connection: ScriptedConnection, *_: object) -> Mapping[str, Any]:
    answer = await connection.observer.sample(SamplingRequest((Message("user", "Sum up."),), "Be brief.", 50))
    return text(f"{answer.model}: {answer.text}")


async def test_the_person_allows_the_call_and_the_form_and_fills_it_in() -> None:
    runner = tools(fills)
    async with opened_chat(ScriptedClient(CALL, said("Done.")), runner, tools=ON) as chat:
        shown = person(chat, Decision.ONCE, Decision.ONCE, values={"name": "Ada"})
        branch = await ask(chat)
        assert branch[2].content == "{'name': 'Ada'}"
        assert [type(each) for each in shown] == [ApprovalQuestion, ApprovalQuestion, Form]
        assert chat.approvals.form is None
    await runner.close()


async def test_who_fills_nothing_in_declines() -> None:
    runner = tools(fills)
    async with opened_chat(ScriptedClient(CALL, said("Done.")), runner, tools=ON) as chat:
        person(chat, Decision.ONCE, Decision.ONCE)
        branch = await ask(chat)
        assert branch[2].content == "None"
    await runner.close()


async def test_the_model_of_the_chat_answers_and_the_permission_is_kept_for_later_calls() -> None:
    client = ScriptedClient(CALL, said("A summary."), CALL, said("Another."), said("Done."))
    runner = tools(samples)
    async with opened_chat(client, runner, tools=ON) as chat:
        shown = person(chat, Decision.TOOL, Decision.TOOL)
        branch = await ask(chat)
        assert [message.content for message in branch if message.role == "tool"] == [
            "guide: A summary.",
            "guide: Another.",
        ]
        assert len(shown) == 2
        assert [(message.role, message.content) for message in client.requests[1]] == [
            ("system", "Be brief."),
            ("user", "Sum up."),
        ]
        assert client.options[1].max_tokens == 50
        assert client.options[1].tools == ()
    await runner.close()


async def test_a_server_that_asks_in_a_loop_is_told_no_and_the_call_ends() -> None:
    async def loops(connection: ScriptedConnection, *_: object) -> Mapping[str, Any]:
        n_refused = 0
        while n_refused < 10:
            try:
                await connection.observer.fill("Again?", FORM)
            except UserError:
                n_refused += 1
        return text("gave up")

    runner = tools(loops)
    async with opened_chat(ScriptedClient(CALL, said("Done.")), runner, tools=ON) as chat:
        shown = person(chat, *[Decision.ONCE] * 6, values={"name": "Ada"})
        branch = await ask(chat)
        assert branch[2].content == (
            "gave up\n[The server asked in vain for a form for the person. This call has asked 5 times already.]"
        )
        assert len(shown) == 11
    await runner.close()


async def test_stopping_the_answer_withdraws_the_form() -> None:
    runner = tools(fills)
    async with opened_chat(ScriptedClient(CALL, said("Done.")), runner, tools=ON) as chat:
        seen = asyncio.Event()

        async def draw(event: ChatEvent) -> None:
            if isinstance(event, ApprovalNeeded):
                chat.approvals.answer(event.question, Decision.ONCE)
            elif isinstance(event, FormNeeded):
                seen.set()

        chat.view = draw
        chat.ask(MessageContent(role="user", content="Do it."))
        await seen.wait()
        await chat.stop()
        await until(lambda: chat.approvals.form is None)
        result = chat.conversation.branch[2].result
        assert result is not None
        assert result.outcome is ToolOutcome.CANCELLED
    await runner.close()


async def test_the_time_of_a_call_stands_still_while_the_person_fills_in() -> None:
    runner = tools(fills, timeout_s=0.2)
    async with opened_chat(ScriptedClient(CALL, said("Done.")), runner, tools=ON) as chat:

        async def draw(event: ChatEvent) -> None:
            if isinstance(event, ApprovalNeeded):
                await asyncio.sleep(0.3)
                chat.approvals.answer(event.question, Decision.ONCE)
            elif isinstance(event, FormNeeded):
                await asyncio.sleep(0.3)
                chat.approvals.filled(event.form, {"name": "Ada"})

        chat.view = draw
        branch = await ask(chat)
        assert branch[2].content == "{'name': 'Ada'}"
    await runner.close()
