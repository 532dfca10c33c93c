"""Variables in the texts of `mcp.json`, as Cursor and Claude Code write them. Pure.

`${NAME}` and `${env:NAME}` are a variable of the environment, `${NAME:-text}` has a text for where it is not set, and
`${userHome}` is the home folder. They are replaced when a server starts, so that no file has to hold a key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from app.tools.mcp.config.entry import HttpLaunch, Launch, StdioLaunch
from app.tools.mcp.errors import ToolError

_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def expanded(launch: Launch, environment: Mapping[str, str]) -> Launch:
    """Return `launch` with its variables replaced. Raises ToolError that names one that is not set or not known."""

    def text(value: str) -> str:
        return _VARIABLE.sub(lambda match: _value(match.group(1), environment), value)

    def table(values: Mapping[str, str]) -> dict[str, str]:
        return {name: text(value) for name, value in values.items()}

    if isinstance(launch, HttpLaunch):
        return replace(launch, url=text(launch.url), headers=table(launch.headers))
    args = tuple(map(text, launch.args))
    return StdioLaunch(text(launch.command), args, table(launch.env), text(launch.cwd))


def _value(inside: str, environment: Mapping[str, str]) -> str:
    if inside == "userHome":
        return str(Path.home())
    name, has_default, default = inside.removeprefix("env:").partition(":-")
    if not _NAME.fullmatch(name):
        raise ToolError(
            f"mcp.json has ${{{inside}}}, which localllm does not know.",
            "It knows ${NAME}, ${NAME:-text}, ${env:NAME} and ${userHome}; write the value itself otherwise.",
        )
    value = environment.get(name)
    if value or (value is not None and not has_default):
        return value
    if has_default:
        return default
    raise ToolError(f"mcp.json uses ${{{inside}}}, and the environment has no {name}.", f"Set {name}.")
