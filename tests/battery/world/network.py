"""The network of a simulated world: httpx over the applications of services, with delays, and ends of either side.

A client hangs up by closing its response or by dying; a service that dies closes all connections, and refuses new ones
until another listens at its port.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.types import ASGIApp, Message

from tests.battery.world.clock import Clock
from tests.battery.world.lives import Life
from tests.battery.world.loop import LIFE

__all__ = ["Network"]


class Network(httpx.AsyncBaseTransport):
    """A transport of httpx to the services that listen, by their ports. `faults` collects what a server's log would:
    exceptions of its application, and responses that end before they are complete."""

    def __init__(self, clock: Clock) -> None:
        self.faults: list[str] = []
        self.clock = clock
        self._listening: dict[int, tuple[ASGIApp, Life]] = {}
        self._open: dict[_Exchange, None] = {}

    @property
    def n_open(self) -> int:
        return len(self._open)

    def listen(self, port: int, app: ASGIApp, life: Life) -> None:
        """Accept requests for `app` until the process ends."""

        def end() -> None:
            self.stop(port)
            for exchange in [each for each in self._open if each.server is life]:
                exchange.cut()

        self._listening[port] = (app, life)
        life.on_end.append(end)

    def stop(self, port: int) -> None:
        self._listening.pop(port, None)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        if (found := self._listening.get(request.url.port or 0)) is None:
            await asyncio.sleep(self.clock.delay_s(0.001))
            raise httpx.ConnectError(f"Nothing listens at port {request.url.port}.")
        exchange = _Exchange(*found, request, body, self)
        self._open[exchange] = None
        if (client := LIFE.get()) is not None:
            client.on_end.append(exchange.hang_up)
        return await exchange.response()

    def end(self, exchange: _Exchange) -> None:
        self._open.pop(exchange, None)


class _Exchange(httpx.AsyncByteStream):
    """A request on its way through the application; closing the stream hangs up."""

    def __init__(self, app: ASGIApp, server: Life, request: httpx.Request, body: bytes, network: Network) -> None:
        self.server = server
        self._clock, self._network, self._body = network.clock, network, body
        self._what = f"{request.method} {request.url.path}"
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()
        self._has_hung_up, self._is_over = asyncio.Event(), asyncio.Event()
        self._is_complete = False
        port = request.url.port
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "server": ("127.0.0.1", port),
            "client": ("127.0.0.1", 50000),
        }
        server.task(self._run(app, scope))

    async def response(self) -> httpx.Response:
        try:
            start = await self._sent.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if start is None:
            raise httpx.ReadError(f"{self._what}: the server closed the connection")
        return httpx.Response(start["status"], headers=start["headers"], stream=self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            message = await self._sent.get()
            if message is None:
                raise httpx.RemoteProtocolError(f"{self._what}: the response is not complete")
            if data := message.get("body", b""):
                yield data
            if not message.get("more_body", False):
                return

    async def aclose(self) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        self._has_hung_up.set()
        self._is_over.set()

    def cut(self) -> None:
        """Close the connection from the side of the server, whose process has ended; what it sent arrives."""
        self._network.end(self)
        self._sent.put_nowait(None)

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        try:
            await asyncio.sleep(self._clock.delay_s(0.002))
            await app(scope, self._receive, self._send)
            if not self._is_complete and not self._has_hung_up.is_set():
                self._network.faults.append(f"{self._what}: the response ended before it was complete")
        except Exception as error:
            self._network.faults.append(f"{self._what}: {error!r}")
        finally:
            if not self.server.is_over:
                self._network.end(self)
                self._sent.put_nowait(None)

    async def _receive(self) -> Message:
        body, self._body = self._body, None  # type: ignore[assignment]
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_over.wait()
        await asyncio.sleep(self._clock.delay_s(0.001))
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._has_hung_up.is_set():  # uvicorn tells nobody either
            return
        if self._clock.chance.random() < 0.2:
            await asyncio.sleep(self._clock.delay_s(0.001))
        self._is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        if self._is_complete:
            self._is_over.set()
        self._sent.put_nowait(message)
