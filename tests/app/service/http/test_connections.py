"""Too many connections: the one that waits longest gives way, and an honest request is answered all the same."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.service.http.connections import ConnectionLimits, LimitedConnection, most_connections
from app.service.server import on_loop_error
from tests.app.running import RunningService
from tests.app.service.listening import listening
from tests.patience import PATIENCE_S

_HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
_WHOLE = b"whole\r\n0\r\n\r\n"
_BODY_TO_COME = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1"


async def _answering(scope: Any, receive: Any, send: Any) -> None:
    """Answer a request when its body is whole; `/early` does so before, `/begun` in part; `/stream` never ends."""
    if scope["type"] != "http":
        return
    if (is_begun := scope["path"] == "/begun") or scope["path"] == "/early":
        await send({"type": "http.response.start", "status": 413, "headers": [(b"transfer-encoding", b"chunked")]})
        await send({"type": "http.response.body", "body": b"whole", "more_body": is_begun})
        while is_begun and (await receive())["type"] != "http.disconnect":
            pass
        return
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"transfer-encoding", b"chunked")]})
    if scope["path"] == "/stream":
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    await send({"type": "http.response.body", "body": b"whole"})


class _Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int, data: bytes = b"", until: bytes = b"") -> _Client:
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        client._writer.write(data)
        if until:
            async with asyncio.timeout(60):
                await client._reader.readuntil(until)
        return client

    async def is_closed(self) -> bool:
        async with asyncio.timeout(60):
            try:
                return not await self._reader.read(1)
            except ConnectionError:
                return True

    async def ask(self) -> bytes:
        async with asyncio.timeout(60):
            self._writer.write(_HEAD + b"\r\n")
            return await self._reader.readuntil(_WHOLE)

    async def all(self) -> bytes:
        async with asyncio.timeout(60):
            return await self._reader.read()

    def close(self) -> None:
        self._writer.close()


async def _n_open(limits: ConnectionLimits, n: int) -> None:
    async with asyncio.timeout(60):
        while limits.n_open != n:  # noqa: ASYNC110 - nobody says so
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("data", "until"),
    [(b"", b""), (_HEAD, b""), (_HEAD + b"\r\n", _WHOLE), (_BODY_TO_COME, b"")],
    ids=["nothing", "half a head", "kept after an answer", "half a body"],
)
async def test_a_flood_of_waiting_connections_gives_way_to_an_honest_request(data: bytes, until: bytes) -> None:
    limits = ConnectionLimits(most=4)
    async with listening(_answering, limits) as port:
        flood = [await _Client.open(port, data, until) for _ in range(12)]
        honest = await _Client.open(port)
        assert b"200 OK" in await honest.ask()
        assert limits.n_open <= 4
        assert all([await client.is_closed() for client in flood[:8]])
        for client in (*flood, honest):
            client.close()
        await _n_open(limits, 0)


async def test_one_that_drips_a_head_stays_the_oldest_and_one_with_an_answer_is_kept() -> None:
    limits = ConnectionLimits(most=3)
    async with listening(_answering, limits) as port:
        streaming = await _Client.open(port, b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n", b"begun")
        dripping = await _Client.open(port, _HEAD)
        kept = await _Client.open(port, _HEAD + b"\r\n", _WHOLE)
        dripping._writer.write(b"X-Drop: 1\r\n")
        await asyncio.sleep(0.05)
        newest = await _Client.open(port, _HEAD + b"\r\n", _WHOLE)

        assert await dripping.is_closed()
        assert b"200 OK" in await kept.ask()
        assert not streaming._reader.at_eof()
        for client in (streaming, dripping, kept, newest):
            client.close()
        await _n_open(limits, 0)


async def test_where_all_connections_get_answers_the_newest_is_refused_with_a_status() -> None:
    limits = ConnectionLimits(most=2)
    request = b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with listening(_answering, limits) as port:
        busy = [await _Client.open(port, request, b"begun") for _ in range(2)]
        newest = await _Client.open(port)
        refused = await newest.all()

        assert refused.startswith(b"HTTP/1.1 503 ")
        head, _, body = refused.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head
        for client in (*busy, newest):
            client.close()
        await _n_open(limits, 0)


class _From(LimitedConnection):
    """A connection of a peer, without a transport."""

    def __init__(self, peer: str, limits: ConnectionLimits) -> None:
        self.peer = peer
        self.is_open = True
        self._limits = limits

    def close_at_once(self) -> None:
        self.is_open = False
        self._limits.forget(self)


def test_one_peer_of_another_machine_takes_no_more_than_its_share() -> None:
    limits = ConnectionLimits(most=10, most_of_a_peer=2)
    others = [
        _From("192.0.2.1", limits),
        *(_From(peer, limits) for peer in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "")),
    ]
    theirs = [_From("192.0.2.7", limits) for _ in range(3)]

    assert all(map(limits.admit, (*others, *theirs)))

    assert [each.is_open for each in theirs] == [False, True, True]
    assert all(each.is_open for each in others)


def test_the_limit_leaves_files_for_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    for soft, most in ((256, 128), (1024, 512), (1 << 20, 1000), (resource.RLIM_INFINITY, 1000), (10, 32)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert most_connections() == most


async def test_an_accept_that_fails_makes_room_and_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    limits = ConnectionLimits(most=100)
    waiting = [_From("127.0.0.1", limits) for _ in range(40)]
    assert all(map(limits.admit, waiting))
    error = OSError(errno.EMFILE, "Too many open files")
    loop = asyncio.get_running_loop()

    for _ in range(1000):
        on_loop_error(limits, loop, {"message": "socket.accept() out of system resource", "exception": error})

    assert sum(not each.is_open for each in waiting) >= 16
    assert [record.getMessage() for record in caplog.records if "Too many open files" in record.getMessage()] == [
        "new connections wait: [Errno 24] Too many open files"
    ]


@pytest.mark.parametrize("path", ["/early", "/begun"])
async def test_a_body_that_turns_out_invalid_behind_its_answer_closes_the_connection_without_an_error(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(_answering) as port:
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n" % path.encode()
        client = await _Client.open(port, head, b"whole\r\n")
        client._writer.write(b"no length\r\n")
        rest = await client.all()
        assert b"HTTP/1.1" not in rest, "a second answer"
        client.close()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_other_errors_of_the_loop_keep_their_report(caplog: pytest.LogCaptureFixture) -> None:
    on_loop_error(ConnectionLimits(), asyncio.get_running_loop(), {"message": "a bug", "exception": KeyError("x")})

    assert [(record.levelno, record.name) for record in caplog.records] == [(logging.ERROR, "asyncio")]


@pytest.mark.slow
def test_a_service_answers_beside_more_idle_connections_than_it_may_open_files(
    start_service: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flood of the report: 1,150 sockets that asked `/health` once, and stay."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n_flood = 1150
    if hard != resource.RLIM_INFINITY and hard < n_flood + 500:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        service = start_service()
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_flood + 500, hard))
        asyncio.run(_flood(service, n_flood))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _flood(service: RunningService, n_flood: int) -> None:
    base_url = str(service.http.base_url)
    port = httpx.URL(base_url).port
    assert port is not None
    flood = [await _Client.open(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(n_flood)]
    async with httpx.AsyncClient(base_url=base_url, headers=service.http.headers, timeout=PATIENCE_S) as honest:
        for _ in range(20):
            assert (await honest.get("/health")).status_code == 200
            assert (await honest.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})).status_code == 200
    for client in flood:
        client.close()
