"""How much JSON a request may contain. Pure.

Python reads JSON and checks it against types in calls that hold its lock from begin to end: in a thread, too, nothing
else runs meanwhile. So the bounds are what keeps the service responsive, not where the work is done.
"""

from __future__ import annotations

import re
from typing import Any

MAX_CONTAINERS = 100_000  # objects and lists
MAX_ITEMS = 10_000  # of a list: messages, tools, parts, inputs
MAX_VALUES = 600_000  # of all lists and objects together: ids of tokens are the most
STRING_OR_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def too_many_parts(data: bytes) -> tuple[str, int, int] | None:
    """Return what JSON text has too many of, how many, and the most; None where that is nothing. What is in strings is
    no part, but it counts in the quick looks that are enough for nearly all texts."""
    if _n_containers(data) <= MAX_CONTAINERS and data.count(b",") <= MAX_VALUES:
        return None
    # Strings go in one call: to look at each of a million brackets in Python kept the lock for a second.
    bare = _STRING.sub(b"", data)
    if (n := _n_containers(bare)) > MAX_CONTAINERS:
        return "objects and lists", n, MAX_CONTAINERS
    if (n := bare.count(b",")) > MAX_VALUES:
        return "values", n, MAX_VALUES
    return None


def _n_containers(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def too_long_list(fields: dict[str, Any]) -> tuple[str, int] | None:
    """Return the path of a list in `fields` that is too long, and its length; None where there is none. Numbers alone
    are ids of tokens, of which a list may have any."""
    left: list[tuple[str, Any]] = [(name, value) for name, value in fields.items() if isinstance(value, dict | list)]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{path}.{name}", inner) for name, inner in value.items() if isinstance(inner, dict | list)]
            continue
        if len(value) > MAX_ITEMS and not all(type(item) in (int, float) for item in value):
            return path, len(value)
        left += [(f"{path}[{index}]", inner) for index, inner in enumerate(value) if isinstance(inner, dict | list)]
    return None
