"""A websocket whose messages are JSON objects, in both directions.

Owns the form of the messages, the timeout of the first one, and what is refused. Independent of what they mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from app.service.http.routing import parse_object
from app.service.http.streaming import compact_json
from quantizer.errors import RequestError

__all__ = ["JsonSocket"]

FIRST_TIMEOUT_S = 15.0
_POLICY_VIOLATION = 1008  # RFC 6455


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
        """Return the next object, None at the end. Raises RequestError for a message that is none."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        if text is None:
            raise RequestError("The message is bytes.", "Send JSON as text.")
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise RequestError("The message is not valid text.", "Send JSON in UTF-8.") from None
        return parse_object(data)

    async def send(self, message: object) -> None:
        """Send an object; it is dropped where the client is gone, which `receive` reports."""
        with contextlib.suppress(WebSocketDisconnect, WebSocketDisconnected):
            await self._websocket.send({"type": "websocket.send", "text": compact_json(message).decode()})

    async def close(self, reason: str) -> None:
        """Close the websocket for a client that does not keep to its protocol."""
        with contextlib.suppress(WebSocketDisconnect, WebSocketDisconnected):
            await self._websocket.close(_POLICY_VIOLATION, reason)
