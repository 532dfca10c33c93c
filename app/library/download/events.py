"""What a download says while it runs: typed events, each one line of JSON where a program reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

__all__ = [
    "Chosen",
    "Converting",
    "Discarded",
    "Done",
    "Event",
    "Fetching",
    "Progress",
    "Report",
    "Retrying",
    "Waiting",
    "decode_event",
    "encode_event",
    "event_text",
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
    """A file begins, or goes on: `n_done` of its bytes stand from before. `digest` is the hash that it must have."""

    kind: ClassVar[str] = "fetching"
    name: str
    n_bytes: int
    n_done: int
    digest: str = ""


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
class Converting:
    """`n_written` of the `n_bytes` of the file `name` stand, which is made of what comes meanwhile.

    What is fetched and what is made take `peak_disk_bytes` of disk at the most.
    """

    kind: ClassVar[str] = "converting"
    name: str
    n_bytes: int
    n_written: int
    peak_disk_bytes: int


@dataclass(frozen=True, slots=True)
class Done:
    """The files stand whole under their names, the first at `path`; `is_new` is False where they did already."""

    kind: ClassVar[str] = "done"
    path: str
    n_bytes: int
    hashes: tuple[str, ...]
    is_new: bool


Event: TypeAlias = Chosen | Waiting | Fetching | Progress | Retrying | Discarded | Converting | Done
_KINDS: dict[str, type[Event]] = {
    kind.kind: kind for kind in (Chosen, Waiting, Fetching, Progress, Retrying, Discarded, Converting, Done)
}
Report: TypeAlias = Callable[[Event], None]


def encode_event(event: Event) -> dict[str, Any]:
    """The event as JSON takes it."""
    return {"event": event.kind, **asdict(event)}


def decode_event(line: Mapping[str, Any]) -> Event | None:
    """Return the event of a line that `encode_event` made, None for one of another kind."""
    kind = _KINDS.get(line["event"])
    return kind(**{name: value for name, value in line.items() if name != "event"}) if kind else None


def event_text(event: Event) -> str:
    """Return what a person should read of `event`, which may quote a hub; nothing for what a bar shows."""
    match event:
        case Chosen():
            files = f" in {event.n_files} files" if event.n_files > 1 else ""
            return f"{event.name}, {event.n_bytes / 1e9:.2f} GB{files}. {event.reason}"
        case Waiting():
            return f"Another localllm fetches {event.name}: waiting for it."
        case Retrying():
            return f"{event.name}: {event.reason}; again in {event.wait_s:.1f} s."
        case Discarded():
            return f"{event.name} begins anew: {event.reason}."
    return ""
