"""HTTP responses that end when the client disconnects: streams of events or lines, and JSON that takes a while.

The types of the objects that they send are parameters, from which the OpenAPI document is made.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.common.event_log import log_event
from app.protocol.codec import json_default
from app.service.http.errors import ErrorBody, RefusedError, status_of
from quantizer.system.errors import UserError

KEEP_ALIVE_S = 10.0
_KEEP_ALIVE = b":\n\n"  # bare: some clients discard data that comes in one chunk with a comment of text
_CLIENT_CLOSED_REQUEST = 499
_FIRST = asyncio.FIRST_COMPLETED
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=json_default)

Item = TypeVar("Item")


class JsonResponse(Response, Generic[Item]):
    """Compact JSON on one line: some editors search it for `"content":"` instead of parsing it."""

    media_type = "application/json"

    def __init__(self, content: Item, status_code: int = 200) -> None:
        self.content = content
        super().__init__(content, status_code)

    def render(self, content: object) -> bytes:
        return compact_json(content)


def compact_json(content: object) -> bytes:
    """Return JSON on one line, with surrogates replaced."""
    return _COMPACT.encode(content).encode("utf-8", "replace")


def _event(data: object) -> bytes:
    return b"data: " + compact_json(data) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Framing:
    """The bytes of each object of a stream; `keep_alive` fills quiet time, `end` follows the last object."""

    frame: Callable[[Any], bytes]
    keep_alive: bytes = b""
    end: bytes = b""


EVENTS = Framing(_event, _KEEP_ALIVE)
DONE_EVENTS = Framing(_event, _KEEP_ALIVE, b"data: [DONE]\n\n")
# Named by the `type` of each object.
NAMED_EVENTS = Framing(lambda data: f"event: {data['type']}\n".encode() + _event(data), _KEEP_ALIVE)
_LINES = Framing(lambda data: compact_json(data) + b"\n")


class EventStream(Response, Generic[Item]):
    """Server-sent events, one for each of `items`, sent as they come. An error before the first one, or before ten
    quiet seconds have passed, is an answer with a status of its own; later it is an event. When the client disconnects
    `items` is closed at once."""

    media_type = "text/event-stream"
    has_place_for_errors = True

    def __init__(self, items: AsyncGenerator[Item, None], error_body: ErrorBody, framing: Framing = EVENTS) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._items = items
        self._framing = framing
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = _Client(send, self.raw_headers)
        try:
            await self._send_items(client, receive)
        except UserError as error:
            if not client.is_answered:
                await JsonResponse(self._error_body(error), status_of(error))(scope, receive, send)
                return
            if not self.has_place_for_errors:
                log_event("service", f"A stream was cut: {error}")
                return  # without the end of the body, so that the client knows that it is not whole
            await client.send(self._framing.frame(self._error_body(error)))
        finally:
            await self._items.aclose()
        if client.is_answered:
            await send({"type": "http.response.body", "body": b""})

    async def _send_items(self, client: _Client, receive: Receive) -> None:
        """Send items and keep-alives until the client disconnects. Raises the error that ends the items early."""
        gone: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(receive))
        sending: asyncio.Future[Any] = asyncio.ensure_future(client.send_all(self._items, self._framing))
        try:
            while not (sending.done() or gone.done()):
                left_s = max(0.0, KEEP_ALIVE_S - client.quiet_s) if self._framing.keep_alive else None
                await asyncio.wait({sending, gone}, timeout=left_s, return_when=_FIRST)
                if self._framing.keep_alive and client.quiet_s >= KEEP_ALIVE_S and not sending.done():
                    await client.send(self._framing.keep_alive)
            if not gone.done():
                sending.result()
        finally:
            await _cancel(gone, sending)


class LineStream(EventStream[Item]):
    """Newline-delimited JSON, one line for each of `items`; otherwise as an EventStream."""

    media_type = "application/x-ndjson"

    def __init__(self, items: AsyncGenerator[Item, None], error_body: ErrorBody) -> None:
        super().__init__(items, error_body, _LINES)


class ByteStream(EventStream[bytes]):
    """The bytes of a file, in pieces as they come; an error after the first one cuts the connection. A subclass has the
    media type."""

    has_place_for_errors = False

    def __init__(self, items: AsyncGenerator[bytes, None], error_body: ErrorBody) -> None:
        super().__init__(items, error_body, Framing(bytes))


class _Client:
    """The receiver of a stream. The first chunk brings the status with it."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self._sent_s = time.monotonic()
        self.is_answered = False

    @property
    def quiet_s(self) -> float:
        return time.monotonic() - self._sent_s

    async def send(self, chunk: bytes) -> None:
        self._sent_s = time.monotonic()
        if not self.is_answered:
            self.is_answered = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def send_all(self, items: AsyncGenerator[Item, None], framing: Framing) -> None:
        """Send `items` as they come, in one task: a task each would cost too much."""
        frame = framing.frame
        async for item in items:
            await self.send(frame(item))
        if framing.end:
            await self.send(framing.end)


async def while_connected(request: Request, work: Coroutine[Any, Any, Item]) -> JsonResponse[Item]:
    """Return what `work` returns as JSON, cancelling it as soon as the client disconnects."""
    gone = asyncio.ensure_future(_disconnected(request.receive))
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, gone}, return_when=_FIRST)
        if task.done():
            return JsonResponse(task.result())
        return cast("JsonResponse[Item]", Response(status_code=_CLIENT_CLOSED_REQUEST))  # which nobody receives
    finally:
        await _cancel(gone, task)


async def unless_gone(receive: Receive | None, work: Coroutine[Any, Any, Item]) -> Item:
    """Return what `work` returns, cancelling it as soon as the client disconnects, which `receive` tells (None: nothing
    does). Raises RefusedError then, which nobody receives."""
    if receive is None:
        return await work
    gone = asyncio.ensure_future(_disconnected(receive))
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, gone}, return_when=_FIRST)
        if task.done():
            return task.result()
        raise RefusedError(_CLIENT_CLOSED_REQUEST, "client_closed_request", "The client has gone.", "Ask again.")
    finally:
        await _cancel(gone, task)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
