"""A chat whose scripted model calls scripted tools, without a screen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.chat import stream
from app.chat.branches import Conversation
from app.chat.conversation import ChatSettings, Message, MessageContent
from app.chat.events import ApprovalNeeded, ChatEvent
from app.chat.repository import InMemoryChatRepository, OpenedChat, SqliteChatRepository
from app.chat.session import OpenChat
from app.connection import ServiceConnection
from app.protocol.chat import ToolCall
from app.tools.approval import ApprovalQuestion, Decision, ToolSettings
from app.tools.backend import ToolBackend
from app.tools.tool import Effect, FileChange, ToolOutput
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply
from tests.app.tools.fake import FakeToolBackend, FakeToolServer, ScriptedCall, fake_tool

__all__ = [
    "TOOLS",
    "WRITTEN",
    "ask",
    "backend_of",
    "call",
    "calling",
    "decide",
    "opened_chat",
    "roles",
    "said",
    "unbatched",
    "until",
]

TOOLS = ToolSettings(enabled=("fake",))
WRITTEN = FileChange("/notes/a.txt", "", "a" * 64)


def call(number: int, tool: str = "read", **arguments: object) -> ToolCall:
    return ToolCall(f"c{number}", tool, json.dumps(arguments))


def calling(*calls: ToolCall, text: str = "", thoughts: Sequence[str] = ()) -> ScriptedReply:
    return ScriptedReply(thoughts=tuple(thoughts), deltas=(text,) if text else (), calls=calls)


def said(text: str) -> ScriptedReply:
    return ScriptedReply(deltas=(text,))


def backend_of(**script: Sequence[ScriptedCall]) -> FakeToolBackend:
    """Return tools `read`, `write` and `run`, of which the first asks nobody, with what their calls do."""
    tools = (fake_tool("read", Effect.READ), fake_tool("write", Effect.WRITE), fake_tool("run", Effect.RUN))
    default = {"read": [ScriptedCall(ToolOutput("text"))], "write": [ScriptedCall(changes=(WRITTEN,))]}
    return FakeToolBackend(FakeToolServer(tools=tools, script={**default, **script}))


@asynccontextmanager
async def opened_chat(
    client: ScriptedClient,
    backend: ToolBackend,
    data_dir: Path | None = None,
    tools: ToolSettings = TOOLS,
    chat_id: int | None = None,
) -> AsyncIterator[OpenChat]:
    """Yield a chat, in memory or stored in `data_dir`; `tools` are those of a new one."""
    async with ServiceConnection(client.opened, "guide") as connection:
        if data_dir is None:
            chat = _chat(await InMemoryChatRepository().open(), connection, backend, tools)
            try:
                yield chat
            finally:
                await chat.close()
            return
        async with SqliteChatRepository(data_dir) as repository:
            chat = _chat(await repository.open(chat_id), connection, backend, tools)
            try:
                yield chat
            finally:
                await chat.close()


def _chat(opened: OpenedChat, connection: ServiceConnection, backend: FakeToolBackend, tools: ToolSettings) -> OpenChat:
    if not opened.conversation.messages:
        opened = OpenedChat(opened.stored, Conversation(ChatSettings(tools=tools)))
    return OpenChat(opened, connection, lambda: 0.0, lambda _: None, backend)


def decide(chat: OpenChat, *decisions: Decision) -> list[ApprovalQuestion]:
    """Give `decisions` in order when the chat asks, and then none; return the questions that it has asked by then."""
    questions, left = [], list(decisions)

    async def draw(event: ChatEvent) -> None:
        if isinstance(event, ApprovalNeeded):
            questions.append(event.question)
            if left:
                chat.approvals.answer(event.question, left.pop(0))

    chat.view = draw
    return questions


async def ask(chat: OpenChat, text: str = "Do it.") -> tuple[Message, ...]:
    """Ask, wait for the end, and return the shown branch."""
    chat.ask(MessageContent(role="user", content=text))
    await chat.wait()
    return chat.conversation.branch


async def until(is_so: Callable[[], object]) -> None:
    """Wait until `is_so`, which a task of this loop brings about."""
    while not is_so():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.001)


def roles(messages: Sequence[Message]) -> list[str]:
    return [message.role for message in messages]


@pytest.fixture(autouse=True)
def unbatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BATCH_S", 0.0)
