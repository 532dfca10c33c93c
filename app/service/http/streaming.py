"""HTTP responses that end when the client disconnects: streams of events or lines, and JSON that takes a while.

Owns keep-alives, until when an error is a status, and cancelling at a disconnect. Knows nothing of the content of
events.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.protocol.codec import json_default
from app.service.http.errors import ErrorBody, status_of
from quantizer.errors import UserError

__all__ = [
    "EVENTS",
    "LINES",
    "NAMED_EVENTS",
    "EventStream",
    "Framing",
    "JsonResponse",
    "event",
    "line",
    "named_event",
    "while_connected",
]

KEEP_ALIVE_S = 10.0
_KEEP_ALIVE = b":\n\n"  # bare: some clients discard data that comes in one chunk with a comment of text
_CLIENT_CLOSED_REQUEST = 499
_FIRST = asyncio.FIRST_COMPLETED
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=json_default)

Result = TypeVar("Result")


class JsonResponse(Response):
    """Compact JSON on one line: some editors search it for `"content":"` instead of parsing it."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return _json(content)


def _json(content: object) -> bytes:
    return _COMPACT.encode(content).encode("utf-8", "replace")


def event(data: object) -> bytes:
    """Return `data` as one server-sent event."""
    return b"data: " + _json(data) + b"\n\n"


def named_event(data: dict[str, Any]) -> bytes:
    """Return `data` as one server-sent event that is named by its type."""
    return f"event: {data['type']}\n".encode() + event(data)


def line(data: object) -> bytes:
    """Return `data` as one line of newline-delimited JSON."""
    return _json(data) + b"\n"


@dataclass(frozen=True, slots=True)
class Framing:
    """How a stream separates objects; `keep_alive` is sent in quiet times, empty where the format has none."""

    media_type: str
    frame: Callable[[Any], bytes]
    keep_alive: bytes = b""


EVENTS = Framing("text/event-stream", event, _KEEP_ALIVE)
NAMED_EVENTS = Framing("text/event-stream", named_event, _KEEP_ALIVE)
LINES = Framing("application/x-ndjson", line)


class EventStream(Response):
    """Sends `events`, framed already, as they come.

    An error before the first one, or before ten quiet seconds have passed, is an answer with a status of its own; later
    it is an event. When the client goes away `events` is closed at once.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], error_body: ErrorBody, framing: Framing = EVENTS) -> None:
        super().__init__(headers={"cache-control": "no-cache"}, media_type=framing.media_type)
        del self.headers["content-length"]
        self._events = events
        self._framing = framing
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = _Client(send, self.raw_headers)
        try:
            await self._send_events(client, receive)
        except UserError as error:
            if not client.is_answered:
                await JsonResponse(self._error_body(error), status_of(error))(scope, receive, send)
                return
            await client.send(self._framing.frame(self._error_body(error)))
        finally:
            await self._events.aclose()
        if client.is_answered:
            await send({"type": "http.response.body", "body": b""})

    async def _send_events(self, client: _Client, receive: Receive) -> None:
        """Send events and keep-alives until the client disconnects. Raises the error that ends the events early."""
        gone: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(receive))
        sending: asyncio.Future[Any] = asyncio.ensure_future(client.send_all(self._events))
        try:
            while not (sending.done() or gone.done()):
                await asyncio.wait({sending, gone}, timeout=self._time_to_keep_alive_s(client), return_when=_FIRST)
                if self._time_to_keep_alive_s(client) == 0.0 and not sending.done():
                    await client.send(self._framing.keep_alive)
            if not gone.done():
                sending.result()
        finally:
            await _cancel(gone, sending)

    def _time_to_keep_alive_s(self, client: _Client) -> float | None:
        """Return how long nothing need be sent to `client`; None is forever."""
        return max(0.0, KEEP_ALIVE_S - client.quiet_s) if self._framing.keep_alive else None


class _Client:
    """The receiver of a stream. The first chunk brings the status with it."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self._sent_s = time.monotonic()
        self.is_answered = False

    @property
    def quiet_s(self) -> float:
        """Seconds since the last chunk."""
        return time.monotonic() - self._sent_s

    async def send(self, chunk: bytes) -> None:
        self._sent_s = time.monotonic()
        if not self.is_answered:
            self.is_answered = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def send_all(self, chunks: AsyncGenerator[bytes, None]) -> None:
        """Send `chunks` as they come, in one task: a task each would cost too much."""
        async for chunk in chunks:
            await self.send(chunk)


async def while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Return the response that `work` makes, cancelling it as soon as the client disconnects."""
    gone = asyncio.ensure_future(_disconnected(request.receive))
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, gone}, return_when=_FIRST)
        return task.result() if task.done() else Response(status_code=_CLIENT_CLOSED_REQUEST)
    finally:
        await _cancel(gone, task)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
