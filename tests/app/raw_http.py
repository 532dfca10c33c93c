"""HTTP by hand, for requests that no HTTP library would send: bytes out, and what comes back."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from tests.patience import PATIENCE_S

__all__ = ["Reply", "exchange", "head"]

_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server sent before it closed; `status` is 0 where that was nothing."""

    status: int
    headers: str
    body: bytes


def head(method: str, path: str, *headers: str) -> bytes:
    """Return a request's line and headers, after which the connection is to be closed."""
    lines = (f"{method} {path} HTTP/1.1", *headers, "Connection: close")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")


def exchange(port: int, parts: Iterable[bytes]) -> Reply:
    """Send `parts` to `port` of this machine until the server has had enough, and return its reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        return _reply(_read(connection))


def _read(connection: socket.socket) -> bytes:
    """Return what came until the end; a server that refuses a body resets the connection after its reply."""
    data = bytearray()
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(_CHUNK_BYTES):
            data += part
    return bytes(data)


def _reply(data: bytes) -> Reply:
    first, _, body = data.partition(b"\r\n\r\n")
    line, _, headers = first.decode("latin-1").partition("\r\n")
    words = line.split(" ")
    return Reply(int(words[1]) if len(words) > 1 else 0, headers.lower(), body)
