from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from app.service import server
from app.service.http import connections
from tests.app.service.listening import listening


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    websocket = WebSocket(scope, receive, send)
    await websocket.accept()
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        await websocket.send_text(message["text"])


async def _send_and_receive(websocket: ClientConnection, text: str) -> None:
    await websocket.send(text)  # which fails where the answer is there first
    await websocket.recv()


async def test_a_websocket_outlives_the_timeout_of_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.2)
    async with listening(_echo) as port, connect(f"ws://127.0.0.1:{port}/", proxy=None) as websocket:
        for text in ("one", "two"):
            await asyncio.sleep(0.3)
            await websocket.send(text)
            assert await websocket.recv() == text


async def test_a_message_is_neither_too_large_nor_compressed() -> None:
    async with listening(_echo) as port, connect(f"ws://127.0.0.1:{port}/", proxy=None) as websocket:
        assert websocket.response is not None
        assert "Sec-WebSocket-Extensions" not in websocket.response.headers  # a small message may not grow
        with pytest.raises(ConnectionClosedError, match="1009"):
            await _send_and_receive(websocket, "x" * (server._MAX_MESSAGE_BYTES + 1))


async def test_an_invalid_handshake_is_answered_without_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(_echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
    assert caplog.text == ""
