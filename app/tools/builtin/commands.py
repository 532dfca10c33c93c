"""The server of the tool that runs commands, with the rights of the person, in a folder of the chat.

Owns what the person sees of a command before it runs, and what the model reads after. Which variables it gets is in
`app.tools.environment`. There is no shell unless the arguments name one. An editor that has a terminal runs it there.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.common.terminal import quoted_command, quoted_name
from app.protocol.chat import Tool
from app.tools.builtin.folders import Folders
from app.tools.builtin.near_names import what_is_there
from app.tools.builtin.processes import CommandTerminal, run_to_end
from app.tools.environment import SETTING, CommandEnvironment
from app.tools.tool import (
    BoundCommand,
    CallContext,
    Effect,
    FixedServer,
    Preview,
    ServerTool,
    ToolOutput,
    ToolProgress,
    cleaned,
    decoded,
)
from quantizer.system.errors import StorageError, UsageError

_SERVER = "commands"
_TIMEOUT_S, _MAX_TIMEOUT_S = 120, 1800
_MAX_PREVIEWED = 16
_MAX_WORDS = 20
_SCRIPTS = (".bat", ".cmd")  # Windows gives these to its shell, whose rules of quoting are others

RUN_COMMAND = ServerTool(
    _SERVER,
    "run_command",
    Tool(
        "run_command",
        "Run a program and read what it prints. There is no shell and no input; what is still running when the program "
        "ends is stopped. The user is asked first.",
        {
            "type": "object",
            "properties": {
                "argv": {
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 1,
                    "maxItems": 500,
                    "description": "The program and its arguments.",
                    "examples": [["python3", "test.py"]],
                },
                "folder": {"type": "string", "description": "Where it runs; default: the chat's first folder."},
                "timeout_s": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": _MAX_TIMEOUT_S,
                    "description": f"Seconds until it is stopped. Default: {_TIMEOUT_S}.",
                },
            },
            "required": ["argv"],
            "additionalProperties": False,
        },
    ),
    Effect.RUN,
    "Run a command",
    timeout_s=0.0,
)


class CommandServer(FixedServer):
    """A `ToolServer` that runs commands, which get `environment`, in the `terminal` of an editor where it has one."""

    def __init__(self, environment: CommandEnvironment, terminal: CommandTerminal | None = None) -> None:
        super().__init__(_SERVER, (RUN_COMMAND,))
        self._environment = environment
        self._terminal = terminal if terminal is not None and terminal.is_offered else None
        self._previewed: OrderedDict[str, BoundCommand] = OrderedDict()

    async def preview(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> Preview:
        """Return the command with its program, folder and environment. Raises UserError for one that cannot run."""
        del tool
        argv = arguments["argv"]
        command = await asyncio.to_thread(self._bound, arguments, context)
        self._previewed[_key(arguments, context)] = command
        while len(self._previewed) > _MAX_PREVIEWED:
            self._previewed.popitem(last=False)
        shown = quoted_command(argv)
        leads = f" → {quoted_name(command.target)}" if command.target != command.program else ""
        lines = [
            shown,
            f"program: {quoted_name(command.program)}{leads}",
            f"folder: {quoted_name(command.folder)}",
            *_environment_lines(self._environment, argv, is_in_editor=self._terminal is not None),
            f"input: {'none' if self._terminal is None else 'yours'}; stopped after {_timeout_s(arguments)} s",
        ]
        return Preview("command", f"run {shown}", "\n".join(lines), command)

    async def call(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> ToolOutput:
        """Run the command and return its output and exit status. Raises UserError if it cannot be started, and where
        its program or folder is no longer what the person was shown."""
        del tool
        shown = self._previewed.pop(_key(arguments, context), None)
        command = await asyncio.to_thread(self._bound, arguments, context)
        if shown != command:
            raise StorageError(
                "The program or the folder of this command was changed after it was shown.", "Call the tool again."
            )

        def show(data: bytes) -> None:
            context.on_progress(ToolProgress(output=cleaned(decoded(data))))

        variables, timeout_s = self._environment.variables, _timeout_s(arguments)
        if self._terminal is None:
            ended = await run_to_end(command.argv, command.program, Path(command.folder), variables, timeout_s, show)
        else:
            # The editor adds its own variables, which may be secrets: those that a command does not get are empty.
            emptied = dict.fromkeys(self._environment.withheld, "")
            ended = await self._terminal.run(command, {**emptied, **variables}, timeout_s)
        text, status = decoded(ended.output), ended.status or 0
        how = f"exit status {status}" if status >= 0 else f"ended by signal {-status}"
        if ended.reason:
            how = f"stopped: {ended.reason}"
        separator = "" if text.endswith("\n") or not text else "\n"
        return ToolOutput(f"{text}{separator}[{how}]", bool(ended.reason), how, ended.n_bytes, ended.is_timed_out)

    def _bound(self, arguments: Mapping[str, Any], context: CallContext) -> BoundCommand:
        return bound_command(arguments["argv"], _folder(arguments, context), self._environment.variables)


def bound_command(argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> BoundCommand:
    """Return the command that `argv` is in `folder`. Raises UsageError for a program that is not there."""
    program = os.path.abspath(_program(argv[0], folder, environment))  # noqa: PTH100 - links stay as they are
    return BoundCommand(tuple(argv), program, os.path.realpath(program), os.path.realpath(folder))


def _key(arguments: Mapping[str, Any], context: CallContext) -> str:
    return json.dumps([dict(arguments), [str(folder) for folder in context.folders]], sort_keys=True)


def _environment_lines(environment: CommandEnvironment, argv: Sequence[str], *, is_in_editor: bool) -> list[str]:
    """Return which variables a command gets: names that are the person's choice in full, and those that it may miss."""
    n_usual = len(environment.variables) - len(environment.added)
    added = f" and {', '.join(environment.added)} ({SETTING})" if environment.added else ""
    lines = [f"environment: {n_usual} usual variables{added}, without {len(environment.withheld)} others of yours"]
    if is_in_editor:
        lines.append("runs in a terminal of your editor, which may add variables of its own")
    if missed := environment.withheld_in(argv):
        lines.append(f"not passed: {', '.join(missed)}, which the command names ({SETTING} adds names)")
    return lines


def _folder(arguments: Mapping[str, Any], context: CallContext) -> Path:
    folders = Folders(context.folders)
    path = folders.find(arguments.get("folder", "."))
    if not path.is_dir():
        raise UsageError(f"There is no folder {folders.shown(path)}.", what_is_there(folders, path, is_folder=True))
    return path


def _timeout_s(arguments: Mapping[str, Any]) -> int:
    return int(arguments.get("timeout_s", _TIMEOUT_S))


def _how_to_run(name: str, folder: Path) -> str:
    """Return what to do about a program that is not there: models often give a whole line, or a file, for its name."""
    if len(words := name.split()) > 1:
        return f"Give each word by itself: {json.dumps(words[:_MAX_WORDS], ensure_ascii=False)}"
    with suppress(OSError, ValueError):  # too long, or a character that no name has
        path = Path(os.path.realpath(folder / name))
        # Nobody has been asked yet: whether there is a file elsewhere is not the model's to know.
        if path.is_relative_to(folder) and path.is_file():
            return f"It is a file: name what runs it, as in {json.dumps(['python3', name], ensure_ascii=False)}"
    return "Check its name, or run it with another program."


def _program(name: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Return the path of the program `name`: on the PATH, or with a separator from `folder` on. Raises UsageError."""
    if not name or "\0" in name:
        raise UsageError("The name of the program is empty or has a NUL.", "Name a program.")
    has_folder = "/" in name or (os.sep in name)
    found = shutil.which(str(folder / name) if has_folder else name, path=environment.get("PATH"))
    if found is None:
        raise UsageError(f"There is no program {name}.", _how_to_run(name, folder))
    if os.name == "nt" and found.lower().endswith(_SCRIPTS):
        raise UsageError(f"{name} is a script of the Windows shell.", 'Run it as ["cmd", "/c", ...].')
    return found
