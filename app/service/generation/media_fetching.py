"""Pictures and sounds at addresses on the web, which only the setting `fetch_media_urls` lets the service read.

Owns what may be connected to: public addresses of the internet alone, so that no request can make the service ask a
program of this machine or its network. A name is resolved once, and the connection goes to the address that was
checked. Owns the limits of bytes, seconds and redirects; what the file is, its bytes say.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from urllib.parse import urljoin

import httpx

from app.engine.media.file_kinds import format_of
from quantizer.errors import RequestError

__all__ = ["MAX_FETCHED_BYTES", "WebFetcher", "is_public"]

MAX_FETCHED_BYTES = 20 << 20
TIMEOUT_S = 20.0
MAX_REDIRECTS = 3
_REMEDY = "Send the file itself, as a data URL in Base64."
_HEADERS = {"accept": "image/*, audio/*", "accept-encoding": "identity", "user-agent": "localllm"}
_REDIRECTS = (301, 302, 303, 307, 308)
# Addresses of IPv6 in which one of IPv4 is written: RFC 6052 and 3056.
_NAT64, _6TO4 = ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("2002::/16")

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]  # a host and a port to addresses


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the internet: neither private nor of this machine, nor one in IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    return all(item.is_global and not item.is_multicast for item in (found, *_within(found)))


def _within(address: Address) -> list[Address]:
    """Return the addresses of IPv4 that one of IPv6 stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    mapped = [address.ipv4_mapped] if address.ipv4_mapped else []
    if address in _NAT64:
        mapped.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address in _6TO4:
        mapped.append(ipaddress.IPv4Address(int(address) >> 80 & 0xFFFFFFFF))
    return [*mapped]


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class WebFetcher:
    """A `MediaFetcher` of the web. `resolve` and `is_allowed` decide on addresses; tests have their own."""

    def __init__(self, resolve: Resolve = _resolve, is_allowed: Callable[[str], bool] = is_public) -> None:
        self._resolve = resolve
        self._is_allowed = is_allowed

    async def fetch(self, address: str) -> bytes:
        """Return the picture or sound at `address`.

        Raises RequestError for an address that is not public, one that does not answer in time or with too much, and
        for any other kind of file.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                data = await self._followed(address)
        except TimeoutError:
            raise RequestError(f"{_shown(address)} did not answer within {TIMEOUT_S:g} s.", _REMEDY) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            cause = f"{_shown(address)} cannot be fetched: {type(error).__name__}."
            raise RequestError(cause, _REMEDY) from None
        format_of(data)
        return data

    async def _followed(self, address: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            found = await self._get(address)
            if isinstance(found, bytes):
                return found
            address = urljoin(address, found)
        raise RequestError(f"{_shown(address)} redirects more than {MAX_REDIRECTS} times.", _REMEDY)

    async def _get(self, address: str) -> bytes | str:
        """Return the file at `address`, or where it redirects to."""
        url = httpx.URL(address)
        if url.scheme not in ("http", "https") or not url.host:
            raise RequestError(f"{_shown(address)} is no address of the web.", _REMEDY)
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        connected = url.copy_with(host=await self._checked(url.host, port), username=None, password=None)
        headers = {**_HEADERS, "host": url.netloc.decode("ascii").rpartition("@")[2]}
        extensions = {"sni_hostname": url.host}  # the certificate is that of the name
        async with (
            httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S, follow_redirects=False) as client,
            client.stream("GET", connected, headers=headers, extensions=extensions) as response,
        ):
            if response.status_code in _REDIRECTS and (place := response.headers.get("location")):
                return str(place)
            if response.status_code != httpx.codes.OK:
                raise RequestError(f"{_shown(address)} answered with status {response.status_code}.", _REMEDY)
            return await _read(response, address)

    async def _checked(self, host: str, port: int) -> str:
        """Return the address to connect to. Raises RequestError unless all of a name are public."""
        addresses = await self._resolve(host, port)
        if not addresses or not all(map(self._is_allowed, addresses)):
            cause = f"The host {host[:80]} is not on the internet: it is this machine, or one of its network."
            raise RequestError(cause, _REMEDY)
        return addresses[0]


async def _read(response: httpx.Response, address: str) -> bytes:
    data = bytearray()
    async for part in response.aiter_raw():
        data += part
        if len(data) > MAX_FETCHED_BYTES:
            raise RequestError(f"{_shown(address)} has more than {MAX_FETCHED_BYTES >> 20} MiB.", _REMEDY)
    return bytes(data)


def _shown(address: str) -> str:
    """Return an address without its query, in which there may be a key."""
    return address.partition("?")[0][:120]
