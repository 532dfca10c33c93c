"""The MCP servers that other programs of this user know: where their files are, and their entries in our form.

Reads files of the user's own only: one that lies in a project's folder came with the project, and nobody wrote it here.
Nothing that is found runs before the person has confirmed it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.tools.mcp.config import OAUTH_KEYS, ServerConfig, config_of, load_json
from quantizer.system.errors import UserError
from quantizer.system.files import explained, open_regular, read_at_most

_MAX_BYTES = 64 << 20  # Claude Code keeps its history in the same file
# A string is taken whole, so that what looks like a comment inside stays.
_PIECES = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_COMMAS = re.compile(r'("(?:[^"\\\n]|\\.)*")|,(?=\s*[}\]])')
_Entries = Iterator[tuple[str, str, object]]  # project ("" for none), name, entry


def _at(*keys: str) -> Callable[[Mapping[str, Any]], _Entries]:
    """Return a reader of the object of entries under `keys`."""

    def entries(data: Mapping[str, Any]) -> _Entries:
        value: object = data
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        for name, entry in value.items() if isinstance(value, Mapping) else ():
            yield "", str(name), entry

    return entries


_MCP_SERVERS = _at("mcpServers")


def _of_claude_code(data: Mapping[str, Any]) -> _Entries:
    """Yield the servers of all projects, and those that Claude Code has for one project only."""
    yield from _MCP_SERVERS(data)
    projects = data.get("projects")
    for project, values in projects.items() if isinstance(projects, Mapping) else ():
        for _, name, entry in _MCP_SERVERS(values) if isinstance(values, Mapping) else ():
            yield str(project), name, entry


@dataclass(frozen=True, slots=True)
class Program:
    """A program and its file in the home folder, by system; `linux` stands for the other Unixes too. A path of Windows
    is relative to %APPDATA% where it begins with that."""

    name: str
    linux: str
    darwin: str = ""
    windows: str = ""
    entries: Callable[[Mapping[str, Any]], _Entries] = _MCP_SERVERS

    def path(self, home: Path, platform: str = sys.platform, app_data: str = "") -> Path:
        """Return where its file is on `platform`, a value of sys.platform."""
        if platform == "win32" and self.windows:
            return Path(app_data or str(home / "AppData" / "Roaming"), self.windows)
        return home / (self.darwin if platform == "darwin" and self.darwin else self.linux)


_MAC = "Library/Application Support"
PROGRAMS = (
    Program(
        "Claude Desktop",
        ".config/Claude/claude_desktop_config.json",
        f"{_MAC}/Claude/claude_desktop_config.json",
        "Claude/claude_desktop_config.json",
    ),
    Program("Claude Code", ".claude.json", entries=_of_claude_code),
    Program("Cursor", ".cursor/mcp.json"),
    Program(
        "VS Code", ".config/Code/User/mcp.json", f"{_MAC}/Code/User/mcp.json", "Code/User/mcp.json", _at("servers")
    ),
    Program("LM Studio", ".lmstudio/mcp.json"),
    Program("Windsurf", ".codeium/windsurf/mcp_config.json"),
    Program("Zed", ".config/zed/settings.json", windows="Zed/settings.json", entries=_at("context_servers")),
)


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server of another program: its entry in our form, which a program that has its own does not need to have."""

    program: str
    path: Path
    project: str
    entry: Mapping[str, Any]
    config: ServerConfig


def find_servers(
    home: Path, platform: str = sys.platform, app_data: str = ""
) -> tuple[tuple[FoundServer, ...], tuple[str, ...]]:
    """Return the servers of all programs, and why a file could not be read, a sentence each."""
    found: list[FoundServer] = []
    problems: list[str] = []
    for program in PROGRAMS:
        path = program.path(home, platform, app_data)
        try:
            found += _servers(program, path)
        except UserError as error:
            problems.append(error.cause)
    return tuple(found), tuple(problems)


def _servers(program: Program, path: Path) -> Iterator[FoundServer]:
    if not path.is_file():
        return
    with explained(f"{path} cannot be read"), open_regular(path) as file:
        text = read_at_most(file, _MAX_BYTES + 1).decode("utf-8", "replace")
    for project, name, raw in program.entries(load_json(without_comments(text).encode(), path, _MAX_BYTES)):
        entry = _in_our_form(raw)
        yield FoundServer(program.name, path, project, entry, config_of(name, entry))


def _in_our_form(raw: object) -> dict[str, Any]:
    """Return an entry with our names for what some programs call otherwise; what we do not know is left out."""
    if not isinstance(raw, Mapping):
        return {}
    values = dict(raw)
    command = values.get("command")
    if isinstance(command, Mapping):  # Zed's former form
        values |= {"command": command.get("path", "")} | {
            key: command[key] for key in ("args", "env") if key in command
        }
    if "url" not in values and "serverUrl" in values:  # Windsurf
        values["url"] = values["serverUrl"]
    if isinstance(values.get("oauth"), Mapping):
        values["oauth"] = {key: value for key, value in values["oauth"].items() if key in OAUTH_KEYS}
    known = ("command", "args", "env", "cwd", "type", "url", "headers", "oauth")
    return {key: values[key] for key in known if values.get(key) not in (None, "", {}, [])}


def without_comments(text: str) -> str:
    """Return the JSON in `text`; what is left out becomes spaces, so that positions in errors stay right."""
    plain = _PIECES.sub(lambda match: match.group(1) or re.sub(r"[^\n]", " ", match.group()), text)
    return _COMMAS.sub(lambda match: match.group(1) or " ", plain)
