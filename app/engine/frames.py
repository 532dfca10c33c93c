"""The typed messages between the service and an engine worker, and their form on the pipe.

A frame is four bytes of length (big-endian) and that many bytes of JSON, `{"type": NAME, ...fields}`. Owns the list of
messages and their encoding; knows nothing of who sends them or of processes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from app.engine.counters import Counters, DraftTally, Occupancy
from app.engine.histogram import Histogram
from app.engine.request import FinishReason, Request, SamplingParams, Timings, TokenLogprob, Usage

__all__ = [
    "Abort",
    "Detokenize",
    "Detokenized",
    "Embed",
    "Embedded",
    "EngineConfig",
    "Failed",
    "Finished",
    "Frame",
    "Load",
    "LoadProgress",
    "Notice",
    "Observe",
    "Observed",
    "Output",
    "Rank",
    "Ranked",
    "Ready",
    "Submit",
    "Tokenize",
    "Tokenized",
    "decode",
    "encode",
    "frame_length",
    "read_frame",
]

MAX_FRAME_BYTES = 256 << 20
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How a model is loaded. 0 means: choose for this model and machine. `draft_path` is a draft model's, or empty."""

    n_ctx: int = 0
    n_cells: int = 0
    kv_type: str = ""  # TYPE or K_TYPE,V_TYPE
    context_shift: bool = False  # for requests that do not say
    n_threads: int = 0
    n_sequences: int = 4
    n_batch: int = 0
    n_gpu_layers: int = -1  # all that the plan allows; 0 keeps every layer on the CPU
    draft_path: str = ""
    lora: tuple[tuple[str, str], ...] = ()  # (path, name) of each adapter, which the gate has let through
    control_vectors: tuple[tuple[str, float], ...] = ()  # (path, scale); they add up


# Service to worker


@dataclass(frozen=True, slots=True)
class Load:
    """The first frame: load this file. `notice` of a failed self-test comes back as a Notice."""

    model_path: str
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Tokenize:
    call_id: str
    text: str
    add_special: bool
    parse_special: bool


@dataclass(frozen=True, slots=True)
class Detokenize:
    call_id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Observe:
    """Tell what the engine has done and holds; answered at once, in mid-batch too, but not while loading."""

    call_id: str


@dataclass(frozen=True, slots=True)
class Embed:
    """Turn each of `inputs`, texts or token ids, into a vector."""

    call_id: str
    inputs: tuple[str | tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Rank:
    """Score how well each of `documents` answers `query`."""

    call_id: str
    query: str
    documents: tuple[str, ...]


# Worker to service


@dataclass(frozen=True, slots=True)
class LoadProgress:
    fraction: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded. `n_ctx` is the longest prompt and answer in tokens, `n_ctx_train` what it was trained on."""

    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_parameters: int
    n_sequences: int
    model_bytes: int
    description: str
    load_s: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should be told once; the engine goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class Output:
    """New text of an answer: always whole characters, never part of a stop string. `n_tokens` so far.

    Where they were asked for, `logprobs` are those of the tokens whose text is complete with this one.
    """

    request_id: str
    text: str
    n_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    request_id: str
    reason: FinishReason
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class Failed:
    """A request or call (its id), or the load itself (empty id), failed. `kind` is the class name in the error tree."""

    request_id: str
    kind: str
    cause: str
    remedy: str
    details: dict[str, int]


@dataclass(frozen=True, slots=True)
class Tokenized:
    call_id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Detokenized:
    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Observed:
    call_id: str
    counters: Counters
    occupancy: Occupancy


@dataclass(frozen=True, slots=True)
class Embedded:
    """A vector of length 1 for each input, as little-endian float32; `n_tokens` of all inputs."""

    call_id: str
    vectors: tuple[bytes, ...]
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Ranked:
    """A score for each document, the higher the better, as the model's head gives it."""

    call_id: str
    scores: tuple[float, ...]
    n_tokens: int


Frame = (
    Load
    | Submit
    | Abort
    | Tokenize
    | Detokenize
    | Embed
    | Rank
    | Observe
    | LoadProgress
    | Ready
    | Notice
    | Output
    | Finished
    | Failed
    | Tokenized
    | Detokenized
    | Embedded
    | Ranked
    | Observed
)

_TYPES: dict[str, type[Any]] = {cls.__name__: cls for cls in Frame.__args__}


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
    return EngineConfig(**data | pairs)


def _sampling(data: dict[str, Any]) -> SamplingParams:
    breakers, biases = data["dry_sequence_breakers"], data["logit_bias"]
    lists = {"dry_sequence_breakers": tuple(breakers), "logit_bias": tuple((token, bias) for token, bias in biases)}
    return SamplingParams(**data | lists)


def _counters(data: dict[str, Any]) -> Counters:
    histograms = {name: Histogram(**data[name]) for name in ("first_token_s", "inter_token_s")}
    drafts = {source: DraftTally(**tally) for source, tally in data["drafts"].items()}
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
    "reason": FinishReason,
    "usage": lambda data: Usage(**data),
    "timings": lambda data: Timings(**data),
    "logprobs": lambda data: tuple(_logprob(item) for item in data),
    "counters": _counters,
    "occupancy": lambda data: Occupancy(**data),
}


def encode(frame: Frame) -> bytes:
    """Return `frame` as it goes over the pipe, its length first."""
    data = {"type": type(frame).__name__} | _fields(frame)
    body = json.dumps(data, separators=(",", ":"), default=_to_json).encode()
    return _LENGTH.pack(len(body)) + body


def _fields(value: Any) -> dict[str, Any]:
    """Return a dataclass's own fields; dataclasses.asdict would copy all below, once for each token."""
    return {name: getattr(value, name) for name in value.__slots__}


def _to_json(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else _fields(value)


def decode(body: bytes) -> Frame:
    """Return the frame in `body` (without its length). Raises ValueError for one that is not ours."""
    data = json.loads(body)
    cls = _TYPES.get(data.pop("type", ""))
    if cls is None or set(data) != {item.name for item in fields(cls)}:
        raise ValueError(f"not a frame: {body[:80]!r}")
    frame: Frame = cls(**{name: _REBUILD[name](value) if name in _REBUILD else value for name, value in data.items()})
    return frame


def frame_length(prefix: bytes) -> int:
    """Return how many bytes follow the four of `prefix`. Raises ValueError past MAX_FRAME_BYTES."""
    length: int = _LENGTH.unpack(prefix)[0]
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    return length


def read_frame(read: Callable[[int], bytes]) -> Frame | None:
    """Return the next frame of a blocking stream, None at its end. `read(n)` gives n bytes, fewer only at the end."""
    prefix = read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        return None
    length = frame_length(prefix)
    body = read(length)
    return decode(body) if len(body) == length else None
