"""What is asked of the process that measures how sensitive tensors are, and its answer, which is kept.

Owns the file in which answers are kept, one for each model, matrix and text. Knows nothing of what they are good for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from app.engine.model_task import TaskProgress, run_task
from quantizer.mix.sensitivity import Sensitivity

__all__ = ["SensitivityRequest", "cached_sensitivities", "measure_sensitivities"]


@dataclass(frozen=True, slots=True)
class SensitivityRequest:
    """`model` is a path that the gate has let through; it reads `text` in windows of `n_ctx` tokens.

    `imatrix` is the path of the matrix that its tensors are quantized with.
    """

    model: str
    imatrix: str
    text: str
    n_ctx: int
    n_threads: int


def measure_sensitivities(
    request: SensitivityRequest, watched: Callable[[Iterator[TaskProgress]], Iterator[TaskProgress]]
) -> dict[str, Sensitivity]:
    """Let a child measure and return tensor name -> sensitivity; `watched` is given the steps and hands them on.

    Leaving early ends the child. Raises the child's UserError.
    """
    found = run_task("app.engine.offline.sensitivity_process", request, TaskProgress, watched)
    return {entry["name"]: Sensitivity(**entry) for entry in found}


def cached_sensitivities(path: Path, measure: Callable[[], dict[str, Sensitivity]]) -> dict[str, Sensitivity]:
    """Return what the file at `path` holds; where it cannot be read, `measure` and keep it there."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return {entry["name"]: Sensitivity(**entry) for entry in entries}
    except (OSError, ValueError, TypeError, KeyError):
        known = measure()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps([asdict(item) for item in known.values()]), encoding="utf-8")
    partial.replace(path)
    return known
