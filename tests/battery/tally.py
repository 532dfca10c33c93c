"""How a trial of many attempts ends: with one line that the battery reads, and the exit status."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import NoReturn

__all__ = ["Tally", "finish", "read_tally"]

_LINE = re.compile(r"^tried (\d+), failed (\d+), seed (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Tally:
    """Attempts, those that failed, and the seed that repeats them."""

    n_tried: int
    n_failed: int
    seed: int


def finish(n_tried: int, n_failed: int, seed: int = 0) -> NoReturn:
    """Print the tally and exit, with 1 if anything failed; what failed was printed before."""
    print(f"tried {n_tried}, failed {n_failed}, seed {seed}", flush=True)
    sys.exit(n_failed > 0)


def read_tally(output: str) -> Tally | None:
    """Return the last tally of `output`, None where a trial did not come to its end."""
    found = _LINE.findall(output)
    return Tally(*map(int, found[-1])) if found else None
