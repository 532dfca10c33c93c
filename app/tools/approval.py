"""The tools of one chat and whether a call may run: settings, rules, the question, and limits of rounds. Pure.

Nothing else allows a call: no text of a model, a tool or a file reaches these functions but as the call's arguments.
A round is an answer with calls, and their results: ask `next_step` before each, and add `repeat_note` to the result of
each call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import takewhile
from typing import Literal, Protocol

from app.protocol.chat import ToolCall
from app.tools.tool import BoundCommand, Effect, Preview, ServerTool

DEFAULT_MAX_ROUNDS = 25
MAX_ROUNDS = 1000  # that a person may allow
KNOWLEDGE = "knowledge"  # the server whose tool searches the person's folders


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """What the person decided for all further calls of this chat. `scope` is "tool" (of `server`), "server" (all its
    tools) or "command" (of that tool: this program in this folder with exactly these arguments, or with `has_more` any
    after them). The rule allows such a call, or with `is_denied` refuses it. `fingerprint` is that of the tool or
    server as the person saw it: what has become another since is not allowed by the rule.

    A rule that version 0.1 stored has an `argv_prefix` instead of a command. It covered programs that the person never
    saw, so it allows nothing any more, and the next question says so."""

    scope: Literal["tool", "server", "command"]
    server: str
    tool: str = ""
    command: BoundCommand | None = None
    has_more: bool = False
    is_denied: bool = False
    fingerprint: str = ""
    argv_prefix: tuple[str, ...] = ()

    @property
    def is_former(self) -> bool:
        """Whether it is a rule of version 0.1 that allows nothing any more."""
        return self.scope == "command" and self.command is None and not self.is_denied


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """The tools of a chat. `enabled` has "server/tool", or "server" for all that it has; nothing is on by default.
    `folders` are the absolute paths that files may be read and written in. An answer has at most `max_rounds` rounds of
    calls and results before the person is asked to go on. With `searches_first` the person's folders, where that tool
    is on, are searched before each question instead of by calls."""

    enabled: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    rules: tuple[ApprovalRule, ...] = ()
    max_rounds: int = DEFAULT_MAX_ROUNDS
    searches_first: bool = False

    def has(self, server: str, tool: str) -> bool:
        return server in self.enabled or f"{server}/{tool}" in self.enabled

    @property
    def has_knowledge(self) -> bool:
        """Whether answers may use the person's folders."""
        return any(name.partition("/")[0] == KNOWLEDGE for name in self.enabled)

    def without(self, server: str) -> ToolSettings:
        """Return these settings with all tools of a server switched off."""
        return replace(self, enabled=tuple(name for name in self.enabled if name.partition("/")[0] != server))


NO_TOOL_SETTINGS = ToolSettings()


class Verdict(Enum):
    """What the rules of a chat say about a call."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Decision(Enum):
    ONCE = "once"
    TOOL = "tool"  # this tool in this chat; of a command, exactly this one in this folder
    BEGINNING = "beginning"  # of a command: this program in this folder with these arguments and any after them
    SERVER = "server"  # all tools of this server in this chat
    DENY = "deny"  # this call only
    NEVER = "never"  # this tool in this chat


@dataclass(frozen=True, slots=True)
class ApprovalQuestion:
    """A call that waits for the person. `arguments` is the whole JSON text; it and `preview` are untrusted. `note` says
    why a rule that looks as if it allowed the call does not, "" where there is none."""

    tool: ServerTool
    arguments: str
    preview: Preview
    note: str = ""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The answers that it takes: a command is never allowed by its server, and only one has a beginning; what a
        server asks for is no tool of it, and a form is never filled in unseen."""
        others = {Decision.BEGINNING if self.preview.command is None else Decision.SERVER}
        others |= {"form": {Decision.SERVER, Decision.TOOL}, "sampling": {Decision.SERVER}}.get(
            self.preview.kind, set()
        )
        return tuple(each for each in Decision if each not in others)


class Approver(Protocol):
    async def ask(self, question: ApprovalQuestion) -> Decision:
        """Return the person's decision; waits as long as nobody answers. Cancelling it withdraws the question."""


def verdict(
    rules: Sequence[ApprovalRule],
    tool: ServerTool,
    command: BoundCommand | None = None,
    trusted: Collection[str] = (),
) -> Verdict:
    """Return whether a call of `tool`, which runs `command` if it does, may run; a refusal of `rules` counts first. A
    command is allowed by a rule about its program, folder and arguments only. A tool or server that changed since it
    was allowed is asked about again. What only reads needs no question on the servers that are `trusted`."""
    matching = [rule for rule in rules if _matches(rule, tool, command)]
    if any(rule.is_denied for rule in matching):
        return Verdict.DENY
    seen = {"server": tool.server_fingerprint, "tool": tool.fingerprint, "command": tool.fingerprint}
    of_commands = command is not None
    has_rule = any(
        rule.fingerprint == seen[rule.scope] for rule in matching if (rule.scope == "command") == of_commands
    )
    reads_only = tool.effect is Effect.READ and tool.server in trusted
    return Verdict.ALLOW if has_rule or reads_only else Verdict.ASK


def _matches(rule: ApprovalRule, tool: ServerTool, command: BoundCommand | None) -> bool:
    if rule.server != tool.server:
        return False
    if rule.scope == "server":
        return True
    if rule.tool != tool.name:
        return False
    if rule.scope == "tool":
        return True
    if command is None or rule.is_former:
        return False
    if rule.command is None:  # a refusal of a former version
        return _begins_with(command, rule.argv_prefix)
    has_arguments = command.argv == rule.command.argv or (rule.has_more and _begins_with(command, rule.command.argv))
    return has_arguments and command.is_same_place(rule.command)


def _begins_with(command: BoundCommand, argv: tuple[str, ...]) -> bool:
    return bool(argv) and command.argv[: len(argv)] == argv


def note_of(rules: Sequence[ApprovalRule], tool: ServerTool, command: BoundCommand | None) -> str:
    """Return why `command` is asked about though a rule allows what looks the same, "" where none does."""
    of_tool = [rule for rule in rules if (rule.scope, rule.server, rule.tool) == ("command", tool.server, tool.name)]
    notes = [_difference(rule, command) for rule in of_tool if command is not None and not rule.is_denied]
    return next(filter(None, notes), "")


def _difference(rule: ApprovalRule, command: BoundCommand) -> str:
    """Return what `command` has that is not as `rule` allows it, "" where its arguments begin otherwise."""
    allowed = rule.command
    if not _begins_with(command, rule.argv_prefix if allowed is None else allowed.argv):
        return ""
    if allowed is None:
        return "An earlier version allowed commands that begin so, of any program and folder. Decide again."
    differences = (
        (command.folder != allowed.folder, f"What you allowed runs in another folder: {allowed.folder}."),
        (command.program != allowed.program, f"What you allowed is another program: {allowed.program}."),
        (command.target != allowed.target, f"{allowed.program} led to another program: {allowed.target}."),
        (command.argv != allowed.argv and not rule.has_more, "What you allowed has fewer arguments."),
    )
    return next((text for is_so, text in differences if is_so), "")


def rule_of(decision: Decision, question: ApprovalQuestion) -> ApprovalRule | None:
    """Return the rule that a decision adds to the chat, None for one about this call only."""
    tool = question.tool
    if decision is Decision.NEVER:
        return ApprovalRule("tool", tool.server, tool.name, is_denied=True)
    if decision is Decision.SERVER:
        return ApprovalRule("server", tool.server, fingerprint=tool.server_fingerprint)
    if decision is Decision.TOOL:
        command = question.preview.command
        scope: Literal["command", "tool"] = "tool" if command is None else "command"
        return ApprovalRule(scope, tool.server, tool.name, command, fingerprint=tool.fingerprint)
    if decision is Decision.BEGINNING:
        command = question.preview.command
        return ApprovalRule("command", tool.server, tool.name, command, has_more=True, fingerprint=tool.fingerprint)
    return None


N_NOTED = 3  # the same call this often in a row: the model is told
N_STOPPED = 6  # and this often: the person is asked


class StepKind(Enum):
    """What comes after the results of a round."""

    GO_ON = "go on"
    LIMIT = "limit"  # the rounds that the chat allows are used up
    REPEATING = "repeating"  # the model makes the same call again and again


@dataclass(frozen=True, slots=True)
class NextStep:
    """Whether the model answers next, or the person is asked whether it may; `text` is the question, "" to go on."""

    kind: StepKind
    text: str = ""

    @property
    def is_allowed(self) -> bool:
        return self.kind is StepKind.GO_ON


def next_step(rounds: Sequence[Sequence[ToolCall]], max_rounds: int, n_granted: int = 0) -> NextStep:
    """Return what comes after `rounds`, the calls of each round since the question. `n_granted` is how many of them
    there were when the person last let the model go on, 0 if they were not asked: it may then use `max_rounds` more."""
    calls = [call for made in rounds for call in made]
    granted = sum(map(len, rounds[:n_granted]))
    n_repeats = n_in_a_row(calls[granted:])
    if n_repeats >= N_STOPPED:
        cause = f"The model made the same call of {calls[-1].name} {n_repeats} times in a row."
        return NextStep(StepKind.REPEATING, f"{cause} Let it go on?")
    n_rounds = len(rounds) - n_granted
    if n_rounds >= max_rounds:
        return NextStep(StepKind.LIMIT, f"The model has called tools in {len(rounds)} rounds. Let it go on?")
    return NextStep(StepKind.GO_ON)


def n_in_a_row(calls: Sequence[ToolCall]) -> int:
    """Return how often the last of `calls` was made in a row: the same tool with equal arguments."""
    identities = map(_identity, reversed(calls))
    last = next(identities, None)
    return sum(1 for _ in takewhile(lambda each: each == last, identities)) + (last is not None)


def repeat_note(calls: Sequence[ToolCall]) -> str:
    """Return what the model is told after the result of the last of `calls`, "" unless it repeats itself."""
    n_repeats = n_in_a_row(calls)
    if n_repeats < N_NOTED:
        return ""
    return (
        f"[You have made this same call {n_repeats} times in a row. Making it again will not help: use what it "
        "returned, try something else, or say what is missing.]"
    )


def _identity(call: ToolCall) -> tuple[str, str]:
    """Return what equal calls have in common: spaces and the order of keys make no difference."""
    try:
        return call.name, json.dumps(json.loads(call.arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return call.name, call.arguments
