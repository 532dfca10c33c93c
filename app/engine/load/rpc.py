"""Whether an RPC server is there at all, and what a person is told of one.

Knows nothing of what is said to it; how people write where it is belongs to `app.settings.parsing`.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from app.settings.parsing import parse_rpc_endpoints
from quantizer.errors import EngineError

__all__ = ["check_reachable", "exposure_warning", "parse_rpc_endpoints"]

_LOOPBACK = ("localhost:", "127.")
_CONNECT_TIMEOUT_S = 3.0


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


def exposure_warning(endpoints: Sequence[str]) -> str:
    """Return what a person must know who uses these servers, "" where they are on this machine."""
    others = [endpoint for endpoint in endpoints if not endpoint.startswith(_LOOPBACK)]
    if not others:
        return ""
    return (
        f"RPC has no password and no encryption: whoever is between here and {', '.join(others)} can read and change "
        "all that is computed there. Use it in networks that you trust only."
    )
