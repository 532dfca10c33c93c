"""Which of the jobs that wait may start. Pure.

Owns how many share what; a job keeps its place: one that needs what an earlier one waits for waits behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from app.service.jobs.arguments import Slot

__all__ = ["LIMITS", "startable"]

# Two downloads share a line well; two conversions or measurements take each other's time, and spoil the figures.
LIMITS: Mapping[Slot, int] = {"network": 2, "machine": 1}


def startable(
    waiting: Iterable[tuple[str, frozenset[Slot]]],
    running: Iterable[frozenset[Slot]],
    limits: Mapping[Slot, int] = LIMITS,
) -> list[str]:
    """Return which of the `waiting`, in order, each with what it takes to itself, start beside the `running` ones."""
    taken = Counter(slot for slots in running for slot in slots)
    found: list[str] = []
    for job_id, slots in waiting:
        if all(taken[slot] < limits[slot] for slot in slots):
            found.append(job_id)
        taken.update(slots)  # of one that waits too: what comes later must not overtake it
    return found
