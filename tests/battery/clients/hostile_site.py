"""A web site that turns into the service: what an attacker's server is once its name points to this machine.

It answers /page and /report itself, under any name, and hands every other request on to the service byte by byte, as
it came; it notes what the service said to each. Knows nothing of what its pages try.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["Exchange", "HostileSite", "hostile_site"]

_CHUNK_BYTES = 65536
_REQUEST = re.compile(rb"^(GET|HEAD|POST|PUT|DELETE|OPTIONS) (\S+) HTTP/1\.1\r\n", re.MULTILINE)
_STATUS = re.compile(rb"^HTTP/1\.1 (\d{3})", re.MULTILINE)
_ALLOWED = re.compile(rb"^access-control-", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that reached the service: its method, the `case` in its query, the status of the reply."""

    method: str
    case: str
    status: int
    allows_pages: bool


@dataclass(slots=True)
class HostileSite:
    """A site on `port` whose pages `page(query)` makes. `target_port` is the service's, set once that runs."""

    page: Callable[[dict[str, str]], str]
    port: int = 0
    target_port: int = 0
    exchanges: list[Exchange] = field(default_factory=list)
    reports: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        try:
            first = await reader.readuntil(b"\r\n\r\n")
            path = urlsplit(first.split(b" ", 2)[1].decode("latin-1"))
            if path.path == "/page":
                text = self.page({name: values[0] for name, values in parse_qs(path.query).items()})
                await _answer(writer, "text/html; charset=utf-8", text)
            elif path.path == "/report":
                self.reports.put_nowait(json.loads(await reader.readexactly(_length(first))))
                await _answer(writer, "text/plain", "")
            else:
                await self._hand_on(first, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # browsers open connections ahead and leave others in the middle; at the end the site does
        finally:
            writer.close()

    async def _hand_on(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand the connection on from its `first` bytes; requests follow each other, so replies come in their order."""
        asked: deque[tuple[str, str]] = deque()

        def note_requests(data: bytes) -> None:
            for method, path in _REQUEST.findall(data):
                query = parse_qs(urlsplit(path.decode("latin-1")).query)
                asked.append((method.decode(), query.get("case", [""])[0]))

        def note_replies(data: bytes) -> None:
            for status in _STATUS.findall(data):
                self.exchanges.append(Exchange(*asked.popleft(), int(status), bool(_ALLOWED.search(data))))

        there, to_service = await asyncio.open_connection("127.0.0.1", self.target_port)
        note_requests(first)
        to_service.write(first)
        await _first_of(_copy(reader, to_service, note_requests), _copy(there, writer, note_replies))
        to_service.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Callable[[bytes], None]) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        note(data)
        writer.write(data)
        await writer.drain()


async def _first_of(*works: Awaitable[None]) -> None:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(writer: asyncio.StreamWriter, kind: str, text: str) -> None:
    body = text.encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


def _length(head: bytes) -> int:
    found = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return int(found[1]) if found else 0


@asynccontextmanager
async def hostile_site(page: Callable[[dict[str, str]], str]) -> AsyncIterator[HostileSite]:
    """Run a site with these pages on a free port of this machine."""
    site = HostileSite(page)
    async with await asyncio.start_server(site.serve, "127.0.0.1", 0) as server:
        site.port = server.sockets[0].getsockname()[1]
        yield site
