"""What a login to a server left: tokens, and the client that this machine registered there, a private file for each.

The files are beside mcp.json, 0600 in a folder 0700. A login belongs to one address: after `url` of an entry changed,
it is nobody's. `app.tools.mcp.sdk.oauth` logs in and refreshes; nothing here is ever logged or shown.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from app.common.extras import MCP
from app.common.terminal import quoted_command
from app.tools.mcp.config import HttpLaunch, ServerConfig, ToolError, expanded, mcp_file
from quantizer.system.files import (
    PRIVATE_FILE,
    changing_alone,
    explained,
    private_folder,
    read_regular,
    write_atomically,
)

LOGINS_FOLDER = "mcp-logins"
_LOCK_TIMEOUT_S = 30.0  # another process refreshes the same tokens


@dataclass(frozen=True, slots=True)
class Login:
    """Tokens for the server at `url`, and how they are refreshed: by `client_id` at `token_endpoint`, whose
    `auth_method` is one of RFC 7591 (client_secret_basic, client_secret_post, none), for `resource` (RFC 8707; "" for
    none). `expires_at_s` is in seconds since 1970, 0 where the server did not say."""

    url: str
    access_token: str = field(repr=False)
    refresh_token: str = field(default="", repr=False)
    expires_at_s: float = 0.0
    token_endpoint: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    auth_method: str = "none"
    resource: str = ""


_TYPES: dict[str, Any] = {each.name: float if each.name == "expires_at_s" else str for each in fields(Login)}


class LoginFile:
    """The login of the server called `name` in mcp.json. Methods raise StorageError."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._folder = folder or mcp_file().path.with_name(LOGINS_FOLDER)
        digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:32]  # any printable text is a name
        self.path = self._folder / f"{digest}.json"

    def read(self, url: str) -> Login | None:
        """Return the login for `url`; None where there is none, or the file has something else."""
        if not self.path.exists():
            return None
        with explained(f"The login in {self.path} cannot be read"):
            data = read_regular(self.path)
        try:
            values = json.loads(data)
            login = Login(**{name: kind(values[name]) for name, kind in _TYPES.items()})
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        return login if login.url == url else None

    def write(self, login: Login) -> None:
        with explained(f"The login cannot be kept in {self.path}"):
            private_folder(self._folder)
            write_atomically(self.path, json.dumps(asdict(login)), sync=True, mode=PRIVATE_FILE)

    def remove(self) -> bool:
        """Forget the login; return whether there was one. Waits for who refreshes it, else it would be kept again."""
        if not os.path.lexists(self.path):
            return False
        with self.locked(), explained(f"{self.path} cannot be removed"):
            self.path.unlink(missing_ok=True)
        return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from refreshing: a refresh token is good for one use on many servers."""
        busy, refused = f"Another process keeps {self.path} locked.", f"{self.path} cannot be locked"
        with changing_alone(self.path, _LOCK_TIMEOUT_S, busy, refused):
            yield


def login_command(name: str) -> str:
    """Return the command that logs in to a server."""
    return quoted_command(("localllm", "mcp", "login", name))


async def log_in(
    config: ServerConfig, show: Callable[[str], Awaitable[None]], pasted: Callable[[], Awaitable[str]] | None = None
) -> None:
    """Log the person in to a server of mcp.json and keep that. `show` gets the address to open in a browser; where that
    runs on another machine, `pasted` returns the address at which it ended. Raises ToolError and StorageError."""
    if not isinstance(config.launch, HttpLaunch):
        cause = config.problem or "It is a program, which knows who you are by its environment."
        raise ToolError(f"No login to the MCP server {config.name}. {cause}", "See mcp.json.")
    if not MCP.is_installed:
        raise ToolError(MCP.missing.cause, MCP.missing.remedy)
    launch = expanded(config.launch, os.environ)
    oauth = await asyncio.to_thread(importlib.import_module, "app.tools.mcp.sdk.oauth")
    login: Login = await oauth.log_in(config.name, launch, show, pasted)
    await asyncio.to_thread(LoginFile(config.name).write, login)
