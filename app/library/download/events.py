"""What a download says while it runs: typed events, each one line of JSON where a program reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

__all__ = [
    "Chosen",
    "Discarded",
    "Done",
    "Event",
    "Fetching",
    "Progress",
    "Report",
    "Retrying",
    "Waiting",
    "encode_event",
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What will be fetched: `n_files` from `source`, and why these."""

    kind: ClassVar[str] = "chosen"
    source: str
    name: str
    n_files: int
    n_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Another process fetches the same file."""

    kind: ClassVar[str] = "waiting"
    name: str


@dataclass(frozen=True, slots=True)
class Fetching:
    """A file begins, or goes on: `n_done` of its bytes stand from before."""

    kind: ClassVar[str] = "fetching"
    name: str
    n_bytes: int
    n_done: int


@dataclass(frozen=True, slots=True)
class Progress:
    """`n_done` of `n_bytes` stand; `remaining_s` is None as long as nothing moves."""

    kind: ClassVar[str] = "progress"
    name: str
    n_bytes: int
    n_done: int
    bytes_per_s: float
    remaining_s: float | None


@dataclass(frozen=True, slots=True)
class Retrying:
    """A request failed for `reason` and is made again after `wait_s`."""

    kind: ClassVar[str] = "retrying"
    name: str
    reason: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class Discarded:
    """What had come of a file is of no use, and it begins anew."""

    kind: ClassVar[str] = "discarded"
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The files stand whole under their names, the first at `path`; `is_new` is False where they did already."""

    kind: ClassVar[str] = "done"
    path: str
    n_bytes: int
    hashes: tuple[str, ...]
    is_new: bool


Event: TypeAlias = Chosen | Waiting | Fetching | Progress | Retrying | Discarded | Done
Report: TypeAlias = Callable[[Event], None]


def encode_event(event: Event) -> dict[str, Any]:
    """The event as JSON takes it."""
    return {"event": event.kind, **asdict(event)}
