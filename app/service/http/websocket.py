"""A websocket whose messages are JSON objects, in both directions.

Owns the form of the messages, the timeout of the first one, and what is refused. Independent of what they mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from app.protocol.errors import RequestError
from app.service.http.routing import parse_object
from app.service.http.streaming import compact_json

FIRST_TIMEOUT_S = 15.0
_POLICY_VIOLATION = 1008  # RFC 6455


class BadMessageError(RequestError):
    """A message that is no JSON object, or beyond the limits of one; `text` says whose it is."""

    def __init__(self, error: RequestError, text: str = "") -> None:
        super().__init__(error.cause, error.remedy)
        self.text = text


class JsonSocket:
    """The JSON objects of an accepted `websocket`."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def first(self) -> dict[str, Any] | None:
        """Return the first object; None, closing the websocket, where it does not come in time. Raises as `receive`."""
        try:
            async with asyncio.timeout(FIRST_TIMEOUT_S):
                return await self.receive()
        except TimeoutError:
            await self.close("The first message did not come in time.")
            return None

    async def receive(self) -> dict[str, Any] | None:
        """Return the next object, None at the end. Raises BadMessageError for a message that is none."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        if text is None:
            raise BadMessageError(RequestError("The message is bytes.", "Send JSON as text."))
        try:
            return parse_object(text.encode("utf-8", "surrogatepass"))
        except RequestError as error:
            raise BadMessageError(error, text) from None

    async def send(self, message: object) -> None:
        """Send an object; it is dropped where the client is gone, which `receive` reports."""
        with contextlib.suppress(WebSocketDisconnect, WebSocketDisconnected):
            await self._websocket.send({"type": "websocket.send", "text": compact_json(message).decode()})

    async def close(self, reason: str) -> None:
        """Close the websocket for a client that does not keep to its protocol."""
        with contextlib.suppress(WebSocketDisconnect, WebSocketDisconnected):
            await self._websocket.close(_POLICY_VIOLATION, reason)
