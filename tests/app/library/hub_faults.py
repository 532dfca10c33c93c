"""What a bad link or a hostile hub does to a reply: fourteen kinds of fault, each a way to send it otherwise.

Owns the kinds and how each strikes. Which request is struck the server decides.
"""

from __future__ import annotations

import gzip
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.app.library.hub_server import HubHandler

__all__ = ["FAULTS", "Injection", "Reply"]


_ROUNDS = 8  # of a redirect loop, each a request: more than anybody follows


@dataclass(frozen=True)
class Reply:
    """What would be sent: a status, headers, and the bytes `begin` to `end` of `data`, which is `n_total` long."""

    status: int
    headers: dict[str, str]
    data: memoryview
    begin: int
    end: int
    n_total: int

    @property
    def body(self) -> memoryview:
        return self.data[self.begin : self.end]


@dataclass
class Injection:
    """A fault for `times` requests to `stage`, after `skip` that pass, at the share `at` of the body.

    `stage` is "content" (the storage behind the hub's redirect), "resolve", "api" (a repository) or "list" (a search).
    """

    kind: str
    times: int = 1
    skip: int = 0
    at: float = 0.5
    stage: str = "content"

    def __post_init__(self) -> None:
        if self.kind == "redirect loop":
            self.times *= _ROUNDS

    def strikes(self, stage: str) -> bool:
        """Whether the request that comes now is struck; it is counted."""
        if stage != self.stage or self.times <= 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


Strike = Callable[["HubHandler", Reply, Injection], None]


def _truncation(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    handler.send_head(reply)
    handler.send_data(reply.body[: int(len(reply.body) * injection.at)])
    handler.hang_up()


def _bit_flip(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    body = bytearray(reply.body)
    if body:
        body[min(int(len(body) * injection.at), len(body) - 1)] ^= 1 << 3
    handler.send_head(reply)
    handler.send_data(memoryview(body))


def _whole_for_a_range(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    headers = {name: value for name, value in reply.headers.items() if name != "Content-Range"}
    whole = replace(reply, status=200, begin=0, end=reply.n_total, headers=headers)
    handler.send_head(whole)
    handler.send_data(whole.body)


def _range_refused(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    handler.send_text(416, "no such range", {"Content-Range": f"bytes */{reply.n_total}"})


def _too_many_requests(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    handler.send_text(429, "slow down", {"Retry-After": "0"})


def _server_error(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    handler.send_text((500, 502, 503, 504)[int(injection.at * 4) % 4], "out of order", {})


def _stall(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    handler.send_head(reply)
    handler.send_data(reply.body[: int(len(reply.body) * injection.at)])
    handler.wait_for_the_end()
    handler.hang_up()


def _redirect_loop(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    handler.send_text(302, "", {"Location": handler.path})


def _cross_host_redirect(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    handler.send_text(302, "", {"Location": handler.hub.stranger_url + handler.path})


def _etag_change(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    changed = bytes(byte ^ 0xFF for byte in reply.body[:4096]) + bytes(reply.body[4096:])
    handler.send_head(replace(reply, headers={**reply.headers, "ETag": '"another"'}))
    handler.send_data(memoryview(changed))


def _wrong_length(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    n_more = 4096 if injection.at >= 0.5 else -min(4096, len(reply.body))
    headers = dict(reply.headers)
    if "Content-Range" in headers:
        headers["Content-Range"] = f"bytes {reply.begin}-{reply.end + n_more - 1}/{reply.n_total + n_more}"
    body = memoryview(bytes(reply.body[:n_more]) if n_more < 0 else bytes(reply.body) + bytes(n_more))
    handler.send_head(replace(reply, headers=headers, data=body, begin=0, end=len(body)))
    handler.send_data(body)


def _gzip(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    """A body that inflates to far more than was asked for."""
    body = memoryview(_bomb())
    headers = {**reply.headers, "Content-Encoding": "gzip"}
    handler.send_head(replace(reply, headers=headers, data=body, begin=0, end=len(body)))
    handler.send_data(body)


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(64 << 20), 1)


def _reset(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    handler.send_head(reply)
    handler.send_data(reply.body[: int(len(reply.body) * injection.at)])
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.hang_up()


def _tls_error(handler: HubHandler, reply: Reply, injection: Injection) -> None:
    """Bytes that are no record where one should be; without TLS a reply that is none."""
    socket.socket.sendall(handler.connection, b"\x15\x03\x03\x00\x02\x02\x50" * 8)
    handler.hang_up()


FAULTS: dict[str, Strike] = {
    "truncation": _truncation,
    "bit flip": _bit_flip,
    "200 for a range": _whole_for_a_range,
    "416": _range_refused,
    "429": _too_many_requests,
    "5xx": _server_error,
    "stall": _stall,
    "redirect loop": _redirect_loop,
    "cross-host redirect": _cross_host_redirect,
    "etag change": _etag_change,
    "wrong length": _wrong_length,
    "gzip": _gzip,
    "reset": _reset,
    "tls error": _tls_error,
}
