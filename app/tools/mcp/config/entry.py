"""The entries of `mcp.json`: what each server starts or where it is, and the variables in these texts. Pure.

An entry has the form of Cursor and Claude Desktop, with `timeout_s` and `disabled` besides. An invalid entry is kept
with its problem: the other servers of the file work without it. `${NAME}` and `${env:NAME}` are environment variables,
`${NAME:-text}` has a default, `${userHome}` is the home folder; they are replaced when a server starts, so no file has
to hold a key.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from app.tools.mcp.errors import ToolError

DEFAULT_TIMEOUT_S = 60.0
_MAX_TIMEOUT_S = 86_400.0
_MAX_NAME_CHARACTERS = 64
_TRANSPORTS: Mapping[str, Literal["", "http", "sse"]] = {
    "": "",
    "http": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
    "sse": "sse",
}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class StdioLaunch:
    """A command that speaks the protocol on its standard streams; texts may have `${VARIABLES}`."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""


@dataclass(frozen=True, slots=True)
class HttpLaunch:
    """An address that speaks the protocol; `transport` is "" where the file does not say which way."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: Literal["", "http", "sse"] = ""


Launch = StdioLaunch | HttpLaunch


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """An entry of `mcp.json`. One with a `problem` has no `launch` and cannot be started."""

    name: str
    launch: Launch | None
    is_disabled: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    problem: str = ""


def config_of(name: str, entry: object) -> ServerConfig:
    """Return what `entry`, the value of `mcpServers` for `name`, says."""
    try:
        return _config_of(name, entry)
    except _EntryError as error:
        is_off = isinstance(entry, Mapping) and entry.get("disabled") is True
        return ServerConfig(name, None, is_disabled=is_off, problem=str(error))


def launch_entry(launch: Launch, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> dict[str, Any]:
    """Return the entry for `launch`, the inverse of `config_of`; what has its usual value is left out."""
    if isinstance(launch, StdioLaunch):
        entry: dict[str, Any] = {"command": launch.command, "args": list(launch.args)}
        entry |= {"env": dict(launch.env)} if launch.env else {}
        entry |= {"cwd": launch.cwd} if launch.cwd else {}
    else:
        entry = {"type": launch.transport} if launch.transport else {}
        entry |= {"url": launch.url}
        entry |= {"headers": dict(launch.headers)} if launch.headers else {}
    return entry | ({} if timeout_s == DEFAULT_TIMEOUT_S else {"timeout_s": timeout_s})


def identity_of(launch: Launch) -> str:
    """Return a text that differs for launches that may start another program or reach another address."""
    return json.dumps([type(launch).__name__, launch_entry(launch)], sort_keys=True)


class _EntryError(ValueError):
    """What is wrong with an entry, as a sentence."""


def _config_of(name: str, entry: object) -> ServerConfig:
    if not name or len(name) > _MAX_NAME_CHARACTERS or not name.isprintable() or name != name.strip():
        raise _EntryError(f"A server's name has 1 to {_MAX_NAME_CHARACTERS} printable characters.")
    if not isinstance(entry, Mapping):
        raise _EntryError("Its value must be an object with `command` or `url`.")
    launch = _http(entry) if _text(entry, "url") else _stdio(entry)
    return ServerConfig(name, launch, _flag(entry, "disabled"), _timeout(entry))


def _stdio(entry: Mapping[str, Any]) -> StdioLaunch:
    command = _text(entry, "command")
    if not command:
        raise _EntryError("It has neither `command` nor `url`.")
    if _text(entry, "type") not in ("", "stdio"):
        raise _EntryError(f"Its type is {entry['type']!r}, which needs a `url`.")
    return StdioLaunch(command, _texts(entry, "args"), _table(entry, "env"), _text(entry, "cwd"))


def _http(entry: Mapping[str, Any]) -> HttpLaunch:
    if _text(entry, "command"):
        raise _EntryError("It has both `command` and `url`.")
    url, kind, headers = _text(entry, "url"), _text(entry, "type"), _table(entry, "headers")
    if kind not in _TRANSPORTS:
        raise _EntryError(f"Its type is {kind!r}; one with a `url` is http or sse.")
    if not url.startswith("${") and not _is_http(url):
        raise _EntryError("Its `url` must begin with http:// or https://, and a host.")
    for header in headers:
        if not _HEADER_NAME.fullmatch(header):
            raise _EntryError(f"{header!r} is no name of a header.")
    return HttpLaunch(url, headers, _TRANSPORTS[kind])


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name, "")
    if not isinstance(value, str) or "\0" in value:
        raise _EntryError(f"Its `{name}` must be a text.")
    return value


def _texts(entry: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = entry.get(name, [])
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if not is_list or not all(isinstance(item, str) and "\0" not in item for item in value):
        raise _EntryError(f"Its `{name}` must be a list of texts.")
    return tuple(value)


def _table(entry: Mapping[str, Any], name: str) -> dict[str, str]:
    value = entry.get(name) or {}
    if not isinstance(value, Mapping) or not all(
        isinstance(item, str) and not {"\0", "\n", "\r"} & set(key + item) for key, item in value.items()
    ):
        raise _EntryError(f"Its `{name}` must be an object whose values are texts of one line.")
    return dict(value)


def _flag(entry: Mapping[str, Any], name: str) -> bool:
    value = entry.get(name, False)
    if not isinstance(value, bool):
        raise _EntryError(f"Its `{name}` must be true or false.")
    return value


def _timeout(entry: Mapping[str, Any]) -> float:
    value = entry.get("timeout_s", DEFAULT_TIMEOUT_S)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 < value <= _MAX_TIMEOUT_S:
        raise _EntryError(f"Its `timeout_s` must be a number of seconds up to {_MAX_TIMEOUT_S:,.0f}.")
    return float(value)


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
