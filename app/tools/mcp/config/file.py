"""The file `mcp.json` in the configuration folder: reading its servers, and changing one entry.

A change is atomic, made under a lock, and keeps everything else that the file has. It may hold keys, so only its owner
can read it. Knows no other program's file.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.settings.settings import settings_file
from app.tools.mcp.config.entry import ServerConfig, config_of
from quantizer.system.errors import StorageError, UsageError
from quantizer.system.files import PRIVATE_FILE, explained, private_folder, read_at_most, try_lock, write_atomically

MCP_FILE = "mcp.json"
_SERVERS = "mcpServers"
_MAX_BYTES = 4 << 20
_WRITABLE_BY_ALL = 0o002
_LOCK_TIMEOUT_S = 5.0


def mcp_file(environment: Mapping[str, str] = os.environ) -> McpFile:
    """Return the file of this user: beside the settings file."""
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
        with explained(f"{self.path} cannot be changed"):
            private_folder(self.path.parent)
            lock = try_lock(self.path.with_suffix(".lock"), _LOCK_TIMEOUT_S)
            if lock is None:
                raise StorageError(f"Another process is changing {self.path}.", "Try again.")
            try:
                data = self._read()
                servers = _servers(data, self.path)
                data[_SERVERS] = servers
                yield servers
                text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
                # A link to the file stays one.
                write_atomically(self.path.resolve(), text, sync=True, mode=PRIVATE_FILE)
            finally:
                lock.release()

    def _read(self) -> dict[str, Any]:
        with explained(f"{self.path} cannot be read"):
            if not self.path.exists():
                return {}
            with self.path.open("rb") as file:
                if sys.platform != "win32" and os.fstat(file.fileno()).st_mode & _WRITABLE_BY_ALL:
                    raise UsageError(
                        f"Everybody can change {self.path}, which names commands to run.", f"Run: chmod o-w {self.path}"
                    )
                data = read_at_most(file, _MAX_BYTES + 1)
        return load_json(data, self.path)


def load_json(data: bytes, path: Path, max_bytes: int = _MAX_BYTES) -> dict[str, Any]:
    """Return the JSON object in `data`, the content of the file at `path`; {} for an empty file.

    Raises UsageError that says where it is no JSON, names something twice, or is no object.
    """
    remedy = "Correct it, or remove the file and add servers with `localllm mcp add`."
    if len(data) > max_bytes:
        raise UsageError(f"{path} is larger than {max_bytes >> 20} MiB.", remedy)
    try:
        value = json.loads(data.decode("utf-8-sig") or "{}", object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{path} is no JSON in {where}: {error.msg}.", remedy) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}.", remedy) from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} has no JSON object.", remedy)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it names {twice!r} twice")
    return values


def _servers(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    servers = data.get(_SERVERS, {})
    if not isinstance(servers, dict):
        raise UsageError(f"{_SERVERS} in {path} is no object.", "Its names are servers, its values their entries.")
    return servers
