"""A job: long work that the service runs in a process of its own.

Owns the value. Independent of how a job is run and stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from quantizer.system.errors import ErrorInfo

JobKind: TypeAlias = Literal["pull", "quantize", "tune", "eval", "bench", "batch", "verify"]
JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled", "interrupted", "forgotten"]

ENDED = frozenset({"done", "failed", "cancelled", "interrupted", "forgotten"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job. Times are seconds since 1970; None is unknown, or does not apply. `arguments` are those it was started
    with, `result` is what its verb printed at the end, `message` its current or last step: that and `error` may quote a
    hub or a file. An "interrupted" job lost its service; `retry_job` resumes it. "forgotten" is sent only to those who
    watch."""

    id: str
    kind: JobKind
    title: str
    arguments: Mapping[str, Any]
    created_s: float
    state: JobState = "queued"
    started_s: float | None = None
    ended_s: float | None = None
    fraction: float | None = None  # 0 to 1
    n_done_bytes: int | None = None
    n_bytes: int | None = None
    bytes_per_s: float | None = None
    remaining_s: float | None = None
    message: str = ""
    digest: str = ""  # of the file that is being downloaded, such as sha256:…, where its hub has one
    error: ErrorInfo | None = None
    result: Mapping[str, Any] | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED
