"""Scripted tools, for tests and for work on everything around them: a `ToolServer` and a `ToolBackend`.

They keep the rules of the real ones: what was not approved does not run, changes are recorded before they are made,
and a call that is cancelled stops. They touch neither disk nor network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.protocol.chat import Tool
from app.tools.approval import ApprovalQuestion, Decision, ToolSettings, Verdict, rule_of, verdict
from app.tools.backend import CallRequest, FinishedCall
from app.tools.tool import (
    CallContext,
    Effect,
    FileChange,
    Preview,
    ServerStatus,
    ServerTool,
    ToolOutcome,
    ToolOutput,
    ToolProgress,
    ToolResult,
    bounded,
)
from quantizer.system.errors import StorageError, UserError


def fake_tool(name: str, effect: Effect = Effect.UNKNOWN, server: str = "fake", **values: Any) -> ServerTool:
    """Return a tool that takes any arguments; `values` are more fields of it."""
    definition = Tool(name, f"Does {name}.", {"type": "object"})
    return ServerTool(**{"server": server, "name": name, "definition": definition, "effect": effect, **values})


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """What a call of a fake does, in this order: it shows `preview`, reports `progress`, records `changes`, waits for
    `gate` (without one it does not wait), and returns `output` or raises `error`."""

    output: ToolOutput = field(default_factory=lambda: ToolOutput("done"))
    preview: Preview | None = None
    progress: tuple[ToolProgress, ...] = ()
    changes: tuple[FileChange, ...] = ()
    gate: asyncio.Event | None = None
    error: UserError | None = None


_DEFAULT = ScriptedCall()


class ScriptedApprover:
    """An `Approver` that gives `decisions` in order, and then waits for ever, as where nobody answers."""

    def __init__(self, *decisions: Decision) -> None:
        self.questions: list[ApprovalQuestion] = []
        self._decisions = list(decisions)

    async def ask(self, question: ApprovalQuestion) -> Decision:
        self.questions.append(question)
        if not self._decisions:
            await asyncio.Event().wait()
        return self._decisions.pop(0)


class FakeToolServer:
    """A `ToolServer` of `tools`. Each call takes the next of its tool's `script`; the last is used again.

    `start_error` is raised when it is asked for its tools. `called` has the calls that ran, `began` is set with the
    first; `is_closed` says that it was stopped, `n_cancelled` how many calls were stopped in the middle.
    """

    def __init__(
        self,
        name: str = "fake",
        tools: Iterable[ServerTool] = (),
        script: Mapping[str, Sequence[ScriptedCall]] | None = None,
        start_error: UserError | None = None,
    ) -> None:
        self.called: list[tuple[str, Mapping[str, Any]]] = []
        self.began = asyncio.Event()
        self.n_cancelled = 0
        self.is_closed = False
        self._name = name
        self._tools = tuple(tools)
        self._script = {tool: list(calls) for tool, calls in (script or {}).items()}
        self._start_error = start_error

    @property
    def name(self) -> str:
        return self._name

    def status(self) -> ServerStatus:
        if self._start_error is not None:
            return ServerStatus(self._name, "a test", "failed", problem=str(self._start_error))
        return ServerStatus(self._name, "a test", "ready", self._tools)

    async def tools(self) -> tuple[ServerTool, ...]:
        if self._start_error is not None:
            raise self._start_error
        return self._tools

    async def preview(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> Preview:
        del context
        return self._next(tool).preview or Preview("arguments", f"call {tool.name}", str(dict(arguments)))

    async def call(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> ToolOutput:
        scripted = self._next(tool)
        if len(calls := self._script.get(tool.name, [])) > 1:
            calls.pop(0)
        self.called.append((tool.name, arguments))
        self.began.set()
        try:
            return await _play(scripted, context)
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise

    async def close(self) -> None:
        self.is_closed = True

    def _next(self, tool: ServerTool) -> ScriptedCall:
        calls = self._script.get(tool.name)
        return calls[0] if calls else _DEFAULT


async def _play(scripted: ScriptedCall, context: CallContext) -> ToolOutput:
    for progress in scripted.progress:
        context.on_progress(progress)
    for change in scripted.changes:
        await context.record_change(change)
    if scripted.gate is not None:
        await scripted.gate.wait()
    if scripted.error is not None:
        raise scripted.error
    return scripted.output


class FakeToolBackend:
    """A `ToolBackend` of one `FakeToolServer`. It asks as the real one does, but checks no arguments.

    `undone` has the changes that were taken back; a path in `changed_since` makes `undo` refuse.
    """

    def __init__(self, server: FakeToolServer) -> None:
        self.server = server
        self.undone: list[FileChange] = []
        self.changed_since: set[str] = set()

    async def servers(self, *, start: bool = False) -> tuple[ServerStatus, ...]:
        del start
        return (self.server.status(),)

    async def offered(self, settings: ToolSettings) -> tuple[ServerTool, ...]:
        try:
            tools = await self.server.tools()
        except UserError:
            return ()
        return tuple(tool for tool in tools if settings.has(tool.server, tool.name))

    async def run(self, request: CallRequest) -> FinishedCall:
        call, settings = request.call, request.settings
        tool = next((tool for tool in await self.offered(settings) if tool.definition.name == call.name), None)
        result = ToolResult(call_id=call.call_id, tool=call.name, title=call.name)
        if tool is None:
            failed = replace(result, outcome=ToolOutcome.FAILED, detail="no such tool")
            return FinishedCall(f"There is no tool called {call.name}.", failed)

        async def record(change: FileChange) -> None:
            nonlocal result
            result = replace(result, changes=(*result.changes, change))
            await request.on_update(result)

        context = CallContext(on_progress=request.on_progress, record_change=record)
        preview = await self.server.preview(tool, {}, context)
        diff = preview.text if preview.kind == "diff" else ""
        result = replace(result, tool=tool.name, server=tool.server, title=preview.title, diff=diff)
        await request.on_update(result)
        by_rules, rule = verdict(settings.rules, tool, preview.command), None
        if by_rules is Verdict.ASK and tool.effect is not Effect.READ:
            question = ApprovalQuestion(tool, call.arguments, preview)
            decision = await request.approver.ask(question)
            rule = rule_of(decision, question)
            by_rules = Verdict.DENY if decision in (Decision.DENY, Decision.NEVER) else Verdict.ALLOW
        if by_rules is Verdict.DENY:
            return FinishedCall("The user did not allow this call.", replace(result, outcome=ToolOutcome.DENIED), rule)
        try:
            output = await self.server.call(tool, {}, context)
        except UserError as error:
            return FinishedCall(str(error), replace(result, outcome=ToolOutcome.FAILED, detail=error.cause), rule)
        outcome = ToolOutcome.FAILED if output.is_error else ToolOutcome.DONE
        n_bytes = len(output.text.encode("utf-8", "replace"))
        finished = replace(result, outcome=outcome, detail=output.detail, n_bytes=n_bytes)
        return FinishedCall(bounded(output.text, request.max_characters), finished, rule, media=output.media)

    async def undo(self, changes: Sequence[FileChange]) -> tuple[FileChange, ...]:
        for change in changes:
            if change.path in self.changed_since:
                raise StorageError(f"{change.path} was changed since.", "Nothing was undone.")
        self.undone += reversed(changes)
        return tuple(replace(change, before=change.after, after=change.before) for change in reversed(changes))

    async def close(self) -> None:
        await self.server.close()
