"""The file `mcp.json`: what each server starts or where it is, variables in these texts, and changes of an entry.

An entry has the form of Cursor and Claude Desktop, with `timeout_s` and `disabled` besides. An invalid entry is kept
with its problem: the other servers of the file work without it. `${NAME}` and `${env:NAME}` are environment variables,
`${NAME:-text}` has a default, `${userHome}` is the home folder; they are replaced when a server starts, so no file has
to hold a key. As it may hold one all the same, only its owner can read the file; a change is atomic and keeps the rest.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from app.settings.settings import settings_file
from quantizer.system.errors import UsageError, UserError, registered
from quantizer.system.files import (
    PRIVATE_FILE,
    changing_alone,
    explained,
    open_regular,
    read_at_most,
    write_atomically,
)


@registered
class ToolError(UserError):
    """A server of tools cannot be started, died, or does not do what it was asked."""


DEFAULT_TIMEOUT_S = 60.0
_MAX_TIMEOUT_S = 86_400.0
_MAX_NAME_CHARACTERS = 64
_MAX_PORT = 65_535
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
class OAuthClient:
    """The client that a login uses, where a server registers none by itself, and the port of loopback to which the
    browser is sent at its end (0: any that is free)."""

    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    callback_port: int = 0


@dataclass(frozen=True, slots=True)
class HttpLaunch:
    """An address that speaks the protocol; `transport` is "" where the file does not say which way."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: Literal["", "http", "sse"] = ""
    oauth: OAuthClient = OAuthClient()


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
        values = (launch.oauth.client_id, launch.oauth.client_secret, launch.oauth.callback_port)
        oauth = {key: value for key, value in zip(OAUTH_KEYS, values, strict=True) if value}
        entry |= {"oauth": oauth} if oauth else {}
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
    launch, is_disabled = _http(entry) if _text(entry, "url") else _stdio(entry), entry.get("disabled", False)
    if not isinstance(is_disabled, bool):
        raise _EntryError("Its `disabled` must be true or false.")
    return ServerConfig(name, launch, is_disabled, _timeout(entry))


def _stdio(entry: Mapping[str, Any]) -> StdioLaunch:
    command = _text(entry, "command")
    if not command:
        raise _EntryError("It has neither `command` nor `url`.")
    if _text(entry, "type") not in ("", "stdio"):
        raise _EntryError(f"Its type is {entry['type']!r}, which needs a `url`.")
    args = entry.get("args", [])
    is_list = isinstance(args, Sequence) and not isinstance(args, str)
    if not is_list or not all(isinstance(item, str) and "\0" not in item for item in args):
        raise _EntryError("Its `args` must be a list of texts.")
    return StdioLaunch(command, tuple(args), _table(entry, "env"), _text(entry, "cwd"))


def _http(entry: Mapping[str, Any]) -> HttpLaunch:
    if _text(entry, "command"):
        raise _EntryError("It has both `command` and `url`.")
    url, kind, headers = _text(entry, "url"), _text(entry, "type"), _table(entry, "headers")
    if kind not in _TRANSPORTS:
        raise _EntryError(f"Its type is {kind!r}; one with a `url` is http or sse.")
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.netloc)
    except ValueError:
        is_http = False
    if not url.startswith("${") and not is_http:
        raise _EntryError("Its `url` must begin with http:// or https://, and a host.")
    for header in headers:
        if not _HEADER_NAME.fullmatch(header):
            raise _EntryError(f"{header!r} is not a header name.")
    return HttpLaunch(url, headers, _TRANSPORTS[kind], _oauth(entry))


OAUTH_KEYS = ("clientId", "clientSecret", "callbackPort")  # as Claude Code writes them


def _oauth(entry: Mapping[str, Any]) -> OAuthClient:
    values = entry.get("oauth") or {}
    if not isinstance(values, Mapping):
        raise _EntryError(f"Its `oauth` must be an object with {', '.join(OAUTH_KEYS)}.")
    port = values.get("callbackPort", 0)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= _MAX_PORT:
        raise _EntryError("Its `callbackPort` must be the number of a port.")
    return OAuthClient(_text(values, "clientId"), _text(values, "clientSecret"), port)


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name, "")
    if not isinstance(value, str) or "\0" in value:
        raise _EntryError(f"Its `{name}` must be a text.")
    return value


def _table(entry: Mapping[str, Any], name: str) -> dict[str, str]:
    value = entry.get(name) or {}
    if not isinstance(value, Mapping) or not all(
        isinstance(item, str) and not {"\0", "\n", "\r"} & set(key + item) for key, item in value.items()
    ):
        raise _EntryError(f"Its `{name}` must be an object whose values are texts of one line.")
    return dict(value)


def _timeout(entry: Mapping[str, Any]) -> float:
    value = entry.get("timeout_s", DEFAULT_TIMEOUT_S)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _MAX_TIMEOUT_S:  # which neither NaN nor infinity is
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
        oauth = launch.oauth
        oauth = replace(oauth, client_id=text(oauth.client_id), client_secret=text(oauth.client_secret))
        return replace(launch, url=text(launch.url), headers=table(launch.headers), oauth=oauth)
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


MCP_FILE = "mcp.json"
_SERVERS = "mcpServers"
_MAX_BYTES = 4 << 20
_WRITABLE_BY_ALL = 0o002
_LOCK_TIMEOUT_S = 5.0


def mcp_file(environment: Mapping[str, str] = os.environ) -> McpFile:
    return McpFile(settings_file(environment).with_name(MCP_FILE))


class McpFile:
    """The servers in the file at `path`; none where there is no file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def servers(self) -> tuple[ServerConfig, ...]:
        """Return all entries in the order of the file. Raises UsageError with the position of what is no JSON."""
        return tuple(config_of(name, entry) for name, entry in _servers(self._read(), self.path).items())

    def add(self, name: str, entry: Mapping[str, Any], *, is_replacing: bool = False) -> None:
        """Add an entry. Raises UsageError where it makes no sense, or the name is taken and not `is_replacing`."""
        if problem := config_of(name, entry).problem:
            raise UsageError(f"The server {name!r} cannot be added: {problem}", "Correct it.")
        with self._changing() as servers:
            if name in servers and not is_replacing:
                raise UsageError(f"There is a server {name!r} already.", f"Run `localllm mcp remove {name}` first.")
            servers[name] = dict(entry)

    def remove(self, name: str) -> None:
        """Remove an entry. Raises UsageError that lists the names where there is none."""
        with self._changing() as servers:
            if name not in servers:
                known = f"Servers: {', '.join(servers)}." if servers else "There are none."
                raise UsageError(f"There is no server {name!r}.", known)
            del servers[name]

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """Yield the entries under a lock, and store them as the block leaves them. Raises StorageError."""
        with explained(f"{self.path} cannot be changed"), changing_alone(self.path, _LOCK_TIMEOUT_S):
            data = self._read()
            servers = _servers(data, self.path)
            data[_SERVERS] = servers
            yield servers
            text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
            # A link to the file stays one.
            write_atomically(self.path.resolve(), text, sync=True, mode=PRIVATE_FILE)

    def _read(self) -> dict[str, Any]:
        with explained(f"{self.path} cannot be read"):
            if not self.path.exists():
                return {}
            with open_regular(self.path) as file:
                if sys.platform != "win32" and os.fstat(file.fileno()).st_mode & _WRITABLE_BY_ALL:
                    raise UsageError(
                        f"Everybody can change {self.path}, which names commands to run.", f"Run: chmod o-w {self.path}"
                    )
                data = read_at_most(file, _MAX_BYTES + 1)
        return load_json(data, self.path)


def load_json(data: bytes, path: Path, max_bytes: int = _MAX_BYTES) -> dict[str, Any]:
    """Return the JSON object in `data`, the content of the file at `path`; {} for an empty file. Raises UsageError that
    says where it is no JSON, names something twice, or is no object."""
    remedy = "Correct it, or remove the file and add servers with `localllm mcp add`."
    if len(data) > max_bytes:
        raise UsageError(f"{path} is larger than {max_bytes >> 20} MiB.", remedy)
    try:
        value = json.loads(data.decode("utf-8-sig") or "{}", object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{path} is not valid JSON in {where}: {error.msg}.", remedy) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}.", remedy) from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} has no JSON object.", remedy)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it names {twice!r} twice")
    return values


def _servers(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    servers = data.get(_SERVERS, {})
    if not isinstance(servers, dict):
        raise UsageError(f"{_SERVERS} in {path} is not an object.", "Its names are servers, its values their entries.")
    return servers
