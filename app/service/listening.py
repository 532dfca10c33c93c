"""The sockets on which the service listens: its own port, and the default ports of other servers, where clients look.

Owns which port is whose default. Independent of HTTP.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack

from quantizer.errors import ServiceError

__all__ = ["CLIENTS_PORTS", "listen", "listen_for_clients"]

CLIENTS_PORTS: Mapping[int, str] = {11434: "Ollama", 1234: "LM Studio", 8080: "llama.cpp", 8012: "llama.vim"}
_BACKLOG = 128


def listen(host: str, port: int, *, or_any: bool = False) -> socket.socket:
    """Return a socket that listens on `host` and `port` (0: any free one).

    With `or_any` a port in use is replaced by a free one. Raises ServiceError with a remedy.
    """
    try:
        return _listen(host, port)
    except (OSError, OverflowError) as error:
        if or_any and _is_in_use(error):
            return listen(host, 0)
        raise _cannot_listen(host, port, error) from error


def listen_for_clients(host: str, stack: ExitStack) -> dict[int, socket.socket]:
    """Listen on those of the clients' ports that are free, until `stack` ends."""
    listeners = {}
    for port in CLIENTS_PORTS:
        try:
            listeners[port] = stack.enter_context(_listen(host, port))
        except OSError as error:
            if not _is_in_use(error):
                raise _cannot_listen(host, port, error) from error
    return listeners


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named: else a client's delayed ACK holds each part for 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform == "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _is_in_use(error: OSError | OverflowError) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


def _cannot_listen(host: str, port: int, error: OSError | OverflowError) -> ServiceError:
    if _is_in_use(error):
        return ServiceError(
            f"Port {port} on {host} is in use, by another localllm or another program.",
            "Give another --port, or stop what uses it.",
        )
    reason = getattr(error, "strerror", None) or str(error)
    return ServiceError(f"Cannot listen on {host}, port {port}: {reason}.", "Give another --host or --port.")
