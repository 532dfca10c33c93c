"""Which users of this machine listen on a port or are at the other end of a connection, where the system says it."""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import sys
from pathlib import Path
from typing import TypeAlias

Address: TypeAlias = tuple[str, int]
NOBODY = -1  # of a connection that its other end has closed

_LISTENING = "0A"  # TCP_LISTEN of the kernel's include/net/tcp_states.h
# Source: include/uapi/linux/netlink.h, sock_diag.h and inet_diag.h of the kernel.
_NETLINK, _SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR = 16, 4, 20, 1, 2
_TCP, _ANY_STATE, _ANY_SOCKET = 6, 0xFFFFFFFF, 0xFFFFFFFF
_HEADER, _CODE, _USER_AT = struct.Struct("=IHHII"), struct.Struct("=i"), 16 + 4 + 48 + 12
_TIMEOUT_S = 1.0  # the kernel answers at once
_TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}


def listening_users(host: str, port: int) -> frozenset[int]:
    """Return the user ids of what listens on `port` of the numeric address `host`, or of all addresses; none where the
    system does not say it (only Linux does)."""
    if sys.platform != "linux":
        return frozenset()
    address = ipaddress.ip_address(host)
    addresses = [address] if address.version == 6 else [address, ipaddress.ip_address(f"::ffff:{address}")]
    wanted = {f"{text}:{port:04X}" for each in addresses for text in (_kernel_text(each.packed), "0" * 8, "0" * 32)}
    users = set()
    for table in _TABLES.values():
        try:
            with table.open(encoding="ascii") as rows:
                next(rows, None)  # the names of the columns
                for row in rows:
                    _, local, _, state, _, _, _, user, *_ = row.split()
                    if state != _LISTENING:
                        break  # those that listen come first
                    if local in wanted:
                        users.add(int(user))
        except (OSError, ValueError):
            continue
    return frozenset(users)


def connected_user(own: Address, peer: Address) -> int | None:
    """Return the user id of the process at the end `peer` of a connection within this machine, whose other end is
    `own`: NOBODY where that has closed it, None where the system does not say it (only Linux does, in 30 µs)."""
    if sys.platform != "linux":
        return None
    try:
        source, target = (_unmapped(host) for host, _ in (peer, own))
        if source.version != target.version:
            return None
        family = socket.AF_INET if source.version == 4 else socket.AF_INET6
        wanted = struct.pack("=BBBBI", family, _TCP, 0, 0, _ANY_STATE)
        wanted += struct.pack("!HH16s16s", peer[1], own[1], source.packed, target.packed)
        wanted += struct.pack("=III", 0, _ANY_SOCKET, _ANY_SOCKET)
        with socket.socket(_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(_TIMEOUT_S)
            kernel.send(_HEADER.pack(_HEADER.size + len(wanted), _BY_FAMILY, _REQUEST, 0, 0) + wanted)
            answer = kernel.recv(4096)
        kind = _HEADER.unpack_from(answer)[1]
        if kind == _ERROR:
            return NOBODY if -_CODE.unpack_from(answer, _HEADER.size)[0] == errno.ENOENT else None
        user, inode = struct.unpack_from("=II", answer, _USER_AT)
    except (OSError, ValueError, struct.error):  # a sandbox without it
        return None
    return user if inode else NOBODY  # what a process has closed is nobody's, and called the administrator's


def _unmapped(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host)
    return getattr(address, "ipv4_mapped", None) or address


def _kernel_text(packed: bytes) -> str:
    """Return an address as the kernel prints it: words of 32 bits in this machine's byte order."""
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
