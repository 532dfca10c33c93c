"""A job: long work that the service has done by a process of its own, as all sides see it.

Owns the value and its JSON. Knows nothing of how a job is run, kept or asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from quantizer.errors import ErrorInfo

__all__ = ["ENDED", "Job", "JobKind", "JobState"]

JobKind: TypeAlias = Literal["pull", "quantize", "tune", "eval", "bench"]
JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled", "interrupted", "forgotten"]

ENDED = frozenset({"done", "failed", "cancelled", "interrupted", "forgotten"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job as it stands. Times are seconds since 1970; what is None is not known, or does not apply.

    `arguments` are what it was started with, `result` what its verb printed in the end, `message` what it does now or
    did last: that and `error` may quote a hub or a file. "interrupted" is one whose service ended first: `retry_job`
    goes on from there. "forgotten" is only told to those who watch.
    """

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
    digest: str = ""  # of the file that is being fetched, such as sha256:…, where its hub says one
    error: ErrorInfo | None = None
    result: Mapping[str, Any] | None = None

    @property
    def has_ended(self) -> bool:
        """True for what neither runs nor waits."""
        return self.state in ENDED
