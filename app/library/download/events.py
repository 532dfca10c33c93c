"""The events of a download, each one line of JSON for programs, and its speed. Bars import it: no HTTP client here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, get_args

from app.protocol.codec import decode, encode

_WINDOW_S = 8.0  # over which a speed is measured


@dataclass(frozen=True, slots=True)
class Chosen:
    """The choice is made: `n_files` from `source`, and the reason."""

    kind: ClassVar[str] = "chosen"
    source: str
    name: str
    n_files: int
    n_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Another process is fetching the same file."""

    kind: ClassVar[str] = "waiting"
    name: str


@dataclass(frozen=True, slots=True)
class Fetching:
    """A file starts or resumes: `n_done` of its bytes exist. `digest` is its expected hash."""

    kind: ClassVar[str] = "fetching"
    name: str
    n_bytes: int
    n_done: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """`n_done` of `n_bytes` are fetched; `remaining_s` is None while nothing arrives."""

    kind: ClassVar[str] = "progress"
    name: str
    n_bytes: int
    n_done: int
    bytes_per_s: float
    remaining_s: float | None


@dataclass(frozen=True, slots=True)
class Retrying:
    """A request failed for `reason` and is repeated after `wait_s`."""

    kind: ClassVar[str] = "retrying"
    name: str
    reason: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class Discarded:
    """The partial file is discarded, and the download starts again."""

    kind: ClassVar[str] = "discarded"
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unpacking:
    """`n_done` of the `n_bytes` of the file `name` are taken out of the archive that was fetched."""

    kind: ClassVar[str] = "unpacking"
    name: str
    n_bytes: int
    n_done: int


@dataclass(frozen=True, slots=True)
class Converting:
    """`n_written` of the `n_bytes` of the file `name` are converted while its source is fetched. Both take at most
    `peak_disk_bytes` of the disk."""

    kind: ClassVar[str] = "converting"
    name: str
    n_bytes: int
    n_written: int
    peak_disk_bytes: int


@dataclass(frozen=True, slots=True)
class Done:
    """All files are complete, the first at `path`; `is_new` is False if they existed before."""

    kind: ClassVar[str] = "done"
    path: str
    n_bytes: int
    hashes: tuple[str, ...]
    is_new: bool


@dataclass(frozen=True, slots=True)
class PartAdded:
    """The file at `path` is complete and belongs to the model file `model`, which is `done`; `part` says as what."""

    part: ClassVar[str]
    path: str
    model: str
    n_bytes: int
    hashes: tuple[str, ...]
    is_new: bool


@dataclass(frozen=True, slots=True)
class PartLeftOut:
    """The file `name` is not added to the model file `model`, which is `done`, for `reason`, a sentence."""

    part: ClassVar[str]
    name: str
    model: str
    reason: str


class HeadAdded(PartAdded):
    __slots__ = ()
    kind: ClassVar[str] = "head_added"
    part = "head"


class HeadLeftOut(PartLeftOut):
    __slots__ = ()
    kind: ClassVar[str] = "head_left_out"
    part = "head"


class ProjectorAdded(PartAdded):
    __slots__ = ()
    kind: ClassVar[str] = "projector_added"
    part = "projector"


class ProjectorLeftOut(PartLeftOut):
    __slots__ = ()
    kind: ClassVar[str] = "projector_left_out"
    part = "projector"


_OfParts: TypeAlias = HeadAdded | HeadLeftOut | ProjectorAdded | ProjectorLeftOut
Event: TypeAlias = (
    Chosen | Waiting | Fetching | Progress | Retrying | Discarded | Unpacking | Converting | Done | _OfParts
)
_KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in get_args(Event)}
Report: TypeAlias = Callable[[Event], None]


def encode_event(event: Event) -> dict[str, Any]:
    return {"event": event.kind, **encode(event)}


def decode_event(line: Mapping[str, Any]) -> Event | None:
    """Return the event of an object that `encode_event` made, None for another kind."""
    kind = _KINDS.get(line["event"])
    return decode(kind, line) if kind else None


def event_text(event: Event) -> str:
    """Return `event` as a sentence, which may quote a hub; empty for those that a progress bar shows."""
    match event:
        case Chosen():
            files = f" in {event.n_files} files" if event.n_files > 1 else ""
            return f"{event.name}, {event.n_bytes / 1e9:.2f} GB{files}. {event.reason}"
        case Waiting():
            return f"Another localllm is fetching {event.name}: waiting for it."
        case Retrying():
            return f"{event.name}: {event.reason}; again in {event.wait_s:.1f} s."
        case Discarded():
            return f"{event.name} starts again: {event.reason}."
        case HeadLeftOut() | ProjectorLeftOut():
            part = "draft head" if isinstance(event, HeadLeftOut) else "projector"
            return f"{event.model} is complete without its {part} {event.name}: {event.reason}"
    return ""


class Speedometer:
    """Bytes per second over the last seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: deque[tuple[float, int]] = deque()

    def bytes_per_s(self, n_bytes: int) -> float:
        """Record that `n_bytes` are complete now, and return the rate; 0 at first."""
        now_s = self._now()
        self._seen.append((now_s, n_bytes))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - _WINDOW_S:
            self._seen.popleft()
        begun_s, n_begun = self._seen[0]
        return (n_bytes - n_begun) / (now_s - begun_s) if now_s > begun_s else 0.0
