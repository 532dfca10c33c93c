"""Answers over HTTP that end when the client does: streams of events or lines, and plain JSON that took a while.

Owns keep-alives, the moment at which an error is still a status, and cancelling when the client goes away. Knows
nothing of what the events say.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.service.problems import ErrorBody, status_of
from quantizer.errors import UserError

__all__ = [
    "EVENTS",
    "LINES",
    "NAMED_EVENTS",
    "EventStream",
    "Framing",
    "JsonBytes",
    "event",
    "line",
    "named_event",
    "while_connected",
]

KEEP_ALIVE_S = 10.0
_KEEP_ALIVE = b":\n\n"  # bare: some clients throw away data that comes in one chunk with a worded comment
_CLIENT_CLOSED_REQUEST = 499

Result = TypeVar("Result")


class JsonBytes(Response):
    """Compact JSON on one line: some editors search it for `"content":"` instead of parsing it."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode("utf-8", "replace")


def event(data: object) -> bytes:
    """Return `data` as one server-sent event."""
    return b"data: " + JsonBytes(data).body + b"\n\n"


def named_event(data: dict[str, Any]) -> bytes:
    """Return `data` as one server-sent event that is named by its type."""
    return f"event: {data['type']}\n".encode() + event(data)


def line(data: object) -> bytes:
    """Return `data` as one line of newline-delimited JSON."""
    return b"".join((JsonBytes(data).body, b"\n"))


@dataclass(frozen=True, slots=True)
class Framing:
    """How objects follow each other in a stream; `keep_alive` fills quiet time, where the form has something to say."""

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
        is_started = False
        try:
            async with aclosing(_with_keep_alives(self._events, receive, self._framing.keep_alive)) as chunks:
                async for chunk in chunks:
                    if not is_started:
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                        is_started = True
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except UserError as error:
            if not is_started:
                await JsonBytes(self._error_body(error), status_of(error))(scope, receive, send)
                return
            last = self._framing.frame(self._error_body(error))
            await send({"type": "http.response.body", "body": last, "more_body": True})
        if is_started:
            await send({"type": "http.response.body", "body": b""})


async def _with_keep_alives(
    events: AsyncGenerator[bytes, None], receive: Receive, keep_alive: bytes
) -> AsyncGenerator[bytes, None]:
    gone: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(receive))
    pending: asyncio.Future[Any] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(events, None))
            quiet_s = KEEP_ALIVE_S if keep_alive else None
            done, _ = await asyncio.wait({pending, gone}, timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
            if gone in done:
                return
            if pending not in done:
                yield keep_alive
                continue
            chunk, pending = pending.result(), None
            if chunk is None:
                return
            yield chunk
    finally:
        await _cancel(gone, *([pending] if pending else []))
        await events.aclose()


async def while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Return the response that `work` makes, cancelling it as soon as the client goes away."""
    gone = asyncio.ensure_future(_disconnected(request.receive))
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
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
