"""A check that RPC servers can be reached, and the warning about their lack of security.

Independent of the RPC protocol. `app.settings.parsing` owns how servers are written.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from quantizer.errors import EngineError

__all__ = ["check_reachable", "exposure_warning"]

_LOOPBACK = ("localhost:", "127.")
_CONNECT_TIMEOUT_S = 3.0


def check_reachable(endpoints: Sequence[str]) -> None:
    """Raise EngineError for the first of `endpoints` that cannot be reached."""
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
    """Return the warning about servers on other machines, "" without any."""
    others = [endpoint for endpoint in endpoints if not endpoint.startswith(_LOOPBACK)]
    if not others:
        return ""
    return (
        f"RPC is unauthenticated and unencrypted: anyone on the network path to {', '.join(others)} can read and "
        "change everything that is computed there. Use it in trusted networks only."
    )
