"""Pictures from the web: what may be connected to, and the limits of what is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from app.common.public_web import is_public
from app.protocol.errors import RequestError
from app.service.generation.media_fetching import MAX_FETCHED_BYTES, WebFetcher
from tests.app.engine.media.files import picture_file

PNG = picture_file()
Handle = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def web(handle: Handle) -> AsyncIterator[int]:
    """Serve on a port of this machine; `handle` is given the head of each request."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await handle(head.decode(), writer)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def _answer(body: bytes, *headers: str, status: str = "200 OK") -> Handle:
    async def handle(_: str, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()

    return handle


def resolving_to(*addresses: str) -> Callable[[str, int], Awaitable[list[str]]]:
    async def resolve(_host: str, _port: int) -> list[str]:
        return [*addresses]

    return resolve


def local() -> WebFetcher:
    """Every name is this machine, which counts as the internet."""
    return WebFetcher(resolving_to("127.0.0.1"), lambda _: True)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fe80::1%eth0"),
        *("fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
        "2001:db8::1",
    ],
)
def test_addresses_of_this_machine_and_its_network_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.215.14", "1.1.1.1", "2606:4700:4700::1111"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("http://127.0.0.1/a.png", "http://localhost/a.png", "http://[::1]/a.png", "https://0/a.png"),
        *("http://127.1/a.png", "http://2130706433/a.png", "http://user@127.0.0.1/", "http://[::ffff:127.0.0.1]/"),
    ],
)
async def test_this_machine_is_never_asked(address: str) -> None:
    with pytest.raises(RequestError):
        await WebFetcher().fetch(address)


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("1.1.1.1", "10.0.0.1"), ()])
async def test_a_name_that_resolves_to_this_machine_or_its_network_is_refused(addresses: tuple[str, ...]) -> None:
    with pytest.raises(RequestError, match="not on the internet"):
        await WebFetcher(resolving_to(*addresses)).fetch("https://harmless.example/a.png")


async def test_a_name_is_resolved_once_and_its_address_is_asked_under_the_name() -> None:
    heads: list[str] = []
    asked: list[str] = []

    async def resolve(host: str, _port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async def handle(head: str, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        await _answer(PNG)(head, writer)

    async with web(handle) as port:
        data = await WebFetcher(resolve, lambda _: True).fetch(f"http://pictures.example:{port}/a.png?key=1")
    assert data == PNG
    assert asked == ["pictures.example"]
    assert f"host: pictures.example:{port}" in heads[0].lower()
    assert heads[0].startswith("GET /a.png?key=1 ")


async def test_a_redirect_is_checked_as_the_first_address_is() -> None:
    def is_allowed(address: str) -> bool:
        return address == "127.0.0.1"

    async def resolve(host: str, _port: int) -> list[str]:
        return ["127.0.0.1" if host == "pictures.example" else "10.0.0.1"]

    fetcher = WebFetcher(resolve, is_allowed)
    async with web(_answer(b"", "location: http://inside.example/", status="302 Found")) as port:
        with pytest.raises(RequestError, match=r"inside\.example is not on the internet"):
            await fetcher.fetch(f"http://pictures.example:{port}/")
    for place in ("file:///etc/passwd", "ftp://pictures.example/"):
        async with web(_answer(b"", f"location: {place}", status="301 Moved")) as port:
            with pytest.raises(RequestError, match="no address of the web"):
                await fetcher.fetch(f"http://pictures.example:{port}/")


async def test_redirects_come_to_an_end() -> None:
    async with web(_answer(b"", "location: /again", status="307 Temporary Redirect")) as port:
        with pytest.raises(RequestError, match="more than 3 times"):
            await local().fetch(f"http://pictures.example:{port}/")


async def test_a_file_that_is_too_large_is_not_read_to_its_end() -> None:
    async def handle(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + PNG)
        try:
            for _ in range(1000):
                writer.write(bytes(1 << 20))
                await writer.drain()
        except ConnectionError:
            return
        raise AssertionError("all of it was read")

    async with web(handle) as port:
        with pytest.raises(RequestError, match=f"more than {MAX_FETCHED_BYTES >> 20} MiB"):
            await local().fetch(f"http://pictures.example:{port}/")


@pytest.mark.parametrize("body", [b"<html>", b"%PDF-1.7", b"\x1f\x8b" + bytes(8), b""])
async def test_only_pictures_and_sounds_are_taken(body: bytes) -> None:
    async with web(_answer(body, "content-type: image/png")) as port:
        with pytest.raises(RequestError):
            await local().fetch(f"http://pictures.example:{port}/")


async def test_a_failure_says_what_it_was_without_the_query() -> None:
    async with web(_answer(b"", status="404 Not Found")) as port:
        with pytest.raises(RequestError, match="status 404") as refused:
            await local().fetch(f"http://pictures.example:{port}/a?key=secret")
    assert "secret" not in str(refused.value)
    with pytest.raises(RequestError, match="cannot be fetched"):
        await local().fetch("http://pictures.example:1/")
