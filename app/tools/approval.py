"""The tools of one chat and whether a call may run: settings, rules, the question, and limits of rounds. Pure.

Nothing else allows a call: no text of a model, a tool or a file reaches these functions but as the call's arguments.
A round is an answer with calls, and their results: ask `next_step` before each, and add `repeat_note` to the result of
each call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Literal, Protocol

from app.protocol.chat import ToolCall
from app.tools.tool import Effect, Preview, ServerTool

DEFAULT_MAX_ROUNDS = 25
MAX_ROUNDS = 1000  # that a person may allow


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """What the person decided for all further calls of this chat. `scope` is "tool" (of `server`), "server" (all its
    tools) or "command" (of that tool, whose argument list begins with exactly `argv_prefix`). The rule allows such a
    call, or with `is_denied` refuses it. `fingerprint` is that of the tool or server as the person saw it: what has
    become another since is not allowed by the rule."""

    scope: Literal["tool", "server", "command"]
    server: str
    tool: str = ""
    argv_prefix: tuple[str, ...] = ()
    is_denied: bool = False
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """The tools of a chat. `enabled` has "server/tool", or "server" for all that it has; nothing is on by default.
    `folders` are the absolute paths that files may be read and written in. An answer has at most `max_rounds` rounds of
    calls and results before the person is asked to go on."""

    enabled: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    rules: tuple[ApprovalRule, ...] = ()
    max_rounds: int = DEFAULT_MAX_ROUNDS

    def has(self, server: str, tool: str) -> bool:
        return server in self.enabled or f"{server}/{tool}" in self.enabled


NO_TOOL_SETTINGS = ToolSettings()


class Verdict(Enum):
    """What the rules of a chat say about a call."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Decision(Enum):
    ONCE = "once"
    TOOL = "tool"  # this tool in this chat; of a command, all that begin with these arguments
    SERVER = "server"  # all tools of this server in this chat
    DENY = "deny"  # this call only
    NEVER = "never"  # this tool in this chat


@dataclass(frozen=True, slots=True)
class ApprovalQuestion:
    """A call that waits for the person. `arguments` is the whole JSON text; it and `preview` are untrusted."""

    tool: ServerTool
    arguments: str
    preview: Preview

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The answers that it takes: a command is never allowed by its server."""
        return tuple(each for each in Decision if each is not Decision.SERVER or not self.preview.argv)


class Approver(Protocol):
    async def ask(self, question: ApprovalQuestion) -> Decision:
        """Return the person's decision; waits as long as nobody answers. Cancelling it withdraws the question."""


def verdict(
    rules: Sequence[ApprovalRule], tool: ServerTool, argv: Sequence[str] = (), trusted: Collection[str] = ()
) -> Verdict:
    """Return whether a call of `tool`, with `argv` if it is a command, may run; a refusal of `rules` counts first. A
    command is allowed by the exact beginning of its arguments only. A tool or server that changed since it was allowed
    is asked about again. What only reads needs no question on the servers that are `trusted`."""
    matching = [rule for rule in rules if _matches(rule, tool, argv)]
    if any(rule.is_denied for rule in matching):
        return Verdict.DENY
    seen = {"server": tool.server_fingerprint, "tool": tool.fingerprint, "command": tool.fingerprint}
    has_rule = any(rule.fingerprint == seen[rule.scope] for rule in matching if not argv or rule.scope == "command")
    reads_only = tool.effect is Effect.READ and tool.server in trusted
    return Verdict.ALLOW if has_rule or reads_only else Verdict.ASK


def _matches(rule: ApprovalRule, tool: ServerTool, argv: Sequence[str]) -> bool:
    if rule.server != tool.server:
        return False
    if rule.scope == "server":
        return True
    if rule.tool != tool.name:
        return False
    return rule.scope == "tool" or (bool(rule.argv_prefix) and tuple(argv[: len(rule.argv_prefix)]) == rule.argv_prefix)


def rule_of(decision: Decision, question: ApprovalQuestion) -> ApprovalRule | None:
    """Return the rule that a decision adds to the chat, None for one about this call only."""
    tool = question.tool
    if decision is Decision.NEVER:
        return ApprovalRule("tool", tool.server, tool.name, is_denied=True)
    if decision is Decision.SERVER:
        return ApprovalRule("server", tool.server, fingerprint=tool.server_fingerprint)
    if decision is Decision.TOOL:
        argv = question.preview.argv
        scope: Literal["command", "tool"] = "command" if argv else "tool"
        return ApprovalRule(scope, tool.server, tool.name, argv, fingerprint=tool.fingerprint)
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
