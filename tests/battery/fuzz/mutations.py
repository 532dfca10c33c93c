"""New inputs from old ones, in the form of each target: JSON stays JSON most of the time, an event an event.

Seeded: the same generator of chances makes the same inputs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tests.battery.damage.hostile_json import damaged_bytes, damaged_json
from tests.battery.fuzz.target import Form, Target

__all__ = ["mutated", "stretched"]

_SHARE_OF_BYTES = 0.1  # of mutations that know nothing of the form
_N_MOST = 3  # changes at once
_EDGES = (
    "0",
    "-1",
    "1",
    "255",
    "65536",
    "4294967295",
    "18446744073709551615",
    "1e999",
    "null",
    '"',
    "\\",
    "\0",
    "\ud7ff",
)


def mutated(target: Target, data: bytes, other: bytes, chance: random.Random) -> bytes:
    """Return a new input made of `data`, and now and then of a part of `other`, within the target's size."""
    for _ in range(chance.randint(1, _N_MOST)):
        if len(data) > target.max_bytes:  # one change can make it a thousand times as large
            break
        change = _BYTES if chance.random() < _SHARE_OF_BYTES else _BY_FORM[target.form]
        try:
            data = change(data, other, target.words, chance)
        except (ValueError, RecursionError):  # it is not of that form
            data = _BYTES(data, other, target.words, chance)
    return data[: target.max_bytes]


def _bytes(data: bytes, other: bytes, words: tuple[str, ...], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    match chance.choice(("damage", "damage", "word", "splice", "twice", "gone")):
        case "word" if words:
            return data[:at] + chance.choice(words).encode() + data[at + chance.choice((0, 0, 1, 4)) :]
        case "splice" if other:
            begin = chance.randrange(len(other))
            return data[:at] + other[begin : begin + chance.randrange(1, 65)] + data[at + chance.choice((0, 0, 8)) :]
        case "twice":
            part = data[at : at + chance.randrange(1, 33)]
            return data[:at] + part * chance.choice((2, 3, 50)) + data[at + len(part) :]
        case "gone":
            return data[:at] + data[at + chance.randrange(1, 33) :]
        case _:
            return damaged_bytes(data, chance)[1]


def _text(data: bytes, other: bytes, words: tuple[str, ...], chance: random.Random) -> bytes:
    text, more = data.decode(), other.decode("utf-8", "replace")
    at = chance.randrange(len(text) + 1)
    part = chance.choice((*words, *_EDGES)) if chance.random() < 0.6 else _piece(more, chance)
    n_gone = chance.choice((0, 0, 1, len(part), chance.randrange(20)))
    return (text[:at] + part + text[at + n_gone :]).encode()


def _piece(text: str, chance: random.Random) -> str:
    begin = chance.randrange(len(text) + 1)
    return text[begin : begin + chance.randrange(1, 40)]


def _json(data: bytes, other: bytes, words: tuple[str, ...], chance: random.Random) -> bytes:
    document = json.loads(data)
    if chance.random() < 0.5:
        return damaged_json(document, chance)[1].encode("utf-8", "surrogatepass")
    parts = _holders(document)
    given = _holders(json.loads(other)) if chance.random() < 0.5 and other else []
    if not parts:
        return json.dumps(chance.choice((words and {chance.choice(words): document}, [document]))).encode()
    holder = chance.choice(parts)
    value: Any = chance.choice(given) if given else chance.choice((*words, 0, 1, [], {}, None)) if words else None
    if isinstance(holder, dict):
        keys = [*holder, *words, ""]
        holder[chance.choice(keys)] = value
    else:
        holder.insert(chance.randrange(len(holder) + 1), value)
    return json.dumps(document).encode()


def _holders(document: Any) -> list[Any]:
    """Return all objects and lists in a document."""
    found, left = [], [document]
    while left:
        part = left.pop()
        if isinstance(part, dict | list):
            found.append(part)
            left += part.values() if isinstance(part, dict) else part
    return found


def _events(data: bytes, other: bytes, words: tuple[str, ...], chance: random.Random) -> bytes:
    lines = data.split(b"\n\n")
    at = chance.randrange(len(lines))
    match chance.choice(("json", "json", "json", "text", "gone", "twice", "other")):
        case "json":
            field, colon, value = lines[at].partition(b":")
            there = chance.choice(other.split(b"\n\n")).partition(b":")[2]
            try:
                lines[at] = field + colon + _json(value, there, words, chance)
            except ValueError:
                lines[at] = field + colon + _json(value, b"", words, chance)
        case "gone":
            del lines[at]
        case "twice":
            lines[at:at] = [lines[at]] * chance.randint(1, 3)
        case "other":
            lines.insert(at, chance.choice(other.split(b"\n\n")))
        case _:
            lines[at] = _text(lines[at], other, words, chance)
    return b"\n\n".join(lines)


def _weights(data: bytes, other: bytes, words: tuple[str, ...], chance: random.Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = _json(data[8 : 8 + length], other[8 : 8 + int.from_bytes(other[:8], "little")], words, chance)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def stretched(target: Target, data: bytes, size: int, chance: random.Random) -> bytes:
    """Return `data` with one part of it many times, about `size` bytes in all: what takes more time than its size
    should shows it here."""
    with suppress(ValueError, RecursionError):  # it is not of its form
        if target.form is Form.WEIGHTS:
            header = _stretched_json(data[8 : 8 + int.from_bytes(data[:8], "little")], size, chance)
            return len(header).to_bytes(8, "little") + header
        if target.form is Form.JSON:
            return _stretched_json(data, size, chance)
    begin = chance.randrange(len(data) + 1)
    part = data[begin : begin + chance.choice((1, 2, 5, 20, len(data)))] or b"a"
    return (data[:begin] + part * (size // len(part)) + data[begin:])[: 2 * size]


def _stretched_json(data: bytes, size: int, chance: random.Random) -> bytes:
    """Multiply a value of a document: as items, under other names, as a longer text, or in itself."""
    document = {"": json.loads(data)}
    holders = [holder for holder in _holders(document) if holder]
    holder = chance.choice(holders)
    key = chance.choice(list(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
    value = holder[key]
    n_times = max(2, size // (len(json.dumps(value)) + 8))
    kinds = ["list", "names", "nested"] if holder is not document else ["list"]
    match chance.choice([*kinds, *(["text"] * 3 if isinstance(value, str) else [])]):
        case "text":
            holder[key] = (value or "a") * (size // max(1, len(value)))
        case "names" if isinstance(holder, dict):
            holder.update({f"{key}{number}": value for number in range(n_times)})
        case "nested" if isinstance(holder, dict):
            text = json.dumps(value)
            opening = json.dumps({str(key): None})[:-5]
            holder[key] = "NESTED"
            n_levels = min(n_times, size // (len(opening) + 1))
            nested = opening * n_levels + text + "}" * n_levels
            return json.dumps(document[""]).replace('"NESTED"', nested).encode()
        case _:
            holder[key] = [value] * n_times
    return json.dumps(document[""]).encode()


_Change = Callable[[bytes, bytes, tuple[str, ...], random.Random], bytes]
_BYTES: _Change = _bytes
_BY_FORM: Mapping[Form, _Change] = {
    Form.BYTES: _bytes,
    Form.TEXT: _text,
    Form.JSON: _json,
    Form.EVENTS: _events,
    Form.WEIGHTS: _weights,
}
