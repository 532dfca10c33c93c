"""Where RPC servers are, as people write it, and whether one is there at all.

Owns the form HOST:PORT and what a person is told of such a server. Knows nothing of what is said to it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence

from quantizer.errors import EngineError, UsageError

__all__ = ["check_reachable", "endpoints_of", "exposure"]

_ENDPOINT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*):(\d{1,5})")
_LOOPBACK = ("localhost:", "127.")
_CONNECT_TIMEOUT_S = 3.0
_MOST_PORT = 65_535


def endpoints_of(text: str) -> tuple[str, ...]:
    """Return the servers that a setting names, separated by commas. Raises UsageError for what is no HOST:PORT."""
    endpoints = tuple(part.strip() for part in text.split(",") if part.strip())
    for endpoint in endpoints:
        match = _ENDPOINT.fullmatch(endpoint)
        if match is None or not 1 <= int(match[2]) <= _MOST_PORT:
            raise UsageError(f"{endpoint!r} is no RPC server.", "Write it like --rpc 192.168.1.7:50052.")
    return tuple(dict.fromkeys(endpoints))


def check_reachable(endpoints: Sequence[str]) -> None:
    """Raise EngineError for the first of `endpoints` where nobody listens."""
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise EngineError(
                f"The RPC server {endpoint} cannot be reached: {error}.",
                "Start llama.cpp's rpc-server there, or leave out --rpc.",
            ) from error


def exposure(endpoints: Sequence[str]) -> str:
    """Return what a person must know who uses these servers, "" where they are on this machine."""
    others = [endpoint for endpoint in endpoints if not endpoint.startswith(_LOOPBACK)]
    if not others:
        return ""
    return (
        f"RPC has no password and no encryption: whoever is between here and {', '.join(others)} can read and change "
        "all that is computed there. Use it in networks that you trust only."
    )
