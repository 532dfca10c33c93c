"""The events of a running job: typed, one JSON line each, from the job's process to its parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias, get_args

from quantizer.system.errors import EngineError, ErrorInfo, UserError


@dataclass(frozen=True, slots=True)
class JobPlanned:
    """The size of all files together, which is the disk space that the job takes, and the number of tensors.
    `output` is the first of `n_files`, `projector` the last, empty for a model without one."""

    kind: ClassVar[str] = "planned"
    output: str
    file_type: str
    n_bytes: int
    n_tensors: int
    n_parameters: int
    n_files: int
    projector: str = ""


@dataclass(frozen=True, slots=True)
class JobResumed:
    """A killed run wrote the first `n_tensors`, `n_bytes` of the output; this run continues from there."""

    kind: ClassVar[str] = "resumed"
    n_tensors: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ShardOrder:
    """Pending files in the order in which they will be read: name, numbers of the first and last tensor made of
    each."""

    kind: ClassVar[str] = "reads"
    files: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class WaitingForShard:
    """The job waits for the file `name`."""

    kind: ClassVar[str] = "awaiting"
    name: str


@dataclass(frozen=True, slots=True)
class TensorWritten:
    """A tensor was written; `n_written` of the planned bytes exist."""

    kind: ClassVar[str] = "progress"
    index: int
    name: str
    stored: str
    target: str
    n_written: int


@dataclass(frozen=True, slots=True)
class JobWarning:
    """A warning; the job goes on."""

    kind: ClassVar[str] = "warning"
    text: str


@dataclass(frozen=True, slots=True)
class OutputDone:
    """The output is complete under its name."""

    kind: ClassVar[str] = "done"
    output: str
    n_bytes: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The job ended without an output."""

    kind: ClassVar[str] = "failed"
    error: ErrorInfo

    @classmethod
    def of(cls, error: UserError) -> JobFailed:
        return cls(ErrorInfo.of(error))


Event: TypeAlias = (
    JobPlanned | JobResumed | ShardOrder | WaitingForShard | TensorWritten | JobWarning | OutputDone | JobFailed
)
_KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in get_args(Event)}


def encode_event(event: Event) -> dict[str, Any]:
    return {"event": event.kind, **asdict(event)}


def decode_event(line: Mapping[str, Any]) -> Event:
    """Return the event in a JSON object. Raises EngineError for anything else."""
    try:
        fields = {name: value for name, value in line.items() if name != "event"}
        if line["event"] == JobFailed.kind:
            return JobFailed(ErrorInfo(**fields["error"]))
        return _KINDS[line["event"]](**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise EngineError("The job sent an unknown event.", "Report this with the command used.") from error
