"""The tools of one chat: which are switched on, for which folders, and what the person has allowed. Pure.

Stored with the chat. Whether a call may run by these rules is decided by `app.tools.approval`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
