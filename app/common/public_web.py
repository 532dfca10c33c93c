"""Files at addresses of the public web: of the internet alone, never of this machine or its network.

Owns what may be connected to, so that no address of a client, a model or a page makes this program ask another one
here. A name is resolved once, and the connection goes to the address that was checked; each redirect is checked as the
first address is. Owns the limits of bytes, seconds and redirects. What a file is, its reader says.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urljoin

import httpx

from app.common.outbound import no_tls, tls_context
from app.protocol.errors import RequestError

_REDIRECTS = (301, 302, 303, 307, 308)
# Addresses of IPv6 in which one of IPv4 is written: RFC 6052 and 3056.
_NAT64, _6TO4 = ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("2002::/16")

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]  # a host and a port to addresses


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the internet: neither private nor of this machine, nor one in IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    meant: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [found]
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        meant.append(found.ipv4_mapped)
    if found in _NAT64:
        meant.append(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF))
    if found in _6TO4:
        meant.append(ipaddress.IPv4Address(int(found) >> 80 & 0xFFFFFFFF))
    return all(each.is_global and not each.is_multicast for each in meant)


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much is read, for how long, and after how many redirects; `accept` are the types that are asked for."""

    max_bytes: int = 20 << 20
    timeout_s: float = 20.0
    max_redirects: int = 3
    accept: str = "*/*"


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file with the address that it was found at in the end, and its type as the server says, "" if it does not."""

    data: bytes
    address: str
    content_type: str = ""


class PublicWeb:
    """Reads files of the web. `resolve` and `is_allowed` decide on addresses; tests have their own. `remedy` is what
    the errors advise."""

    def __init__(
        self,
        limits: FetchLimits,
        remedy: str,
        resolve: Resolve = resolve,
        is_allowed: Callable[[str], bool] = is_public,
    ) -> None:
        self._limits = limits
        self._remedy = remedy
        self._resolve = resolve
        self._is_allowed = is_allowed

    async def fetch(self, address: str) -> FetchedFile:
        """Return the file at `address`. Raises RequestError for an address that is not public, and one that does not
        answer in time or with too much."""
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                place = address
                for _ in range(self._limits.max_redirects + 1):
                    found = await self._get(place)
                    if isinstance(found, FetchedFile):
                        return found
                    place = urljoin(place, found)
                raise self._error(place, f"redirects more than {self._limits.max_redirects} times")
        except TimeoutError:
            raise self._error(address, f"did not answer within {self._limits.timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            raise self._error(address, f"cannot be fetched: {type(error).__name__}") from None

    async def _get(self, address: str) -> FetchedFile | str:
        """Return the file at `address`, or where it redirects to."""
        url = httpx.URL(address)
        if url.scheme not in ("http", "https") or not url.host:
            raise self._error(address, "is no address of the web")
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        connected = url.copy_with(host=await self._checked(url.host, port), username=None, password=None)
        host = url.netloc.decode("ascii").rpartition("@")[2]
        headers = {"accept": self._limits.accept, "accept-encoding": "identity", "user-agent": "localllm", "host": host}
        extensions = {"sni_hostname": url.host}  # the certificate is that of the name
        verify = tls_context() if url.scheme == "https" else no_tls()
        async with (
            httpx.AsyncClient(trust_env=False, verify=verify, timeout=self._limits.timeout_s) as client,
            client.stream("GET", connected, headers=headers, extensions=extensions) as response,
        ):
            if response.status_code in _REDIRECTS and (place := response.headers.get("location")):
                return str(place)
            if response.status_code != httpx.codes.OK:
                raise self._error(address, f"answered with status {response.status_code}")
            data = bytearray()
            async for part in response.aiter_raw():
                data += part
                if len(data) > self._limits.max_bytes:
                    raise self._error(address, f"has more than {self._limits.max_bytes >> 20} MiB")
            return FetchedFile(bytes(data), address, response.headers.get("content-type", ""))

    async def _checked(self, host: str, port: int) -> str:
        """Return the address to connect to. Raises RequestError unless all of a name are public."""
        addresses = await self._resolve(host, port)
        if not addresses or not all(map(self._is_allowed, addresses)):
            cause = f"The host {host[:80]} is not on the internet: it is this machine, or one of its network."
            raise RequestError(cause, self._remedy)
        return addresses[0]

    def _error(self, address: str, what: str) -> RequestError:
        """Return an error that names an address without its query, in which there may be a key."""
        return RequestError(f"{address.partition('?')[0][:120]} {what}.", self._remedy)
