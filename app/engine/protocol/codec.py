"""The encoding of messages on the pipe between the service and an engine worker.

A message is four bytes of length (big-endian) and that many bytes of JSON, `{"type": NAME, ...fields}`. Independent of
what the messages mean, and of processes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from app.engine.loop.counters import Counters, DraftCounts, Histogram, Occupancy
from app.engine.protocol.messages import EngineConfig, UnfitPolicy, WorkerMessage
from app.engine.request import FinishReason, Request, SamplingParams, Timings, TokenLogprob, Usage
from quantizer.errors import ErrorInfo

__all__ = ["decode", "encode", "message_length", "read_message"]

MAX_MESSAGE_BYTES = 256 << 20
_LENGTH = struct.Struct(">I")
_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in WorkerMessage.__args__}
_NAMES = {cls: {item.name for item in fields(cls)} for cls in WorkerMessage.__args__}


def _request(data: dict[str, Any]) -> Request:
    prompt = data["prompt"]
    return Request(
        **data
        | {
            "prompt": prompt if isinstance(prompt, str) else tuple(prompt),
            "sampling": _sampling(data["sampling"]),
            "stop": tuple(data["stop"]),
            "lora": None if data["lora"] is None else tuple((name, scale) for name, scale in data["lora"]),
            "visible_tags": tuple(data["visible_tags"]),
        }
    )


def _config(data: dict[str, Any]) -> EngineConfig:
    pairs = {name: tuple((path, other) for path, other in data[name]) for name in ("lora", "control_vectors")}
    layers = data["gpu_layers"]
    others = {
        "rpc": tuple(data["rpc"]),
        "when_unfit": UnfitPolicy(data["when_unfit"]),
        "gpu_layers": None if layers is None else tuple((name, count) for name, count in layers),
    }
    return EngineConfig(**data | pairs | others)


def _sampling(data: dict[str, Any]) -> SamplingParams:
    breakers, biases = data["dry_sequence_breakers"], data["logit_bias"]
    lists = {"dry_sequence_breakers": tuple(breakers), "logit_bias": tuple((token, bias) for token, bias in biases)}
    return SamplingParams(**data | lists)


def _counters(data: dict[str, Any]) -> Counters:
    histograms = {name: Histogram(**data[name]) for name in ("first_token_s", "inter_token_s")}
    drafts = {source: DraftCounts(**tally) for source, tally in data["drafts"].items()}
    return Counters(**data | histograms | {"drafts": drafts})


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


def _logprob(data: dict[str, Any]) -> TokenLogprob:
    top = tuple((_bytes(piece), logprob) for piece, logprob in data["top"])
    return TokenLogprob(_bytes(data["piece"]), data["logprob"], top, data["offset"])


# Fields whose JSON form is not their value.
_REBUILD: dict[str, Callable[[Any], Any]] = {
    "config": _config,
    "request": _request,
    "tokens": tuple,
    "inputs": lambda data: tuple(item if isinstance(item, str) else tuple(item) for item in data),
    "documents": tuple,
    "vectors": lambda data: tuple(_bytes(item) for item in data),
    "scores": tuple,
    "pieces": lambda data: tuple(_bytes(item) for item in data),
    "reason": FinishReason,
    "usage": lambda data: Usage(**data),
    "timings": lambda data: Timings(**data),
    "logprobs": lambda data: tuple(_logprob(item) for item in data),
    "counters": _counters,
    "error": lambda data: ErrorInfo(**data),
    "occupancy": lambda data: Occupancy(**data),
}


def encode(message: WorkerMessage) -> bytes:
    """Return `message` as bytes, its length first."""
    data = {"type": type(message).__name__} | _fields(message)
    body = _COMPACT.encode(data).encode()
    return _LENGTH.pack(len(body)) + body


def _fields(value: Any) -> dict[str, Any]:
    """Return a dataclass's own fields; dataclasses.asdict would copy all below, once for each token."""
    return {name: getattr(value, name) for name in value.__slots__}


def _to_json(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else _fields(value)


_COMPACT = json.JSONEncoder(separators=(",", ":"), default=_to_json)  # made once: each token is a message


def decode(body: bytes) -> WorkerMessage:
    """Return the message in `body` (without its length). Raises ValueError for anything else."""
    data = json.loads(body)
    cls = _TYPES.get(data.pop("type", ""))
    if cls is None or data.keys() != _NAMES[cls]:
        raise ValueError(f"not a message: {body[:80]!r}")
    message: WorkerMessage = cls(
        **{name: _REBUILD[name](value) if name in _REBUILD else value for name, value in data.items()}
    )
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
