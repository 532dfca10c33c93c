"""What steps of a model were measured to cost on this machine, by their tokens. Knows nothing of who asks."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from app.engine.loading import tune_file
from app.engine.step_cost import StepCost
from app.engine.store import fingerprint
from app.engine.tuning import choose

__all__ = ["measured_cost"]


def measured_cost(path: Path, cache_dir: Path) -> StepCost | None:
    """Return what steps of the model at `path` cost, as answers showed since it was tuned; None before it was."""
    known, key = tune_file(cache_dir), fingerprint(path, metadata.version("llama-cpp-python"))
    measured = known.measured(key)
    if not measured:
        return None
    return StepCost.through(known.step_ratios(key) or dict(choose(measured, known.work(key)).step_ratios))
