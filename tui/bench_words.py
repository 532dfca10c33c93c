"""Runs of `localllm bench` as lines, one alone or two side by side. Pure.

Owns which figures are shown. What they are is `app.bench`'s, and comes as the JSON object that the verb prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from app.client import Job

__all__ = ["bench_runs", "compared_lines", "run_line"]

_Figures: TypeAlias = Mapping[tuple[str, str, str], float]
_RATE = "tok/s"  # of all other units less is better
_STATES = {
    "queued": "waits",
    "running": "is measured now",
    "cancelled": "was stopped",
    "interrupted": "was interrupted",
}


def bench_runs(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Return the jobs that measure, the newest first."""
    return tuple(sorted((job for job in jobs if job.kind == "bench"), key=lambda job: -job.created_s))


def run_line(job: Job) -> str:
    """Say when a run was, of which model, and what came of it."""
    begun = f"{datetime.fromtimestamp(job.created_s):%Y-%m-%d %H:%M}  {job.arguments.get('model', '')}"
    if job.state == "failed" and job.error is not None:
        return f"{begun}: failed. {job.error.cause}"
    if job.state != "done" or job.result is None:
        return f"{begun}: {_STATES.get(job.state, job.state)}"
    figures = _figures(job.result)
    decode = next((f"answers {tps:.4g} tok/s" for (work, _, _), tps in figures.items() if work == "decode"), "")
    prefill = next((f"prompts {tps:.4g} tok/s" for (work, _, _), tps in figures.items() if work == "prefill"), "")
    roofline = next((f"{item['share']:.0%} of what memory allows" for item in job.result.get("rooflines", ())), "")
    return f"{begun}: {', '.join(filter(None, (decode, prefill, roofline))) or 'nothing could be measured'}"


def compared_lines(before: Job, after: Job) -> list[str]:
    """Return the figures that both runs have, and how many times better the later ones are."""
    old, new = _figures(before.result or {}), _figures(after.result or {})
    both = [key for key in old if key in new]
    if not both:
        return ["These two measured nothing in common."]
    width = max(len(f"{work} {case}") for work, case, _ in both)
    return [_compared(key, old[key], new[key], width) for key in both]


def _compared(key: tuple[str, str, str], old: float, new: float, width: int) -> str:
    work, case, unit = key
    gain = new / old if unit == _RATE else old / new
    return f"{f'{work} {case}':<{width}}  {old:>8.4g} → {new:>8.4g} {unit:<6} {gain:.2f} ×"


def _figures(result: Mapping[str, Any]) -> _Figures:
    """Return the medians of the first server that was measured, by work, case and unit."""
    for server in result.get("results", ())[:1]:
        return {(item["work"], item["case"], item["unit"]): item["median"] for item in server["measurements"]}
    return {}
