"""Where llama.cpp RPC servers are, as people write it: HOST:PORT, several separated by commas.

Owns that form. Knows nothing of who connects; `app.engine.rpc` does.
"""

from __future__ import annotations

import re

from quantizer.errors import UsageError

__all__ = ["endpoints_of"]

_ENDPOINT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*):(\d{1,5})")
_MOST_PORT = 65_535


def endpoints_of(text: str) -> tuple[str, ...]:
    """Return the servers that a setting names, separated by commas. Raises UsageError for what is no HOST:PORT."""
    endpoints = tuple(part.strip() for part in text.split(",") if part.strip())
    for endpoint in endpoints:
        match = _ENDPOINT.fullmatch(endpoint)
        if match is None or not 1 <= int(match[2]) <= _MOST_PORT:
            raise UsageError(f"{endpoint!r} is no RPC server.", "Write it like --rpc 192.168.1.7:50052.")
    return tuple(dict.fromkeys(endpoints))
