"""Files at addresses of the public web: of the internet alone, never of this machine or its network.

Owns what may be connected to, so that no address of a client, a model or a page makes this program ask another one
here: no special range, no address of this machine's interfaces or of the networks that they are in, in whatever form
IPv6 writes one of IPv4. A name is resolved once, and the connection goes to the address that was checked; each redirect
is checked as the first address is. Owns the limits of bytes, seconds and redirects. What a file is, its reader says.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urljoin

import httpx
import psutil

from app.common.outbound import no_tls, tls_context
from app.protocol.errors import RequestError
from quantizer.figures import format_number

_REDIRECTS = (301, 302, 303, 307, 308)
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# Every range of IANA's registries of special-purpose addresses (iana-ipv4-special-registry), and multicast. Listed here
# because `is_global` of the standard library differs between patch versions of Python.
_SPECIAL_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24"),
            *("192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("224.0.0.0/4", "240.0.0.0/4"),
        ),
    )
)
# Of IPv6 only 2000::/3 is given to hosts of the internet (iana-ipv6-address-space): all else is local, of one link,
# multicast or a form of IPv4 (::/96, ::ffff:0:0/96, ::ffff:0:0:0/96, 64:ff9b:1::/48, 5f00::/16 …). In it, the
# special ranges (iana-ipv6-special-registry) are Teredo and others of the IETF, documentation, 6to4 and AS112.
_INTERNET_V6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL_V6 = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"))
)
# The two forms of IPv4 in IPv6 by which a host of the internet is reached: a system that maps (RFC 4291), and a network
# without IPv4, where DNS64 names each host by the well-known prefix (RFC 6052).
_MAPPED, _NAT64 = ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP_IDENTIFIERS = (0x00005EFE, 0x02005EFE)  # before the IPv4 address, in any network (RFC 5214)

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]  # a host and a port to addresses


def is_public(address: str, own_networks: Sequence[_Network] | None = None) -> bool:
    """Return whether an IP address is one of the internet and not in `own_networks` (None: those of this machine)."""
    try:
        found = ipaddress.ip_address(address)  # one with a zone is of a link, and in no network
    except ValueError:
        return False
    if own_networks is None:
        own_networks = networks_of_this_machine()
    if any(found in network for network in own_networks):
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return not any(found in network for network in _SPECIAL_V4)
    if found.scope_id is not None:
        return False
    embedded = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    if found in _MAPPED or found in _NAT64:
        return is_public(str(embedded), own_networks)
    if found not in _INTERNET_V6 or any(found in network for network in _SPECIAL_V6):
        return False
    has_identifier = int(found) >> 32 & 0xFFFFFFFF in _ISATAP_IDENTIFIERS
    return not has_identifier or is_public(str(embedded), own_networks)


def networks_of_this_machine() -> tuple[_Network, ...]:
    """Return the networks of its interfaces, as they are now: its own addresses, those of its neighbours, and the other
    end of a tunnel. A global address may be one of them: IPv6 gives one to each machine of a home."""
    networks: list[_Network] = []
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if each.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            networks += (
                _network_of(address, each.netmask if address == each.address else None)
                for address in (each.address, each.ptp)
                if address
            )
    return tuple(networks)


def _network_of(address: str, netmask: str | None) -> _Network:
    """Return the network of an interface's address. One of IPv6 has at least 64 bits for hosts, whatever the mask says:
    DHCPv6 gives a single address of such a network, and Windows tells no mask."""
    own = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(own, ipaddress.IPv4Address):
        return ipaddress.IPv4Network(f"{own}/{netmask or 32}", strict=False)
    n_bits = min(64, int(ipaddress.IPv6Address(netmask)).bit_count()) if netmask else 64
    return ipaddress.IPv6Network(f"{own}/{n_bits}", strict=False)


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much is read, for how long, and after how many redirects, 0 for none; `accept` are the types that are asked
    for."""

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
    """Reads files of the web. `resolve` and `is_allowed` decide on addresses: tests have their own, and an address that
    the person configured may be local. `remedy` is what the errors advise, `remedies` what those of a status do;
    `shown` is what they call an address whose path may be secret."""

    def __init__(
        self,
        limits: FetchLimits,
        remedy: str,
        resolve: Resolve = resolve,
        is_allowed: Callable[[str], bool] = is_public,
        remedies: Mapping[int, str] | None = None,
        shown: str = "",
    ) -> None:
        self._limits = limits
        self._shown = shown
        self._remedy = remedy
        self._remedies = remedies or {}
        self._resolve = resolve
        self._is_allowed = is_allowed

    async def fetch(self, address: str, headers: Mapping[str, str] | None = None) -> FetchedFile:
        """Return the file at `address`; `headers` may have a key, and are sent only where no redirect is followed.
        Raises RequestError for an address that is not public, and one that does not answer in time or with too much."""
        n_most = self._limits.max_redirects
        assert not headers or not n_most, "a redirect would take the headers elsewhere"
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                place = address
                for _ in range(n_most + 1):
                    found = await self._get(place, headers or {})
                    if isinstance(found, FetchedFile):
                        return found
                    if not n_most:
                        raise self._error(place, "redirects to another address, which is not followed")
                    place = urljoin(place, found)
                raise self._error(place, f"redirects more than {n_most} times")
        except TimeoutError:
            raise self._error(address, f"did not answer within {format_number(self._limits.timeout_s)} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            raise self._error(address, f"cannot be fetched: {type(error).__name__}") from None

    async def _get(self, address: str, extra_headers: Mapping[str, str]) -> FetchedFile | str:
        """Return the file at `address`, or where it redirects to."""
        url = httpx.URL(address)
        if url.scheme not in ("http", "https") or not url.host:
            raise self._error(address, "is no address of the web")
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        addresses = await self._checked(url.host, port)
        host = url.netloc.decode("ascii").rpartition("@")[2]
        headers = {"accept": self._limits.accept, "accept-encoding": "identity", "user-agent": "localllm", "host": host}
        headers |= extra_headers
        extensions = {"sni_hostname": url.host}  # the certificate is that of the name
        verify = tls_context() if url.scheme == "https" else no_tls()
        async with httpx.AsyncClient(trust_env=False, verify=verify, timeout=self._limits.timeout_s) as client:
            for number, each in enumerate(addresses, start=1):
                connected = url.copy_with(host=each, username=None, password=None)
                request = client.build_request("GET", connected, headers=headers, extensions=extensions)
                try:
                    response = await client.send(request, stream=True)
                except httpx.ConnectError:
                    if number == len(addresses):
                        raise
                    continue  # localhost is ::1 too, where not every server listens
                async with contextlib.aclosing(response):
                    return await self._read(address, response)
        raise AssertionError("a host has an address")

    async def _read(self, address: str, response: httpx.Response) -> FetchedFile | str:
        """Return the file in a response from `address`, or where it redirects to."""
        if response.status_code in _REDIRECTS and (place := response.headers.get("location")):
            return str(place)
        if response.status_code != httpx.codes.OK:
            status = response.status_code
            raise self._error(address, f"answered with status {status}", self._remedies.get(status, ""))
        data = bytearray()
        async for part in response.aiter_raw():
            data += part
            if len(data) > self._limits.max_bytes:
                raise self._error(address, f"has more than {self._limits.max_bytes >> 20} MiB")
        return FetchedFile(bytes(data), address, response.headers.get("content-type", ""))

    async def _checked(self, host: str, port: int) -> list[str]:
        """Return the addresses to connect to. Raises RequestError unless all of a name are public."""
        addresses = await self._resolve(host, port)
        if not addresses or not all(map(self._is_allowed, addresses)):
            cause = f"The host {host[:80]} is not on the internet: it is this machine, or one of its network."
            raise RequestError(cause, self._remedy)
        return list(dict.fromkeys(addresses))

    def _error(self, address: str, what: str, remedy: str = "") -> RequestError:
        """Return an error that names an address without its query, in which there may be a key."""
        shown = self._shown or address.partition("?")[0][:120]
        return RequestError(f"{shown} {what}.", remedy or self._remedy)
