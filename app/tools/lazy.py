"""The tools of a window, made when they are first needed: a chat without tools imports and starts none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.settings.parsing import parse_variable_names
from app.settings.settings import Settings
from app.tools.approval import ToolSettings
from app.tools.backend import CallRequest, FinishedCall, ToolBackend
from app.tools.tool import FileChange, OpenBuffers, ServerStatus, ServerTool

if TYPE_CHECKING:
    from app.tools.builtin.processes import CommandTerminal
    from app.tools.mcp.config import ServerConfig


class LazyTools:
    """A `ToolBackend` with the built-in servers and those of `mcp.json`, for a window with these settings. An editor
    adds MCP servers that it has `given`, its `buffers`, its `folder` and its `terminal`."""

    def __init__(
        self,
        settings: Settings,
        given: Sequence[ServerConfig] = (),
        buffers: OpenBuffers | None = None,
        folder: Path | None = None,
        terminal: CommandTerminal | None = None,
    ) -> None:
        self._settings = settings
        self._given = given
        self._buffers = buffers
        self._folder = folder
        self._terminal = terminal
        self._made: ToolBackend | None = None
        self._one_at_a_time = asyncio.Lock()

    async def servers(self, *, start: bool = False) -> tuple[ServerStatus, ...]:
        return await (await self._backend()).servers(start=start)

    async def offered(self, settings: ToolSettings) -> tuple[ServerTool, ...]:
        return await (await self._backend()).offered(settings) if settings.enabled else ()

    async def run(self, request: CallRequest) -> FinishedCall:
        return await (await self._backend()).run(request)

    async def prompt(self, server: str, name: str, arguments: str) -> str:
        return await (await self._backend()).prompt(server, name, arguments)

    async def resource(self, server: str, uri: str) -> str | bytes:
        return await (await self._backend()).resource(server, uri)

    async def undo(self, changes: Sequence[FileChange]) -> tuple[FileChange, ...]:
        return await (await self._backend()).undo(changes)

    async def close(self) -> None:
        async with self._one_at_a_time:
            if self._made is not None:
                await self._made.close()

    async def _backend(self) -> ToolBackend:
        async with self._one_at_a_time:
            if self._made is None:
                self._made = await asyncio.to_thread(
                    _make, self._settings, self._given, self._buffers, self._folder, self._terminal
                )
            return self._made


def _make(
    settings: Settings,
    given: Sequence[ServerConfig],
    buffers: OpenBuffers | None,
    folder: Path | None,
    terminal: CommandTerminal | None,
) -> ToolBackend:
    from app.client.launcher import running_service
    from app.tools.builtin.servers import tool_runner
    from app.tools.mcp.server import mcp_servers

    return tool_runner(
        settings.data_dir,
        mcp_servers(given=given),
        parse_variable_names(settings.command_variables),
        # Answers of another engine have no service of this user beside them.
        None if settings.connect else partial(running_service, settings),
        settings.reranker,
        settings.web_search,
        settings.web_search_key,
        buffers,
        folder,
        terminal,
    )
