"""What a job says while it runs: typed events, one JSON line each, from the job's process to whoever watches."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import ClassVar, TypeAlias

from quantizer.errors import EngineError, UserError, rebuild

__all__ = ["Done", "Event", "Failed", "Planned", "Progress", "Resumed", "Warned", "decode_event", "encode_event"]


@dataclass(frozen=True, slots=True)
class Planned:
    """What will be written: the size of all files, which is the disk space it takes, and how many tensors.

    `output` is the first of `n_files`.
    """

    kind: ClassVar[str] = "planned"
    output: str
    file_type: str
    n_bytes: int
    n_tensors: int
    n_parameters: int
    n_files: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """A killed run wrote the first `n_tensors`, `n_bytes` of the output; this one goes on from there."""

    kind: ClassVar[str] = "resumed"
    n_tensors: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A tensor was written; `n_written` of the planned bytes stand."""

    kind: ClassVar[str] = "progress"
    index: int
    name: str
    stored: str
    target: str
    n_written: int


@dataclass(frozen=True, slots=True)
class Warned:
    """Something that a person should know, though the job goes on."""

    kind: ClassVar[str] = "warning"
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The output stands whole under its name."""

    kind: ClassVar[str] = "done"
    output: str
    n_bytes: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The job ended without an output; `error_kind` is a class of the error tree."""

    kind: ClassVar[str] = "failed"
    error_kind: str
    cause: str
    remedy: str

    @classmethod
    def of(cls, error: UserError) -> Failed:
        """Describe an error for the other side."""
        return cls(type(error).__name__, error.cause, error.remedy)

    def error(self) -> UserError:
        """The error again."""
        return rebuild(self.error_kind, self.cause, self.remedy, {})


Event: TypeAlias = Planned | Resumed | Progress | Warned | Done | Failed
_KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in (Planned, Resumed, Progress, Warned, Done, Failed)}


def encode_event(event: Event) -> bytes:
    """One line of JSON, newline included."""
    return json.dumps({"event": event.kind, **asdict(event)}).encode() + b"\n"


def decode_event(line: bytes) -> Event:
    """The event of one line. Raises EngineError for anything else."""
    try:
        fields = json.loads(line)
        return _KINDS[fields.pop("event")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError("The job said something that is no event.", "Report this with the command used.") from error
