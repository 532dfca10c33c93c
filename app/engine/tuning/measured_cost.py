"""What was measured of a model on this machine: the setting that suits its work best, and what its steps cost.

Knows nothing of who asks.
"""

from __future__ import annotations

from pathlib import Path

from app.engine.cache.state_store import model_key
from app.engine.load.loading import tune_file
from app.engine.speculative.step_cost import StepCost
from app.engine.tuning.tune_results import SpeedMeasurement, fastest

__all__ = ["best_measurement", "measured_cost"]


def best_measurement(path: Path, cache_dir: Path) -> SpeedMeasurement | None:
    """Return the setting of the model at `path` that suits best what it is used for; None before it was tuned."""
    known, key = tune_file(cache_dir), model_key(path)
    measured = known.measured(key)
    return fastest(measured, known.work(key)) if measured else None


def measured_cost(path: Path, cache_dir: Path) -> StepCost | None:
    """Return what steps of the model at `path` cost, as answers showed since it was tuned; None before it was."""
    best = best_measurement(path, cache_dir)
    if best is None:
        return None
    return StepCost.through(tune_file(cache_dir).step_ratios(model_key(path)) or dict(best.step_ratios))
