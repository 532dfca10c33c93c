"""The tools of one chat and whether a call may run: settings, rules, the question, and what the answer means. Pure.

Nothing else allows a call: no text of a model, a tool or a file reaches these functions but as the call's arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol

from app.tools.tool import Preview, ServerTool

DEFAULT_MAX_ROUNDS = 25


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """What the person decided for all further calls of this chat.

    `scope` is "tool" (of `server`), "server" (all its tools) or "command" (of that tool, whose argument list begins
    with exactly `argv_prefix`). The rule allows such a call, or with `is_denied` refuses it. `fingerprint` is that of
    the tool or server as the person saw it: what has become another since is not allowed by the rule.
    """

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
    calls and results before the person is asked to go on.
    """

    enabled: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    rules: tuple[ApprovalRule, ...] = ()
    max_rounds: int = DEFAULT_MAX_ROUNDS

    def has(self, server: str, tool: str) -> bool:
        """Return whether a tool is switched on."""
        return server in self.enabled or f"{server}/{tool}" in self.enabled


NO_TOOL_SETTINGS = ToolSettings()


class Verdict(Enum):
    """What the rules of a chat say about a call."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Decision(Enum):
    """What the person answered."""

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
        if self.preview.argv:
            return (Decision.ONCE, Decision.TOOL, Decision.DENY, Decision.NEVER)
        return tuple(Decision)


class Approver(Protocol):
    """Who asks the person."""

    async def ask(self, question: ApprovalQuestion) -> Decision:
        """Return the person's decision; waits as long as nobody answers. Cancelling it withdraws the question."""


def verdict(rules: Sequence[ApprovalRule], tool: ServerTool, argv: Sequence[str] = ()) -> Verdict:
    """Return what `rules` say about a call of `tool`, which runs `argv` if it is a command: a refusal counts first.

    A command is allowed by the exact beginning of its arguments only. A tool or server that changed since it was
    allowed is asked about again.
    """
    matching = [rule for rule in rules if _matches(rule, tool, argv)]
    if any(rule.is_denied for rule in matching):
        return Verdict.DENY
    allowing = [rule for rule in matching if (not argv or rule.scope == "command") and _is_same(rule, tool)]
    return Verdict.ALLOW if allowing else Verdict.ASK


def _matches(rule: ApprovalRule, tool: ServerTool, argv: Sequence[str]) -> bool:
    if rule.server != tool.server:
        return False
    if rule.scope == "server":
        return True
    if rule.tool != tool.name:
        return False
    return rule.scope == "tool" or (bool(rule.argv_prefix) and tuple(argv[: len(rule.argv_prefix)]) == rule.argv_prefix)


def _is_same(rule: ApprovalRule, tool: ServerTool) -> bool:
    """Return whether the tool, or for a rule of its server all tools there, are those that the rule was made for."""
    return rule.fingerprint == (tool.server_fingerprint if rule.scope == "server" else tool.fingerprint)


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
