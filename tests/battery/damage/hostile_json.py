"""JSON documents with one thing wrong each: a value of another kind or size, a key too few, a nest too deep.

Seeded: the same generator of chances gives the same documents.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

__all__ = ["damaged_bytes", "damaged_json"]

_DEEP = 2_000
_VALUES: tuple[Any, ...] = (
    None,
    True,
    "",
    "\0",
    "\ud800",
    "x" * 70_000,
    "\x1b[2J",
    "▁",
    -1,
    0,
    1 << 31,
    1 << 64,
    -(1 << 63),
    1e308,
    0.5,
    [],
    {},
    [[]],
    ["a", 1],
    {"": {}},
    {"type": "BPE"},
    {"type": "Sequence"},
)


def damaged_json(document: Any, chance: random.Random) -> tuple[str, str]:
    """Return what was done to `document`, and the text of the new one. Not all of these texts are JSON."""
    document = copy.deepcopy(document)
    path, parent = _place(document, chance)
    if parent is None:
        return "another document", _text(chance.choice(_VALUES))
    key, where = path[-1], ".".join(map(str, path))[:80]
    match chance.choice(("value", "value", "value", "gone", "deep", "twice", "swap", "alike", "number")):
        case "value":
            parent[key] = chance.choice(_VALUES)
            return f"{where} = {str(parent[key])[:20]!r}", _text(document)
        case "gone":
            del parent[key]
            return f"{where} is missing", _text(document)
        case "deep":
            parent[key] = "DEEP"
            depth = chance.choice((50, _DEEP, 200_000))
            return f"{where} is {depth} deep", _text(document).replace('"DEEP"', "[" * depth + "]" * depth)
        case "twice":
            parent[key] = [parent[key]] * chance.choice((2, 3_000))
            return f"{where} is repeated", _text(document)
        case "swap":
            other = chance.choice(list(parent)) if isinstance(parent, dict) else chance.randrange(len(parent))
            parent[key], parent[other] = parent[other], parent[key]
            return f"{where} and {str(other)[:20]} are swapped", _text(document)
        case "alike":
            others = list(parent.values()) if isinstance(parent, dict) else parent
            parent[key] = chance.choice(others)
            return f"{where} is as another", _text(document)
        case _:
            parent[key] = chance.choice((-1, 1)) * chance.randrange(1 << chance.randrange(1, 70))
            return f"{where} = {parent[key]}", _text(document)


def damaged_bytes(data: bytes, chance: random.Random) -> tuple[str, bytes]:
    """Return what was done to `data`, and the new bytes: cut, or with one bit, byte or word changed."""
    if not data:
        return "was empty", b"\0"
    at = chance.randrange(len(data))
    match chance.choice(("cut", "flip", "byte", "word")):
        case "cut":
            return f"cut at {at}", data[:at]
        case "flip":
            return f"flip at {at}", data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        case "byte":
            return f"byte at {at}", data[:at] + chance.randbytes(1) + data[at + 1 :]
        case _:
            return f"word at {at}", data[:at] + chance.choice((b"\xff" * 4, bytes(4), b'"]}[')) + data[at + 4 :]


def _place(document: Any, chance: random.Random) -> tuple[list[str | int], Any]:
    """Return the path of a value and what it is in, found by going down at random; None for the document itself."""
    path: list[str | int] = []
    parent, value = None, document
    while isinstance(value, dict | list) and value and (parent is None or chance.random() < 0.8):
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        path.append(key)
        parent, value = value, value[key]
    return path, parent


def _text(document: Any) -> str:
    return json.dumps(document, ensure_ascii=True)
