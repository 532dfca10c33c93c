"""The names of servers and their tools for models: unique, and of characters that every model's syntax takes. Pure.

A server's name never has two underscores in a row, so the first `__` of a tool's name ends its server's: no two tools
of two servers have one name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable

MAX_NAME_CHARACTERS = 64
BUILT_IN_SERVERS = frozenset({"files", "commands", "web"})  # rules of a chat for these are about no other server
_MAX_SERVER_CHARACTERS = 24
_N_HASH_CHARACTERS = 8


def server_names(names: Iterable[str]) -> dict[str, str]:
    """Return, by the names in `mcp.json`, what models and the rules of chats call those servers."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]", "_", name)).strip("_")
        short = plain[:_MAX_SERVER_CHARACTERS].strip("_") or "server"
        found[name] = _free(short, _MAX_SERVER_CHARACTERS, {*BUILT_IN_SERVERS, *found.values()})
    return found


def tool_names(server: str, names: Iterable[str]) -> dict[str, str]:
    """Return, by the names that `server` uses, what models call its tools: `server__tool`."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
        full = f"{server}__{plain}"
        if len(full) > MAX_NAME_CHARACTERS:
            digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:_N_HASH_CHARACTERS]
            full = f"{full[: MAX_NAME_CHARACTERS - _N_HASH_CHARACTERS - 1]}_{digest}"
        found[name] = _free(full, MAX_NAME_CHARACTERS, found.values())
    return found


def _free(name: str, max_characters: int, taken: Collection[str]) -> str:
    """Return `name`, or where it is taken with the first number that makes it unique."""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        end = f"_{number}"
        candidate = name[: max_characters - len(end)].rstrip("_") + end
    return candidate
