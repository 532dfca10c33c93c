"""Limits of connections: how many there are, in all and of one peer, and how long a request's head may take.

Whoever reaches the port can open connections, with a key or without. Where there are too many, the one that has waited
longest for a request is closed for the newest, then the one that has been sending one for longest; one that gets an
answer is never closed. Only where all of them get answers is the newest refused.
"""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.common.event_log import PerMinute

HEADER_TIMEOUT_S = 15.0
_MOST_CONNECTIONS = 1000
_MOST_OF_A_PEER = 128  # of another machine: those of this one cannot be told apart by their address
_N_FREED = 16  # where the system has no file descriptors left
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 47\r\n\r\n"
    b"localllm has too many open connections for now."
)


def most_connections() -> int:
    """Return how many connections are kept: half of the files that this process may open, the others are for models,
    workers and chats."""
    if sys.platform == "win32":
        return _MOST_CONNECTIONS // 2
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(32, min(_MOST_CONNECTIONS, soft // 2))


class ConnectionLimits:
    """The open connections of one service. `most_of_a_peer` holds for other machines."""

    def __init__(self, most: int | None = None, most_of_a_peer: int = _MOST_OF_A_PEER) -> None:
        self._most = most_connections() if most is None else most
        self._most_of_a_peer = min(self._most, most_of_a_peer)
        self._of_peer: Counter[str] = Counter()
        self._waiting: dict[LimitedConnection, None] = {}  # for a request, the longest first
        self._sending: dict[LimitedConnection, None] = {}  # the body of one
        self._accept_errors = PerMinute()
        self._closed = PerMinute()

    @property
    def n_open(self) -> int:
        return self._of_peer.total()

    def admit(self, connection: LimitedConnection) -> bool:
        """Count a new connection, and close another one where it is one too many; return False to refuse it."""
        peer = connection.peer
        is_own = _is_loopback(peer)
        if not is_own and self._of_peer[peer] >= self._most_of_a_peer and not self._close_one(peer):
            return False
        if self.n_open >= self._most and not self._close_one():
            return False
        self._of_peer[peer] += 1
        self._waiting[connection] = None
        return True

    def set_waiting(self, connection: LimitedConnection) -> None:
        """Note that a connection waits for its next request from now on; one that did so stays where it is."""
        if connection not in self._waiting:
            self.set_answering(connection)
            self._waiting[connection] = None

    def set_sending(self, connection: LimitedConnection) -> None:
        if connection not in self._sending:
            self.set_answering(connection)
            self._sending[connection] = None

    def set_answering(self, connection: LimitedConnection) -> None:
        self._waiting.pop(connection, None)
        self._sending.pop(connection, None)

    def forget(self, connection: LimitedConnection) -> None:
        """Count a connection no more that was admitted."""
        self.set_answering(connection)
        self._of_peer[connection.peer] -= 1
        if self._of_peer[connection.peer] <= 0:
            del self._of_peer[connection.peer]

    def on_accept_error(self, error: BaseException) -> None:
        """Make room where the system opens no more connections, and say so once a minute."""
        for _ in range(_N_FREED):
            if not self._close_one():
                break
        self._accept_errors.log(f"new connections wait: {error}")

    def _close_one(self, peer: str = "") -> bool:
        connection = _first_of(self._waiting, peer) or _first_of(self._sending, peer)
        if connection is None:
            self._closed.log(f"{self.n_open} connections are open, a new one is refused")
            return False
        self._closed.log(f"{self.n_open} connections are open, the one that waited longest is closed for a new one")
        connection.close_at_once()
        return True


def _first_of(connections: Iterable[LimitedConnection], peer: str) -> LimitedConnection | None:
    return next((connection for connection in connections if not peer or connection.peer == peer), None)


def _is_loopback(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return True  # a socket without an address is of this machine
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


class LimitedConnection(H11Protocol):
    """HTTP/1.1 within `limits`, with a timeout of 15 s for a request line and its headers: uvicorn waits forever."""

    def __init__(self, limits: ConnectionLimits, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.peer = ""
        self._limits = limits
        self._is_counted = False
        self._is_upgraded = False
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        self._is_counted = self._limits.admit(self)
        if not self._is_counted:
            transport.write(_REFUSAL)
            transport.close()
            return
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        if not self._is_counted:
            return
        super().data_received(data)
        self._watch_headers()
        if not self._is_upgraded:
            self._note_state()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_counted and not self.transport.is_closing():
            self._note_state()

    def close_at_once(self) -> None:
        self._end()
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse invalid HTTP, and drop the answer to the request before it, which would be a second one."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # an answer has begun, or was given before the whole body came: h11 raises for a second one
            self.transport.close()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to a websocket, whose first message has a timeout of its own. It stays counted until
        its end, which only its own protocol hears of."""
        super().handle_websocket_upgrade(event)
        self._is_upgraded = True
        self._limits.set_answering(self)
        websocket = self.transport.get_protocol()
        lost = websocket.connection_lost

        def connection_lost(error: Exception | None) -> None:
            lost(error)
            self._end()

        websocket.connection_lost = connection_lost  # type: ignore[method-assign, assignment]

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: such a request gets an answer, and no web page may write to the terminal."""

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _note_state(self) -> None:
        if self._is_between_requests:
            self._limits.set_waiting(self)
        elif self.cycle.more_body:
            self._limits.set_sending(self)
        else:
            self._limits.set_answering(self)

    def _end(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        if self._is_counted:
            self._is_counted = False
            self._limits.forget(self)

    def _watch_headers(self) -> None:
        """Time the headers of the first request from the connection on, others from their first byte on."""
        is_waiting = self.cycle is None or (self.cycle.response_complete and self.timeout_keep_alive_task is None)
        if self._is_upgraded or not is_waiting:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.abort)
