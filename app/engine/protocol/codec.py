"""The encoding of messages on the pipe between the service and an engine worker.

A message is four bytes of length (big-endian) and that many bytes of JSON, `{"type": NAME, ...fields}`, where fields
have the form of `app.protocol.codec`. Independent of what the messages mean, and of processes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from app.engine.protocol.messages import WorkerMessage
from app.protocol import codec

__all__ = ["decode", "encode", "message_length", "read_message"]

MAX_MESSAGE_BYTES = 256 << 20
_LENGTH = struct.Struct(">I")
_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in WorkerMessage.__args__}
_FIELDS = {cls: [item.name for item in fields(cls)] for cls in WorkerMessage.__args__}
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=codec.json_default)  # made once: each token is a message


def encode(message: WorkerMessage) -> bytes:
    """Return `message` as bytes, its length first."""
    cls = type(message)
    body = _ENCODER.encode({"type": cls.__name__} | {name: getattr(message, name) for name in _FIELDS[cls]}).encode()
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> WorkerMessage:
    """Return the message in `body` (without its length). Raises ValueError for anything else."""
    data = json.loads(body)
    cls = _TYPES.get(data.pop("type", ""))
    if cls is None or data.keys() != set(_FIELDS[cls]):
        raise ValueError(f"not a message: {body[:80]!r}")
    message: WorkerMessage = codec.decode(cls, data)
    return message


def message_length(prefix: bytes) -> int:
    """Return how many bytes follow the four of `prefix`. Raises ValueError past MAX_MESSAGE_BYTES."""
    length: int = _LENGTH.unpack(prefix)[0]
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return length


def read_message(read: Callable[[int], bytes]) -> WorkerMessage | None:
    """Return the next message of a blocking stream, None at its end. `read(n)` gives n bytes, fewer only at the end."""
    prefix = read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        return None
    length = message_length(prefix)
    body = read(length)
    return decode(body) if len(body) == length else None
