"""The tools of a chat as the person switches them: changes of `ToolSettings`, and the settings as text.

Names are those of servers ("files"), of tools ("read_file") or both ("files/read_file"). What a server says of itself
and of its tools is untrusted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.common.terminal import printable_line, quoted_command, quoted_name
from app.tools.approval import MAX_ROUNDS, ApprovalRule, ToolSettings
from app.tools.tool import BoundCommand, Effect, ServerStatus, ServerTool
from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from app.tools.backend import ToolBackend

ALL = "all"
_N_NAMED = 20
_N_IN_SHORT = 2
_DESCRIPTION_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class RequestedTools:
    """Names of servers and tools to switch on, folders as resolved paths, names of those that need no question,
    commands that need none in the chat's first folder, beginnings of such commands, and the most rounds (None: as the
    chat has it)."""

    enabled: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    beginnings: tuple[tuple[str, ...], ...] = ()
    max_rounds: int | None = None

    def __bool__(self) -> bool:
        return self != RequestedTools()

    async def applied(self, settings: ToolSettings, tools: ToolBackend) -> ToolSettings:
        """Return `settings` with these switched on, and allowed as they are now: a command as the program that it is
        in the first folder. Raises UsageError for an unknown name, and for a program that is not there."""
        servers = await tools.servers()
        for name in self.enabled:
            settings = switched(settings, servers, name, is_switched_on=True)
        for folder in self.folders:
            settings = with_folder(settings, folder)
        if self.max_rounds is not None:
            settings = replace(settings, max_rounds=self.max_rounds)
        if self.allowed or self.commands or self.beginnings:
            offered = await tools.offered(settings)
            rules = allowing_rules(offered, self.allowed)
            for commands, has_more in ((self.commands, False), (self.beginnings, True)):
                bound = await asyncio.to_thread(_bound, commands, settings.folders) if commands else []
                rules += command_rules(offered, bound, has_more=has_more)
            settings = replace(settings, rules=tuple(dict.fromkeys((*settings.rules, *rules))))
        return settings


def switched(
    settings: ToolSettings, servers: Sequence[ServerStatus], name: str, *, is_switched_on: bool
) -> ToolSettings:
    """Return `settings` with a server, or one of its tools, switched on or off; "all" only off. Raises UsageError for
    an unknown name."""
    if name == ALL and not is_switched_on:
        return replace(settings, enabled=())
    server, tool = _found(settings, servers, name)
    if tool is None:
        others = [each for each in settings.enabled if each.partition("/")[0] != server]
        return replace(settings, enabled=(*others, server) if is_switched_on else tuple(others))
    if settings.has(server, tool) == is_switched_on:
        return settings
    if is_switched_on:
        return replace(settings, enabled=(*settings.enabled, f"{server}/{tool}"))
    kept = [each for each in settings.enabled if each not in (server, f"{server}/{tool}")]
    if server in settings.enabled:  # all of its tools: those that are known stay on
        status = next((each for each in servers if each.name == server), None)
        siblings = status.tools if status is not None else ()
        kept += [f"{server}/{each.name}" for each in siblings if each.name != tool]
    return replace(settings, enabled=tuple(dict.fromkeys(kept)))


def _found(settings: ToolSettings, servers: Sequence[ServerStatus], name: str) -> tuple[str, str | None]:
    """Return the server with this name, or a tool and its server; also one that is on though its server is gone."""
    server_name, slash, tool_name = name.partition("/")
    for server in servers:
        if server.name == name:
            return name, None
        for tool in server.tools:
            if (server.name == server_name and tool.name == tool_name) if slash else name == tool.definition.name:
                return server.name, tool.name
    if name in settings.enabled:
        return (server_name, tool_name) if slash else (name, None)
    known = ", ".join(printable_line(server.name) for server in servers[:_N_NAMED]) or "none"
    raise UsageError(f"There are no tools called {name}.", f"Servers of tools: {known}. /tools lists all.")


def names_of(servers: Sequence[ServerStatus]) -> list[str]:
    """Return the names that can be switched: of each server, then of its tools."""
    return [
        name for server in servers for name in (server.name, *(f"{server.name}/{tool.name}" for tool in server.tools))
    ]


def with_folder(settings: ToolSettings, path: str) -> ToolSettings:
    """Return `settings` with a folder, an absolute path, added."""
    return replace(settings, folders=tuple(dict.fromkeys((*settings.folders, path))))


def without_folder(settings: ToolSettings, path: str) -> ToolSettings:
    """Return `settings` without a folder. Raises UsageError for one that they do not have."""
    if path not in settings.folders:
        raise UsageError(f"{path} is not a folder of this chat's tools.", "/tools lists them.")
    return replace(settings, folders=tuple(each for each in settings.folders if each != path))


def without_rule(settings: ToolSettings, index: int) -> ToolSettings:
    """Return `settings` without the rule at `index`, counted from 0. Raises UsageError for one that does not exist."""
    if not 0 <= index < len(settings.rules):
        raise UsageError(f"There is no rule {index + 1}.", "/tools lists what this chat allows and refuses.")
    return replace(settings, rules=(*settings.rules[:index], *settings.rules[index + 1 :]))


def with_rounds(settings: ToolSettings, text: str) -> ToolSettings:
    """Return `settings` with the most rounds of an answer. Raises UsageError for a text that is no such number."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_ROUNDS):
        raise UsageError(f"{text} is not a number of rounds.", f"Give one from 1 to {MAX_ROUNDS}: /tools rounds 25.")
    return replace(settings, max_rounds=int(text))


def allowing_rules(offered: Sequence[ServerTool], names: Sequence[str]) -> list[ApprovalRule]:
    """Return rules that allow servers and tools by their names. Raises UsageError for a name that is not among the
    tools that are on."""
    rules = []
    for name in names:
        tools = [tool for tool in offered if name in (tool.server, f"{tool.server}/{tool.name}", tool.definition.name)]
        if not tools:
            known = ", ".join(dict.fromkeys(printable_line(tool.server) for tool in offered)) or "none"
            raise UsageError(f"{name} cannot be allowed: it is not on.", f"Tools that are on: those of {known}.")
        tool = tools[0]
        if name == tool.server:
            rules.append(ApprovalRule("server", tool.server, fingerprint=tool.server_fingerprint))
        else:
            rules.append(ApprovalRule("tool", tool.server, tool.name, fingerprint=tool.fingerprint))
    return rules


def command_rules(
    offered: Sequence[ServerTool], commands: Sequence[BoundCommand], *, has_more: bool
) -> list[ApprovalRule]:
    """Return rules that allow `commands`, with `has_more` also with arguments after theirs. Raises UsageError where no
    tool that runs commands is on."""
    runners = [tool for tool in offered if tool.effect is Effect.RUN]
    if commands and not runners:
        raise UsageError("No tool is on that runs commands.", "Add --tools commands.")
    return [
        ApprovalRule("command", tool.server, tool.name, each, has_more=has_more, fingerprint=tool.fingerprint)
        for tool in runners
        for each in commands
    ]


def _bound(commands: Sequence[tuple[str, ...]], folders: Sequence[str]) -> list[BoundCommand]:
    """Return what `commands` are in the first of `folders`. Raises UsageError."""
    from app.tools.builtin.commands import bound_command  # imports asyncio's subprocesses and psutil

    if not folders:
        raise UsageError("Commands run in a folder of the chat, and it has none.", "Add --folder.")
    return [bound_command(argv, Path(folders[0]), os.environ) for argv in commands]


def is_on(settings: ToolSettings, server: ServerStatus) -> bool:
    """Return whether a server, or any of its tools, is switched on."""
    return any(each.partition("/")[0] == server.name for each in settings.enabled)


def enabled_tools(settings: ToolSettings, servers: Sequence[ServerStatus]) -> list[ServerTool]:
    return [tool for server in servers for tool in server.tools if settings.has(server.name, tool.name)]


def rule_text(rule: ApprovalRule) -> str:
    verb = "refused" if rule.is_denied else "allowed"
    server, tool = printable_line(rule.server), printable_line(rule.tool)
    if rule.scope == "server":
        return f"{verb}: all of {server}"
    if rule.is_former:
        begins = quoted_command(rule.argv_prefix)
        return f"no longer allowed: commands that begin with {begins}, of any program and folder; the next one asks"
    if rule.scope == "command":
        shown = quoted_command(rule.command.argv if rule.command is not None else rule.argv_prefix)
        more = " and any arguments after it" if rule.has_more or rule.command is None else ""
        where = f", {quoted_name(rule.command.program)} in {quoted_name(rule.command.folder)}" if rule.command else ""
        return f"{verb}: {shown}{more}{where}"
    return f"{verb}: {tool} of {server}"


def tools_text(settings: ToolSettings, servers: Sequence[ServerStatus], n_tokens: int | None) -> str:
    """Return the tools of a chat, one per line, its folders and its rules; `n_tokens` is what the definitions cost."""
    return "\n".join(_lines(settings, servers, n_tokens))


def _lines(settings: ToolSettings, servers: Sequence[ServerStatus], n_tokens: int | None) -> Iterator[str]:
    yield summary(settings, servers, n_tokens)
    for server in servers:
        yield f"{_box(is_on(settings, server))} {printable_line(server.name)} ({printable_line(server.origin)})"
        if server.problem:
            yield f"    ! {printable_line(server.problem)}"
        yield from (f"    {printable_line(note)}" for note in server.notes)
        for tool in server.tools:
            yield f"    {_box(settings.has(server.name, tool.name))} {printable_line(tool.name)}: {_beginning(tool)}"
    yield from (f"folder: {quoted_name(folder)}" for folder in settings.folders)
    yield from (f"{number}. {rule_text(rule)}" for number, rule in enumerate(settings.rules, start=1))
    yield (
        "/tools on NAME, off NAME, folder PATH, drop PATH, trust PATH, rounds NUMBER; forget NUMBER removes what was "
        "decided."
    )


def summary(settings: ToolSettings, servers: Sequence[ServerStatus], n_tokens: int | None) -> str:
    """Return how many tools are on, and what they cost."""
    n_on = len(enabled_tools(settings, servers))
    if not n_on and not settings.enabled:
        return "No tools are on in this chat."
    cost = "" if n_tokens is None else f", {n_tokens:,} tokens of every prompt"
    return f"{n_on} tool{'' if n_on == 1 else 's'} on{cost}, at most {settings.max_rounds} rounds of calls an answer."


def tools_in_short(settings: ToolSettings) -> str:
    """Return the servers of which tools are on, for a status line."""
    servers = [printable_line(name) for name in dict.fromkeys(each.partition("/")[0] for each in settings.enabled)]
    shown = ", ".join(servers[:_N_IN_SHORT])
    return f"{shown} +{len(servers) - _N_IN_SHORT}" if len(servers) > _N_IN_SHORT else shown


def _box(is_checked: bool) -> str:
    return "[x]" if is_checked else "[ ]"


def _beginning(tool: ServerTool) -> str:
    text = printable_line(tool.definition.description)
    return text if len(text) <= _DESCRIPTION_CHARACTERS else f"{text[: _DESCRIPTION_CHARACTERS - 1]}…"
