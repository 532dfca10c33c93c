"""The rates of this machine: those to expect of it, refitted to how fast models really ran here.

The one place that everything asks which predicts a speed. Knows nothing of models.
"""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

from app.engine.run_history import HISTORY_NAME, RunHistory, measured_runs
from offload.calibration import calibrated
from offload.cpu import cpu_name, default_threads
from offload.machine import Machine
from offload.speed import Rates, expected_rates

__all__ = ["machine_key", "rates_here", "run_history"]


def machine_key(machine: Machine) -> str:
    """Return a name for what decides how fast runs are here: build of llama.cpp, processor, GPUs."""
    parts = (
        metadata.version("llama-cpp-python"),
        cpu_name(),
        *(f"{gpu.name} {gpu.description}" for gpu in machine.gpus),
    )
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def run_history(cache_dir: Path) -> RunHistory:
    """Return the runs that were kept on this machine."""
    return RunHistory(cache_dir / HISTORY_NAME)


def rates_here(machine: Machine, cache_dir: Path, n_threads: int = 0) -> Rates:
    """Return the rates of `machine`, which is this one, for `n_threads` (0: the physical cores)."""
    records = run_history(cache_dir).records(machine_key(machine))
    return calibrated(expected_rates(machine), *measured_runs(records, n_threads or default_threads()))
