"""The state of a running job, changed by each line of its verb. Pure.

Owns which line changes what: the lines of `app.cli.output.job_events` and those of `pull --json`. Unknown events change
nothing; a line without an event is the result of the verb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from app.library.download import events as download
from app.protocol.job import Job, JobState
from quantizer.errors import EngineError, ErrorInfo
from quantizer.write.events import JobFailed

__all__ = ["Line", "RunningJob"]

Line: TypeAlias = Mapping[str, Any]

_NO_PROGRESS: dict[str, Any] = {
    "fraction": None,
    "n_done_bytes": None,
    "n_bytes": None,
    "bytes_per_s": None,
    "remaining_s": None,
}


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job while it runs. For a download of several files, `n_bytes` counts all, `n_bytes_before` finished files."""

    job: Job
    n_bytes: int = 0
    n_bytes_before: int = 0
    n_file_bytes: int = 0

    @classmethod
    def begun(cls, job: Job, now_s: float) -> RunningJob:
        """Return `job` started, for the first time or again."""
        fresh: dict[str, Any] = {"message": "", "digest": "", "error": None, "result": None, "ended_s": None}
        return cls(replace(job, state="running", started_s=now_s, **fresh, **_NO_PROGRESS))

    def after(self, line: Line) -> RunningJob:
        """Return the job after `line`. Raises KeyError or TypeError for a line that lacks fields of its event."""
        if "event" not in line:
            return self.changed(result=dict(line))
        return _HANDLERS.get(line["event"], _download)(self, line)

    def ended(self, state: JobState, now_s: float) -> Job:
        """Return the ended job."""
        rates: dict[str, Any] = {"bytes_per_s": None, "remaining_s": None}
        fraction = 1.0 if state == "done" else self.job.fraction
        error = self.job.error if state == "failed" else None
        return replace(self.job, state=state, ended_s=now_s, fraction=fraction, error=error, **rates)

    def failed(self, error: ErrorInfo) -> RunningJob:
        return self.changed(error=error)

    def died(self, status: int, last_line: str) -> RunningJob:
        """Return the job failed because its process ended with `status`, unless the verb reported an error itself."""
        if self.job.error:
            return self
        cause = f"The job's process ended with status {status}" + (f": {last_line}" if last_line else "")
        return self.failed(ErrorInfo.of(EngineError(f"{cause.rstrip('.')}.", "See its log, and try it again.")))

    def changed(self, **changes: Any) -> RunningJob:
        return replace(self, job=replace(self.job, **changes))

    def fetched(self, n_done: int, bytes_per_s: float) -> RunningJob:
        """Return the job with `n_done` bytes of the current file downloaded."""
        done = self.n_bytes_before + n_done
        total = max(self.n_bytes, self.n_bytes_before + self.n_file_bytes)
        return self.changed(
            n_done_bytes=done,
            n_bytes=total,
            fraction=_fraction(done, total),
            bytes_per_s=bytes_per_s or None,
            remaining_s=(total - done) / bytes_per_s if bytes_per_s else None,
        )


def _step(running: RunningJob, line: Line) -> RunningJob:
    n_done, n_total = line["n_done"], line["n_total"]
    moved = {"message": line["title"], "fraction": _fraction(n_done, n_total), "remaining_s": line["remaining_s"]}
    if line["unit"] != "bytes":
        return running.changed(**_NO_PROGRESS | moved)
    return running.changed(n_done_bytes=n_done, n_bytes=n_total, bytes_per_s=line["per_s"] or None, **moved)


def _note(running: RunningJob, line: Line) -> RunningJob:
    return running.changed(message=line["text"])


def _failed(running: RunningJob, line: Line) -> RunningJob:
    return running.failed(ErrorInfo(**line["error"]))


def _result(running: RunningJob, line: Line) -> RunningJob:
    return running.changed(result={name: value for name, value in line.items() if name != "event"})


def _download(running: RunningJob, line: Line) -> RunningJob:
    event = download.decode_event(line)
    sentence = download.event_text(event) if event else ""
    match event:
        case download.Chosen():
            running = replace(running, n_bytes=event.n_bytes, n_bytes_before=0, n_file_bytes=0)
            return running.changed(message=sentence, n_bytes=event.n_bytes)
        case download.Fetching():
            before = running.n_bytes_before + running.n_file_bytes
            running = replace(running, n_bytes_before=before, n_file_bytes=event.n_bytes)
            return running.changed(message=event.name, digest=event.digest).fetched(event.n_done, 0.0)
        case download.Progress():
            return running.changed(message=event.name).fetched(event.n_done, event.bytes_per_s)
        case download.Discarded():  # the same file starts anew
            return replace(running, n_file_bytes=0).changed(message=sentence)
        case download.Done():
            result = {"path": event.path, "bytes": event.n_bytes, "is_new": event.is_new}
            return running.changed(result=result, n_done_bytes=event.n_bytes, n_bytes=event.n_bytes)
    return running.changed(message=sentence) if sentence else running


_HANDLERS: dict[str, Callable[[RunningJob, Line], RunningJob]] = {
    "step": _step,
    "note": _note,
    JobFailed.kind: _failed,
    "quantized": _result,
}


def _fraction(n_done: int, n_total: int | None) -> float | None:
    return min(1.0, n_done / n_total) if n_total else None
