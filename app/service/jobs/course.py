"""How a job goes on: from what its verb says to how the job stands. Pure.

Owns which line changes what: those of `app.cli.job_events`, and the public ones of `pull --json`. A line that it does
not know changes nothing, and one without an event is what the verb had to say in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from app.job import Job, JobFailure, JobState
from app.library.download import events as download
from quantizer.errors import EngineError
from quantizer.events import Failed

__all__ = ["Course", "Line"]

Line: TypeAlias = Mapping[str, Any]

_NOTHING_MOVES: dict[str, Any] = {
    "fraction": None,
    "n_done_bytes": None,
    "n_bytes": None,
    "bytes_per_s": None,
    "remaining_s": None,
}


@dataclass(frozen=True, slots=True)
class Course:
    """A job while it runs. Of a download of several files `n_bytes` are all, `n_bytes_before` those of whole files."""

    job: Job
    n_bytes: int = 0
    n_bytes_before: int = 0
    n_file_bytes: int = 0

    @classmethod
    def begun(cls, job: Job, now_s: float) -> Course:
        """Start `job`, for the first time or again."""
        fresh: dict[str, Any] = {"message": "", "digest": "", "error": None, "result": None, "ended_s": None}
        return cls(replace(job, state="running", started_s=now_s, **fresh, **_NOTHING_MOVES))

    def after(self, line: Line) -> Course:
        """Return what `line` makes of it. Raises KeyError or TypeError for a line that lacks what its event has."""
        if "event" not in line:
            return self.changed(result=dict(line))
        return _HANDLERS.get(line["event"], _downloaded)(self, line)

    def ended(self, state: JobState, now_s: float) -> Job:
        """Return the job in its end."""
        rates: dict[str, Any] = {"bytes_per_s": None, "remaining_s": None}
        fraction = 1.0 if state == "done" else self.job.fraction
        error = self.job.error if state == "failed" else None
        return replace(self.job, state=state, ended_s=now_s, fraction=fraction, error=error, **rates)

    def failed(self, error: JobFailure) -> Course:
        return self.changed(error=error)

    def died(self, status: int, last_words: str) -> Course:
        """Note that the verb ended with `status` and, unless it has said it itself, why."""
        if self.job.error:
            return self
        words = f": {last_words}" if last_words else ""
        cause = f"The job's process ended with status {status}{words}"
        return self.failed(JobFailure.of(EngineError(f"{cause.rstrip('.')}.", "See its log, and try it again.")))

    def changed(self, **changes: Any) -> Course:
        """Return the course of the job with `changes`."""
        return replace(self, job=replace(self.job, **changes))

    def fetched(self, n_done: int, bytes_per_s: float) -> Course:
        """Note that `n_done` bytes of the file stand that is fetched now."""
        done = self.n_bytes_before + n_done
        total = max(self.n_bytes, self.n_bytes_before + self.n_file_bytes)
        return self.changed(
            n_done_bytes=done,
            n_bytes=total,
            fraction=_fraction(done, total),
            bytes_per_s=bytes_per_s or None,
            remaining_s=(total - done) / bytes_per_s if bytes_per_s else None,
        )


def _stepped(course: Course, line: Line) -> Course:
    n_done, n_total = line["n_done"], line["n_total"]
    moved = {"message": line["title"], "fraction": _fraction(n_done, n_total), "remaining_s": line["remaining_s"]}
    if line["unit"] != "bytes":
        return course.changed(**_NOTHING_MOVES | moved)
    return course.changed(n_done_bytes=n_done, n_bytes=n_total, bytes_per_s=line["per_s"] or None, **moved)


def _noted(course: Course, line: Line) -> Course:
    return course.changed(message=line["text"])


def _failed(course: Course, line: Line) -> Course:
    return course.failed(JobFailure(line["error_kind"], line["cause"], line["remedy"]))


def _quantized(course: Course, line: Line) -> Course:
    return course.changed(result={name: value for name, value in line.items() if name != "event"})


def _downloaded(course: Course, line: Line) -> Course:
    event = download.decode_event(line)
    sentence = download.sentence_of(event) if event else ""
    match event:
        case download.Chosen():
            course = replace(course, n_bytes=event.n_bytes, n_bytes_before=0, n_file_bytes=0)
            return course.changed(message=sentence, n_bytes=event.n_bytes)
        case download.Fetching():
            before = course.n_bytes_before + course.n_file_bytes
            course = replace(course, n_bytes_before=before, n_file_bytes=event.n_bytes)
            return course.changed(message=event.name, digest=event.digest).fetched(event.n_done, 0.0)
        case download.Progress():
            return course.changed(message=event.name).fetched(event.n_done, event.bytes_per_s)
        case download.Discarded():  # the same file is begun again
            return replace(course, n_file_bytes=0).changed(message=sentence)
        case download.Done():
            result = {"path": event.path, "bytes": event.n_bytes, "is_new": event.is_new}
            return course.changed(result=result, n_done_bytes=event.n_bytes, n_bytes=event.n_bytes)
    return course.changed(message=sentence) if sentence else course


_HANDLERS: dict[str, Callable[[Course, Line], Course]] = {
    "step": _stepped,
    "note": _noted,
    Failed.kind: _failed,
    "quantized": _quantized,
}


def _fraction(n_done: int, n_total: int | None) -> float | None:
    return min(1.0, n_done / n_total) if n_total else None
