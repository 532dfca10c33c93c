"""Models, sizes, speeds and progress as short text.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.cli.output.format import format_bytes
from app.terminal import printable_line
from offload.format import format_speed

if TYPE_CHECKING:
    from app.protocol.job import Job
    from app.protocol.library import ModelFit, RemovalResult

__all__ = ["format_context", "format_fit", "format_progress", "format_rate", "format_removal", "format_size"]

_VERDICTS = {"fits": "fits", "tight": "tight", "partial": "partly", "wont_run": "won't run"}
_MINUTE_S, _HOUR_S = 60, 3600


def format_size(n_bytes: int) -> str:
    """Return decimal bytes such as 4.92 GB; empty if unknown."""
    return format_bytes(n_bytes) if n_bytes else ""


def format_fit(fit: ModelFit | None) -> str:
    """Return whether the model fits: fits, tight, partly, won't run."""
    return "" if fit is None else _VERDICTS[fit.verdict]


def format_rate(fit: ModelFit | None) -> str:
    """Return the predicted speed, such as 32 tok/s."""
    return "" if fit is None or fit.decode_tps is None else f"{format_speed(fit.decode_tps)} tok/s"


def format_context(n_tokens: int) -> str:
    """Return a context size such as 128k, 40k or 512."""
    return "" if not n_tokens else str(n_tokens) if n_tokens < 1024 else f"{round(n_tokens / 1024)}k"


def format_progress(job: Job) -> str:
    """Return a job's progress, such as 43 %, 12.3 MB/s, 2 min left."""
    if job.state == "queued":
        return "queued"
    if job.has_ended:
        return f"{job.state}: {job.error.cause}" if job.error else job.state
    parts = (
        "" if job.fraction is None else f"{job.fraction:.0%}",
        f"{format_bytes(round(job.bytes_per_s))}/s" if job.bytes_per_s else "",
        "" if job.remaining_s is None else f"{_duration(job.remaining_s)} left",
    )
    return ", ".join(filter(None, parts)) or "in progress"


def format_removal(removal: RemovalResult) -> str:
    """Return which files are deleted with a model and how much space that frees; the files last, since they may be
    many."""
    frees = (
        f"This frees {format_size(removal.n_bytes_freed)}."
        if removal.n_bytes_freed
        else "This frees nothing: other files share its data."
    )
    files = "\n".join(f"  {printable_line(path)}" for path in removal.paths)
    return f"{printable_line(removal.id)} and its files are deleted. {frees}\n{files}"


def _duration(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / _MINUTE_S)} min" if seconds < _HOUR_S else f"{seconds / _HOUR_S:.1f} h"
