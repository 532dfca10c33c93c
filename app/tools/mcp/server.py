"""A server of `mcp.json` as a server of tools: its listing, its calls, and what it may know of a chat.

What a server does is at most an error of the call, never of the chat. A tool that changed since its call was approved
is not called. `app.tools.mcp.lifecycle` starts and stops it. The package `mcp` is not imported before the first start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from app.common.event_log import log_event
from app.common.terminal import printable_line
from app.tools.file_access import is_as_named
from app.tools.mcp.config import McpFile, ServerConfig, ToolError, identity_of, mcp_file
from app.tools.mcp.connection import Connect, ConnectionEndedError, RefusedError, ServerInfo
from app.tools.mcp.lifecycle import DEFAULT_LIMITS, Limits, Link, LoopClock, ServerLifecycle, within
from app.tools.mcp.listing import (
    Prompt,
    Resource,
    prompt_text,
    read_prompt_arguments,
    resource_content,
    result_output,
    server_names,
)
from app.tools.server_requests import FormValue, RequestRefusedError, SampledText, SamplingRequest, ServerRequests
from app.tools.tool import CallContext, Preview, ServerStatus, ServerTool, ToolOutput
from quantizer.system.errors import UsageError, UserError

_T = TypeVar("_T")


class McpServer:
    """A `ToolServer` for one entry of `mcp.json`, called `name` among all servers. `origin` names the file."""

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        origin: str,
        connect: Connect | None = None,
        limits: Limits = DEFAULT_LIMITS,
        clock: LoopClock | None = None,
    ) -> None:
        self._name = name
        self._config = config
        self._origin = origin
        self._limits = limits
        self._clock = clock or LoopClock()
        self._lifecycle = ServerLifecycle(name, config, self, connect, limits, self._clock)
        self._folders: tuple[Path, ...] = ()
        self._told_folders: tuple[Path, ...] = ()
        self._asked_folders = asyncio.Event()
        self._refusals: list[str] = []
        self._callers: list[ServerRequests | None] = []  # of the calls that run
        self._answering: dict[asyncio.Task[Any], ServerRequests] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def config(self) -> ServerConfig:
        return self._config

    @property
    def info(self) -> ServerInfo | None:
        """How the server introduced itself when it last started."""
        return self._lifecycle.info

    def status(self) -> ServerStatus:
        life, listed = self._lifecycle, self._lifecycle.listed
        problem = str(life.problem) if life.problem else (listed.tools.problem if listed else "")
        return ServerStatus(
            name=self._name,
            origin=self._origin,
            state="running" if life.is_running else ("failed" if life.problem or self._config.problem else "stopped"),
            tools=listed.tools.tools if listed else (),
            problem=self._config.problem or problem,
            prompts=tuple(prompt.name for prompt in listed.prompts) if listed else (),
            resources=tuple(resource.uri for resource in listed.resources) if listed else (),
        )

    async def tools(self) -> tuple[ServerTool, ...]:
        """Return its tools; starts it where they are not known yet. Raises ToolError."""
        known = self._lifecycle.listed
        if known is not None and not self._lifecycle.is_stale:
            return known.tools.tools
        async with self._lifecycle.using() as link:
            return link.listed.tools.tools

    async def prompts(self) -> tuple[Prompt, ...]:
        """Return the prompts that it offers; starts it. Raises ToolError."""
        async with self._lifecycle.using() as link:
            return link.listed.prompts

    async def resources(self) -> tuple[Resource, ...]:
        """Return the resources that it offers; starts it. Raises ToolError."""
        async with self._lifecycle.using() as link:
            return link.listed.resources

    async def resource(self, uri: str) -> str | bytes:
        """Return a resource, untrusted and of any length. Raises ToolError."""
        async with self._lifecycle.using() as link:
            answer = link.connection.read_resource(uri)
            return resource_content(await within(self._config.timeout_s, answer, "read the resource"))

    async def prompt(self, name: str, arguments: str) -> str:
        """Return a prompt, untrusted and of any length. Raises ToolError, and UsageError for arguments that it does not
        take."""
        async with self._lifecycle.using() as link:
            known = next((each for each in link.listed.prompts if each.name == name), None)
            if known is None:
                names = ", ".join(each.name for each in link.listed.prompts)
                raise UsageError(f"The MCP server {self._name} has no prompt {name!r}.", f"It has: {names or 'none'}.")
            answer = link.connection.get_prompt(name, read_prompt_arguments(known, arguments))
            return prompt_text(await within(self._config.timeout_s, answer, "return the prompt"))

    async def preview(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> Preview:  # noqa: ARG002
        """Return the arguments; what the server does with them is not known."""
        title = f"{self._name}: {tool.title or tool.name}"
        return Preview("arguments", title, json.dumps(arguments, indent=2, ensure_ascii=False))

    async def call(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> ToolOutput:
        """Run a call; cancelling it tells the server so. Raises ToolError where the server cannot be started, dies, or
        has made another tool of the one that was approved."""
        self._folders = tuple(filter(is_as_named, context.folders))
        async with self._lifecycle.using() as link:
            self._check_same(tool, link)
            await self._tell_folders(link)
            self._refusals.clear()
            self._callers.append(context.requests)
            try:
                raw = await link.connection.call_tool(tool.name, arguments, context.on_progress)
            except asyncio.CancelledError:
                link.stopped_call_at = link.connection.n_received
                raise
            except RefusedError as error:
                return ToolOutput(self._with_refusals(str(error)), is_error=True, detail="refused by the server")
            except ConnectionEndedError as error:
                reason = await self._lifecycle.why_ended(link)
                raise ToolError(
                    f"The MCP server {self._name} ended during the call: {reason}.",
                    "What the call did is not known. The next one starts the server again.",
                ) from error
            finally:
                self._callers.remove(context.requests)
                for answering, caller in self._answering.items():
                    if caller is context.requests:
                        answering.cancel()
            output = result_output(raw)
            return replace(output, text=self._with_refusals(output.text))

    async def restart(self) -> None:
        await self._lifecycle.restart()

    async def close(self) -> None:
        await self._lifecycle.close()

    # What a server does without being asked, and asks for (`Observer`).

    def roots(self) -> Sequence[Path]:
        self._told_folders = self._folders
        self._asked_folders.set()
        return self._folders

    def changed(self) -> None:
        self._lifecycle.mark_stale()

    async def fill(self, message: str, schema: Mapping[str, Any]) -> Mapping[str, FormValue] | None:
        return await self._asked_for("a form for the person", lambda to: to.fill(self._name, message, schema))

    async def agree_to_address(self, message: str, url: str) -> bool:
        about = "an address that the person opens"
        return await self._asked_for(about, lambda to: to.agree_to_address(self._name, message, url))

    async def sample(self, request: SamplingRequest) -> SampledText:
        identity = identity_of(self._config.launch) if self._config.launch else ""
        return await self._asked_for("an answer of the model", lambda to: to.sample(self._name, request, identity))

    async def _asked_for(self, what: str, answer: Callable[[ServerRequests], Coroutine[Any, Any, _T]]) -> _T:
        """Return the answer of the chat whose call runs; withdrawn when the call ends. What the server does not get is
        remembered for the result of the call. Raises RequestRefusedError."""
        answering: asyncio.Task[_T] | None = None
        try:
            if len(self._callers) > 1:  # of two chats: the protocol does not say whose call it is about
                raise RequestRefusedError("Several calls run at a time: nobody knows which of them asks.")
            caller = self._callers[0] if self._callers else None
            if caller is None:
                raise RequestRefusedError("A server gets that only during a call of a chat.")
            answering = asyncio.create_task(answer(caller))
            self._answering[answering] = caller
            await asyncio.wait({answering})
            if answering.cancelled():
                raise RequestRefusedError("The call has ended.")
            return answering.result()
        except UserError as error:
            if (refusal := f"{what}. {error.cause}") not in self._refusals:
                self._refusals.append(refusal)
                self.log(f"asked for {refusal}")
            raise
        finally:
            if answering is not None:
                answering.cancel()
                self._answering.pop(answering, None)

    def log(self, text: str) -> None:
        log_event(f"mcp {self._name}", "\n".join(map(printable_line, text.splitlines())))

    def _check_same(self, tool: ServerTool, link: Link) -> None:
        """Raise ToolError where the tool is not what it was when the call was approved."""
        now = next((each for each in link.listed.tools.tools if each.name == tool.name), None)
        if now is None:
            raise ToolError(f"The MCP server {self._name} has no tool {tool.name} any more.")
        if now.fingerprint != tool.fingerprint:
            raise ToolError(
                f"The MCP server {self._name} has changed what its tool {tool.name} is.",
                "Look at it in /tools; the next call of it asks again.",
            )

    async def _tell_folders(self, link: Link) -> None:
        """Say that the folders changed to a server that has asked for them, and let it ask again before the call."""
        if self._told_folders == self._folders or not self._asked_folders.is_set():
            return
        self._asked_folders.clear()
        with contextlib.suppress(ToolError, TimeoutError):  # one that ended says so in the call
            async with asyncio.timeout(self._limits.roots_s):
                await link.connection.roots_changed()
                await self._asked_folders.wait()
                await self._clock.sleep(self._limits.settle_s)  # servers look at them before they use them
        self._asked_folders.set()
        self._told_folders = self._folders

    def _with_refusals(self, text: str) -> str:
        """Return the text with what the server was not given meanwhile, which may be why it failed."""
        return "\n".join((text, *(f"[The server asked in vain for {each}]" for each in self._refusals)))


def mcp_servers(file: McpFile | None = None, given: Sequence[ServerConfig] = ()) -> tuple[McpServer, ...]:
    """Return the servers that an editor has `given`, and those of the file that are not disabled; for a file that
    cannot be read one that failed and says why. A name that models cannot write, or that a built-in server has, becomes
    another."""
    file = file or mcp_file()
    try:
        configs = file.servers()
    except UserError as error:
        configs = (ServerConfig(file.path.name, None, problem=str(error)),)
    taken = {config.name for config in given}
    configs = (*given, *(config for config in configs if config.name not in taken))
    names = server_names(config.name for config in configs)
    return tuple(
        McpServer(names[config.name], config, "your editor" if config.name in taken else str(file.path))
        for config in configs
        if not config.is_disabled
    )
