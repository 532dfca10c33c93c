"""A process whose scripted model calls tools endlessly, and that prints what was acknowledged: the victim of kills.

    python rounds_writer.py DATA_DIR

Lines are JSON: {"begun": id, "call": call_id} once a call may run, {"changing": id, "n": n} once n changes of it may be
made, {"kept": id, "content": text} after the end of a call or an answer is acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from app.chat import stream
from app.chat.branches import Conversation
from app.chat.conversation import ChatSettings, Message, MessageContent
from app.chat.repository import AnswerTarget, AnswerWriter, OpenedChat, SqliteChatRepository, StoredChat
from app.chat.session import OpenChat
from app.connection import ServiceConnection
from app.protocol.chat import ToolCall
from app.tools.approval import ToolSettings
from app.tools.tool import Effect, FileChange, ToolOutput, ToolResult
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply
from tests.app.tools.fake import FakeToolBackend, FakeToolServer, ScriptedCall, fake_tool

__all__ = ["call_tools"]

_N_REPLIES = 20_000
_CHANGES = tuple(FileChange(f"/notes/{name}.txt", "", "a" * 64) for name in "abc")


async def call_tools(data_dir: Path, chance: random.Random) -> None:
    """Ask, and run what the answers call, until killed."""
    stream.BATCH_S = 0.001
    client = ScriptedClient(*_replies(chance))
    tools = (fake_tool("read", Effect.READ), fake_tool("write", Effect.READ))
    script = {"read": [ScriptedCall(ToolOutput("text " * 200))], "write": [ScriptedCall(changes=_CHANGES)]}
    backend = FakeToolBackend(FakeToolServer(tools=tools, script=script))
    settings = ChatSettings(tools=ToolSettings(("fake",), max_rounds=100))
    async with ServiceConnection(client.opened, "guide") as connection, SqliteChatRepository(data_dir) as repository:
        stored: Any = _TellingChat(repository.new())
        chat = OpenChat(OpenedChat(stored, Conversation(settings)), connection, lambda: 0.0, lambda _: None, backend)
        for number in range(_N_REPLIES):
            chat.ask(MessageContent(role="user", content=f"question {number}"))
            await chat.wait()


def _replies(chance: random.Random) -> Iterator[ScriptedReply]:
    for number in range(_N_REPLIES):
        calls = tuple(
            ToolCall(f"c{number}-{index}", chance.choice(["read", "write"]), json.dumps({"n": number}))
            for index in range(chance.choice([0, 1, 1, 2, 3]))
        )
        yield ScriptedReply(
            deltas=tuple(f"word{each} " for each in range(chance.randrange(4))) or ("Yes.",), calls=calls
        )


class _TellingChat:
    """A stored chat that prints what it has stored, once it has."""

    def __init__(self, stored: StoredChat) -> None:
        self._stored = stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stored, name)

    async def add_message(self, parent_id: int | None, message: MessageContent) -> Message:
        added = await self._stored.add_message(parent_id, message)
        if added.result is None:
            _tell(kept=added.id, content=added.content)
        else:
            _tell(begun=added.id, call=added.result.call_id)
        return added

    async def write_result(self, message_id: int, result: ToolResult) -> None:
        await self._stored.write_result(message_id, result)
        _tell(changing=message_id, n=len(result.changes))

    async def finish_call(self, message_id: int, content: str, *result: Any) -> None:
        await self._stored.finish_call(message_id, content, *result)
        _tell(kept=message_id, content=content)

    @asynccontextmanager
    async def writing(self, target: AnswerTarget) -> AsyncIterator[AnswerWriter]:
        async with self._stored.writing(target) as writer:
            yield writer
        _tell(kept=writer.message.id, content=writer.message.content)


def _tell(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(call_tools(Path(sys.argv[1]), random.Random(sys.argv[1])))
