"""A job as printable text: table cells, details, and the notification of its end."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from app.cli.output.format import format_bytes
from app.common.terminal import printable, printable_line
from app.library.local.naming import id_of

if TYPE_CHECKING:
    from app.protocol.job import Job


_BAR_CELLS = 10
_LONG_S = 30.0  # by then the user has turned to something else
_STATES = {"queued": "waiting", "interrupted": "interrupted", "running": "running", "done": "done", "failed": "FAILED"}


def cells(job: Job) -> tuple[str, str, str, str, str]:
    """Return a short title, state, progress, speed and remaining time."""
    is_running = job.state == "running"
    return (
        printable_line(_short_title(job)),
        _STATES.get(job.state, job.state),
        _progress(job),
        f"{format_bytes(int(job.bytes_per_s))}/s" if is_running and job.bytes_per_s else "",
        _duration(job.remaining_s) if is_running and job.remaining_s is not None else "",
    )


def detail(job: Job, n_hidden: int = 0) -> str:
    """Return the title, the current step, the bytes, and the error; also the last `n_hidden` cells."""
    title = printable_line(job.title)
    if job.error is not None:
        return printable(f"{title} · {job.error.cause} {job.error.remedy}".strip())
    hidden = cells(job)[-n_hidden:] if n_hidden else ()
    parts = [title, printable_line(job.message), _bytes(job), *hidden]
    if job.state == "interrupted":
        parts.append("The service stopped first: R resumes the job.")
    return " · ".join(part for part in parts if part)


def ending(job: Job) -> str:
    """Return the notification of an ended job."""
    how = {"done": "is finished", "failed": "failed", "cancelled": "is cancelled"}.get(job.state, f"is {job.state}")
    cause = f": {printable_line(job.error.cause)}" if job.error else "."
    return f"{printable_line(job.title)} {how}{cause}"


def is_long(job: Job) -> bool:
    """Return whether the job ran so long that the user turned to something else."""
    return job.started_s is not None and job.ended_s is not None and job.ended_s - job.started_s >= _LONG_S


def _short_title(job: Job) -> str:
    """Return what fits a narrow column: `model → type` for a quantization, else the title without the publisher."""
    source, repo = (str(job.arguments.get(name) or "") for name in ("source", "reference"))
    head, _, target = job.title.rpartition(" to ")
    if job.kind == "quantize" and head and source:
        name = PurePath(source).name
        return f"{id_of(name) if name.endswith('.gguf') else name} → {target}"
    return job.title.replace(repo, PurePath(repo).name, 1) if job.kind == "pull" and repo else job.title


def _progress(job: Job) -> str:
    if job.fraction is None:
        return "…" if job.state == "running" else ""
    share = min(max(job.fraction, 0.0), 1.0)
    n_full = int(share * _BAR_CELLS)
    return f"{'█' * n_full}{'░' * (_BAR_CELLS - n_full)} {int(share * 100):>3} %"  # 100 % only when complete


def _bytes(job: Job) -> str:
    if job.n_done_bytes is None:
        return ""
    done = format_bytes(job.n_done_bytes)
    return f"{done} of {format_bytes(job.n_bytes)}" if job.n_bytes else done


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
