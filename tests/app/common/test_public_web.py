"""What an address of the web may be: none of this machine, of its networks, or of a special range."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common.public_web import FetchLimits, PublicWeb, is_public, networks_of_this_machine
from app.protocol.errors import RequestError

# iana-ipv4-special-registry and iana-ipv6-special-registry, with one address of each range.
SPECIAL = [
    *("0.1.2.3", "10.1.2.3", "100.127.255.255", "127.1.2.3", "169.254.169.254", "172.31.255.255", "192.0.0.8"),
    *("192.0.0.9", "192.0.0.170", "192.0.2.7", "192.31.196.1", "192.52.193.1", "192.88.99.1", "192.168.0.1"),
    *("192.175.48.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "240.0.0.1", "255.255.255.255", "224.0.0.1"),
    *("::", "::1", "64:ff9b:1::808:808", "64:ff9b:1:ffff::1", "100::1", "100:0:0:1::1", "2001::1", "2001:1::1"),
    *("2001:2::1", "2001:3::1", "2001:4:112::1", "2001:10::1", "2001:20::1", "2001:30::1", "2001:db8::1"),
    *(
        "2002:808:808::1",
        "2620:4f:8000::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ),
]
PRIVATE_V4 = ("127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254")
# How IPv6 writes an address of IPv4; {} are its two halves in hexadecimal.
FORMS = {
    "compatible": "::{}",
    "mapped": "::ffff:{}",
    "translated (SIIT)": "::ffff:0:{}",
    "NAT64": "64:ff9b::{}",
    "NAT64 of a network": "64:ff9b:1::{}",
    "6to4": "2002:{}::1",
    "Teredo": "2001:0:{}::1",
    "ISATAP": "2606:4700:1:2:0:5efe:{}",
    "ISATAP, global": "2606:4700:1:2:200:5efe:{}",
    "ISATAP, link-local": "fe80::5efe:{}",
}


def halves(address: str) -> str:
    number = int(ipaddress.IPv4Address(address))
    return f"{number >> 16:x}:{number & 0xFFFF:x}"


@pytest.mark.parametrize("address", SPECIAL)
def test_no_special_range_is_public(address: str) -> None:
    assert not is_public(address, ())


@pytest.mark.parametrize("address", PRIVATE_V4)
@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_ipv6_hides_an_address_of_ipv4(form: str, address: str) -> None:
    assert not is_public(FORMS[form].format(halves(address)), ())


@pytest.mark.parametrize("form", ["mapped", "NAT64", "ISATAP"])
def test_a_host_of_the_internet_is_public_in_the_forms_that_reach_it(form: str) -> None:
    assert is_public(FORMS[form].format(halves("93.184.215.14")), ())


@pytest.mark.parametrize(
    "address", ["fe80::1%eth0", "2606:4700::1%eth0", "2606:4700::1%25eth0", "nonsense", "", "1.2.3"]
)
def test_what_has_a_zone_or_is_no_address_is_not_public(address: str) -> None:
    assert not is_public(address, ())


@given(st.ip_addresses(v=4))
def test_a_public_address_of_ipv4_is_global_for_python_too(address: ipaddress.IPv4Address) -> None:
    if is_public(str(address), ()):
        assert address.is_global
        assert not address.is_multicast
        assert not address.is_reserved


class Interface(NamedTuple):
    """An address as psutil lists it."""

    family: int
    address: str
    netmask: str | None
    broadcast: str | None
    ptp: str | None


def interface(address: str, netmask: str | None = None, ptp: str | None = None) -> Interface:
    return Interface(socket.AF_INET6 if ":" in address else socket.AF_INET, address, netmask, None, ptp)


@pytest.mark.parametrize(
    ("own", "address", "is_reached"),
    [
        (interface("93.184.215.14", "255.255.255.0"), "93.184.215.14", False),
        (interface("93.184.215.14", "255.255.255.0"), "93.184.215.200", False),
        (interface("93.184.215.14", "255.255.255.0"), "93.184.216.1", True),
        (interface("93.184.215.14", None, "8.8.4.4"), "8.8.4.4", False),  # the other end of a tunnel
        (interface("93.184.215.14", None, "8.8.4.4"), "8.8.8.8", True),
        (interface("2606:4700:1:2::5", "ffff:ffff:ffff:ffff::"), "2606:4700:1:2::5", False),
        (interface("2606:4700:1:2::5", "ffff:ffff:ffff:ffff::"), "2606:4700:1:2:abcd::1", False),
        (interface("2606:4700:1:2::5", "ffff:ffff:ffff:ffff::"), "2606:4700:1:3::1", True),
        (interface("2606:4700:1:2::5", "ffff:ffff:ffff::"), "2606:4700:1:3::1", False),
        (interface("2606:4700:1:2::5", None), "2606:4700:1:2::6", False),  # Windows tells no mask
        (interface("2606:4700:1:2::5", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), "2606:4700:1:2::6", False),
        (interface("93.184.215.14", "255.255.255.0"), "::ffff:93.184.215.14", False),
        (interface("93.184.215.14", "255.255.255.0"), "64:ff9b::5db8:d70e", False),
        (interface("fe80::1%eth0", "ffff:ffff:ffff:ffff::"), "8.8.8.8", True),
    ],
)
def test_own_addresses_and_neighbours_are_not_public_however_global(
    own: Interface, address: str, is_reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": [own]})
    assert is_public(address) is is_reached


def test_the_networks_of_this_machine_are_those_of_its_interfaces() -> None:
    networks = networks_of_this_machine()
    addresses = [
        ipaddress.ip_address(each.address.partition("%")[0])
        for interfaces in psutil.net_if_addrs().values()
        for each in interfaces
        if each.family in (socket.AF_INET, socket.AF_INET6)
    ]
    assert addresses
    assert all(any(address in network for network in networks) for address in addresses)


@pytest.mark.parametrize("host", ["2606-4700.example", "[2606:4700:1:2::5]"])
async def test_a_name_and_a_literal_of_a_global_address_of_this_machine_are_refused(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        return ["1.1.1.1", "2606:4700:1:2::5"]

    own = interface("2606:4700:1:2::5", "ffff:ffff:ffff:ffff::")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": [own]})
    web = PublicWeb(FetchLimits(), "Ask.", resolve)
    with pytest.raises(RequestError, match="not on the internet"):
        await web.fetch(f"http://{host}/")


async def test_an_address_with_a_zone_is_refused_before_it_is_asked() -> None:
    with pytest.raises(RequestError):
        await PublicWeb(FetchLimits(), "Ask.").fetch("http://[fe80::1%25lo]:1/")
