"""Who listens on a port of this machine, where the system says it."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path

_LISTENING = "0A"  # TCP_LISTEN of the kernel's include/net/tcp_states.h
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


def _kernel_text(packed: bytes) -> str:
    """Return an address as the kernel prints it: words of 32 bits in this machine's byte order."""
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
