"""All tools of one window: which a chat is offered, and running a call from its arguments to its bounded result.

Owns the order: arguments are checked, the person sees what the call would do, the rules of the chat or the person
decide, and only then it runs, with a time limit. Whatever a server does becomes a result; nothing that a server or a
model writes decides anything.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.protocol.chat import Source, ToolCall
from app.tools.approval import (
    ApprovalQuestion,
    ApprovalRule,
    Decision,
    ToolSettings,
    Verdict,
    note_of,
    rule_of,
    verdict,
)
from app.tools.argument_check import read_arguments
from app.tools.backend import CallRequest, FinishedCall
from app.tools.server_requests import ServerRequests
from app.tools.tool import (
    CallContext,
    FileChange,
    LibraryServer,
    RestartableServer,
    ServerStatus,
    ServerTool,
    ToolOutcome,
    ToolResult,
    ToolServer,
    bounded,
    cleaned,
)
from quantizer.figures import format_number
from quantizer.system.errors import UsageError, UserError

_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
_MAX_SCHEMA_CHARACTERS = 64 << 10
_MAX_DIFF_CHARACTERS = 60_000  # of one that a chat keeps
_MAX_LINE = 300  # characters of a title or detail
_DENIED = "The user did not allow this call. Do not try it again in another way; ask what they want instead."
_NEVER = "The user does not allow this tool in this chat."


class ToolRunner:
    """A `ToolBackend` of `servers`: of two with one name the first counts. Only tools of servers that are `trusted` may
    read without a question. `undo` takes back changes, in a thread."""

    def __init__(
        self,
        servers: Iterable[ToolServer],
        undo: Callable[[Sequence[FileChange]], tuple[FileChange, ...]],
        *,
        trusted: Collection[str] = (),
    ) -> None:
        self._servers: dict[str, ToolServer] = {}
        self._hidden: list[ServerStatus] = []
        self._undo = undo
        self._trusted = frozenset(trusted)
        for server in servers:
            if server.name in self._servers:
                problem = f"Another server is called {server.name}; rename this one."
                self._hidden.append(replace(server.status(), state="failed", tools=(), problem=problem))
            else:
                self._servers[server.name] = server

    async def servers(self, *, start: bool = False) -> tuple[ServerStatus, ...]:
        if start:
            await asyncio.gather(*(self._tools_now(server) for server in self._servers.values()))
        # Some read files for it, such as skills, and the read-ahead of a draft asks again and again.
        found = await asyncio.to_thread(lambda: [server.status() for server in self._servers.values()])
        return (*(status for status in found if status.state != "absent"), *self._hidden)

    async def offered(self, settings: ToolSettings) -> tuple[ServerTool, ...]:
        """A tool whose name is taken, or is none that models take, or whose schema is too large, is left out."""
        names = {enabled.partition("/")[0] for enabled in settings.enabled}
        wanted = [server for server in self._servers.values() if server.name in names]
        found = await asyncio.gather(*(self._tools(server) for server in wanted))
        offered: dict[str, ServerTool] = {}
        for tool in (tool for tools in found for tool in tools):
            if settings.has(tool.server, tool.name) and _is_usable(tool):
                offered.setdefault(tool.definition.name, tool)
        return tuple(offered.values())

    async def _tools_now(self, server: ToolServer) -> None:
        """Ask a server for its tools, also one that failed before: the person may have mended it."""
        if isinstance(server, RestartableServer) and server.status().state == "failed":
            await server.restart()
        await self._tools(server)

    async def _tools(self, server: ToolServer) -> tuple[ServerTool, ...]:
        try:
            return await server.tools()
        except UserError:  # its status says why
            return ()

    async def run(self, request: CallRequest) -> FinishedCall:
        call, settings = request.call, request.settings
        offered = await self.offered(settings)
        tool = next((tool for tool in offered if tool.definition.name == call.name), None)
        if tool is None:
            return _unknown(call, offered)
        running = _RunningCall(request, tool)
        try:
            arguments = read_arguments(call.arguments, tool.definition.parameters)
            context = CallContext(
                folders=tuple(map(Path, settings.folders)),
                on_progress=request.on_progress,
                record_change=running.record,
                max_characters=request.max_characters,
                requests=running.requests,
                known_files=request.known_files,
            )
            server = self._servers[tool.server]
            preview = await server.preview(tool, arguments, context)
            diff = bounded(preview.text, _MAX_DIFF_CHARACTERS) if preview.kind == "diff" else ""
            await running.update(title=_line(preview.title), diff=diff)
            by_rules = verdict(settings.rules, tool, preview.command, self._trusted)
            if by_rules is Verdict.DENY:
                return running.finished(ToolOutcome.DENIED, _NEVER)
            if by_rules is Verdict.ASK:
                note = note_of(settings.rules, tool, preview.command)
                question = ApprovalQuestion(tool, call.arguments, preview, note)
                answer = await request.approver.ask(question)
                running.rule = rule_of(answer, question)
                if answer in (Decision.DENY, Decision.NEVER):
                    return running.finished(ToolOutcome.DENIED, _DENIED if answer is Decision.DENY else _NEVER)
            return await running.call(server, arguments, context)
        except UserError as error:
            return running.finished(ToolOutcome.FAILED, str(error), detail=error.cause)
        except OSError as error:  # such as a name that is too long for the system
            cause = f"The system refused: {error.strerror or error}."
            return running.finished(ToolOutcome.FAILED, cause, detail=cause)

    async def prompt(self, server: str, name: str, arguments: str) -> str:
        return bounded(await self._library(server).prompt(name, arguments))

    async def resource(self, server: str, uri: str) -> str | bytes:
        return await self._library(server).resource(uri)

    def _library(self, name: str) -> LibraryServer:
        """Return the server that has prompts and resources. Raises UsageError that names those there are."""
        server = self._servers.get(name)
        if isinstance(server, LibraryServer):
            return server
        names = ", ".join(each for each, found in self._servers.items() if isinstance(found, LibraryServer))
        raise UsageError(
            f"There is no MCP server {name!r}.", f"Servers: {names or 'none; `localllm mcp add` adds one'}."
        )

    async def undo(self, changes: Sequence[FileChange]) -> tuple[FileChange, ...]:
        return await asyncio.to_thread(self._undo, changes)

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers.values()))


class _RunningCall:
    """A call of `tool` on its way: its result so far, which every step passes on, and the rule that the chat gains."""

    def __init__(self, request: CallRequest, tool: ServerTool) -> None:
        self.rule: ApprovalRule | None = None
        self._tool = tool
        self._request = request
        self.requests: ServerRequests | None = None
        if request.helper is not None:
            rules = request.settings.rules
            self.requests = ServerRequests(request.approver, request.helper, rules, self._paused)
        self._timeout: asyncio.Timeout | None = None
        self._n_pauses = 0
        self._left_s = 0.0
        self._begun_s = time.monotonic()
        self._result = ToolResult(
            call_id=request.call.call_id, tool=tool.name, server=tool.server, title=_line(tool.title or tool.name)
        )

    async def update(self, **values: Any) -> None:
        self._result = replace(self._result, **values)
        await self._request.on_update(self._result)

    async def record(self, change: FileChange) -> None:
        await self.update(changes=(*self._result.changes, change))

    async def call(self, server: ToolServer, arguments: Mapping[str, Any], context: CallContext) -> FinishedCall:
        """Run the call, which was allowed, within its time. Raises UserError and OSError as the server does."""
        self._begun_s = time.monotonic()
        limit_s = self._tool.timeout_s or None
        try:
            async with asyncio.timeout(limit_s) as timeout:
                self._timeout = timeout
                output = await server.call(self._tool, arguments, context)
        except TimeoutError:
            if not timeout.expired():  # it is the server's own
                return self.finished(ToolOutcome.FAILED, "The tool failed: it timed out.")
            stopped = f"stopped after {format_number(self._tool.timeout_s)} s"
            text = f"The call was {stopped}. What it did until then is not undone."
            return self.finished(ToolOutcome.TIMED_OUT, text, detail=stopped)
        failed = ToolOutcome.TIMED_OUT if output.is_timed_out else ToolOutcome.FAILED
        outcome = failed if output.is_error or output.is_timed_out else ToolOutcome.DONE
        n_bytes = len(output.text.encode("utf-8", "replace")) if output.n_bytes is None else output.n_bytes
        sources = tuple(replace(each, text=cleaned(each.text)) for each in output.sources)
        return replace(self.finished(outcome, output.text, output.detail, n_bytes, sources), media=output.media)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Let the time of the call stand still while the person or the model answers its server."""
        timeout, now_s = self._timeout, asyncio.get_running_loop().time
        if timeout is None or timeout.expired() or (not self._n_pauses and timeout.when() is None):
            yield
            return
        if not self._n_pauses:
            self._left_s = (timeout.when() or now_s()) - now_s()
            timeout.reschedule(None)
        self._n_pauses += 1
        try:
            yield
        finally:
            self._n_pauses -= 1
            if not self._n_pauses and not timeout.expired():
                with suppress(RuntimeError):  # the call has ended
                    timeout.reschedule(now_s() + self._left_s)

    def finished(
        self, outcome: ToolOutcome, text: str, detail: str = "", n_bytes: int = 0, sources: tuple[Source, ...] = ()
    ) -> FinishedCall:
        """Return the end of the call. An empty text is said to be empty: a model takes nothing for an error."""
        duration_s = time.monotonic() - self._begun_s
        result = replace(
            self._result,
            outcome=outcome,
            detail=_line(detail),
            n_bytes=n_bytes,
            duration_s=duration_s,
            sources=sources,
        )
        gained = tuple(self.requests.gained) if self.requests is not None else ()
        return FinishedCall(bounded(text, self._request.max_characters) or "(no output)", result, self.rule, gained)


def _unknown(call: ToolCall, offered: Sequence[ServerTool]) -> FinishedCall:
    names = ", ".join(tool.definition.name for tool in offered) or "none"
    text = f"There is no tool called {_line(call.name)}. The tools are: {names}."
    result = ToolResult(
        call_id=call.call_id, tool=_line(call.name), title=_line(call.name), outcome=ToolOutcome.FAILED,
        detail="no such tool",
    )  # fmt: skip
    return FinishedCall(bounded(text), result)


def _is_usable(tool: ServerTool) -> bool:
    if not _NAME.fullmatch(tool.definition.name):
        return False
    try:
        return len(json.dumps(tool.definition.parameters)) <= _MAX_SCHEMA_CHARACTERS
    except (TypeError, ValueError, RecursionError):
        return False


def _line(text: str) -> str:
    return " ".join(cleaned(text[: 4 * _MAX_LINE]).split())[:_MAX_LINE]
