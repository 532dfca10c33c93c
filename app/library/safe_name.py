"""Which names from outside may become names of files here. Pure.

A name from a hub or a URL is data: one that climbs out of its folder, or that some system takes for something else, is
refused on every system, so that a library can be carried from one to another.
"""

from __future__ import annotations

import re

__all__ = ["is_safe_name"]

_MAX_BYTES = 200  # file systems take 255, and what is being written has a longer name
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"/\\|?*\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]')
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])\s*(\..*)?", re.IGNORECASE | re.DOTALL)


def is_safe_name(name: str) -> bool:
    """True for a name that is one file of one folder, visible and the same on Linux, macOS and Windows."""
    if not name or name.startswith((".", " ")) or name.endswith((".", " ")):
        return False
    if _FORBIDDEN.search(name) or _DEVICE.fullmatch(name):
        return False
    return len(name.encode()) <= _MAX_BYTES
