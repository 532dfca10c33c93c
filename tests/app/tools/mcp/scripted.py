"""A connection that a test scripts, and a clock that a test moves: a server's life without a process or a package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from app.tools.mcp.config import ServerConfig, StdioLaunch, ToolError
from app.tools.mcp.connection import Connection, ConnectionEndedError, Observer, ServerInfo
from app.tools.mcp.lifecycle import DEFAULT_LIMITS, Limits, LoopClock
from app.tools.mcp.server import McpServer
from app.tools.tool import ToolProgress

CONFIG = ServerConfig("notes", StdioLaunch("notes-server"))


def tool_entry(name: str = "search", description: str = "Search notes.") -> dict[str, Any]:
    return {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": {"q": {"type": "string"}}},
    }


class ScriptedConnection:
    """One connection; `end` ends it as a server that died."""

    info = ServerInfo("notes", "1", "2025-11-25", has_tools=True, has_prompts=True, has_resources=True)

    def __init__(self, script: Script, observer: Observer) -> None:
        self._script = script
        self._reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.observer = observer
        self.n_received = 0
        self.is_closed = asyncio.Event()

    def end(self, reason: str = "exit status 3") -> None:
        self._reason.set_result(reason)

    async def wait_ended(self) -> str:
        return await asyncio.shield(self._reason)

    async def list_tools(self) -> list[object]:
        self._script.n_listed += 1
        if self._script.hangs_in_list:
            await self.is_closed.wait()
            raise ConnectionEndedError("It ended.")
        self.n_received += 1
        return list(self._script.tools)

    async def list_prompts(self) -> list[object]:
        return [{"name": "review", "arguments": [{"name": "what", "required": True}]}]

    async def list_resources(self) -> list[object]:
        return [{"uri": "note://1"}]

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], on_progress: Callable[[ToolProgress], None]
    ) -> Mapping[str, Any]:
        result = await self._script.answer(self, name, arguments, on_progress)
        self.n_received += 1
        return result

    async def read_resource(self, uri: str) -> Mapping[str, Any]:
        return {"contents": [{"uri": uri, "text": "a note"}]}

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> Mapping[str, Any]:
        return {"messages": [{"role": "user", "content": {"type": "text", "text": f"{name} {dict(arguments)}"}}]}

    async def roots_changed(self) -> None:
        self._script.n_told += 1
        self.observer.roots()


Answer = Callable[
    [ScriptedConnection, str, Mapping[str, Any], Callable[[ToolProgress], None]], Awaitable[Mapping[str, Any]]
]


async def _says_done(*_: object) -> Mapping[str, Any]:
    return {"content": [{"type": "text", "text": "done"}]}


class Script:
    """What a server does each time that it is started, and what happened so far."""

    def __init__(self, answer: Answer = _says_done) -> None:
        self.answer = answer
        self.tools: list[object] = [tool_entry()]
        self.fails_with: ToolError | None = None
        self.hangs_at_start = self.hangs_in_list = False
        self.connections: list[ScriptedConnection] = []
        self.n_closed = self.n_listed = self.n_told = 0
        self.has_closed = asyncio.Event()

    @property
    def n_started(self) -> int:
        return len(self.connections)

    @asynccontextmanager
    async def connect(self, _config: ServerConfig, observer: Observer) -> AsyncIterator[Connection]:
        connection = ScriptedConnection(self, observer)
        self.connections.append(connection)
        if self.hangs_at_start:
            await asyncio.Event().wait()
        if self.fails_with is not None:
            raise self.fails_with
        try:
            yield connection
        finally:
            self.n_closed += 1
            connection.is_closed.set()
            self.has_closed.set()

    def server(
        self, clock: LoopClock | None = None, limits: Limits = DEFAULT_LIMITS, config: ServerConfig = CONFIG
    ) -> McpServer:
        return McpServer("notes", config, "mcp.json", self.connect, limits, clock)


class HandClock(LoopClock):
    """A clock that stands until a test moves it."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now_s + seconds, waiting))
        await waiting

    async def move(self, seconds: float) -> None:
        """Move the clock, and let everybody who waited for that time go on."""
        await settled()
        self._now_s += seconds
        for wake_s, waiting in self._sleepers:
            if wake_s <= self._now_s and not waiting.done():
                waiting.set_result(None)
        await settled()


async def settled() -> None:
    """Let all tasks run until each waits for something."""
    for _ in range(20):
        await asyncio.sleep(0)
