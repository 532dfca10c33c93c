"""What runs say about a machine: rates that explain the speeds measured there, starting from those expected.

Owns the fit. Pure. Knows nothing of where runs are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from offload.speed import Rates, Work, decode_s

__all__ = ["Run", "calibrated"]

_PRIOR_WEIGHT = 0.03  # an expected rate weighs as much as a run that is known this well
_LEAST_SHARE = 0.05  # of an expected rate: no device is twenty times as fast as was said
_BEST_UNCERTAINTY = 0.05


@dataclass(frozen=True, slots=True)
class Run:
    """One measured decode: what a token made the devices do, and how many came in a second."""

    work: Work
    tokens_per_s: float


def calibrated(rates: Rates, runs: Sequence[Run]) -> Rates:
    """Return `rates` with the seconds per byte of each device and the fixed cost refitted to `runs`.

    Least squares of relative errors, in which each expected rate counts as a weak measurement: what no run
    touched stays as it was. Raises ValueError for a run of no speed.
    """
    if any(not run.tokens_per_s > 0 for run in runs):
        raise ValueError("a run has no speed")
    if not runs:
        return rates
    names = sorted(rates.seconds_per_byte)
    expected = np.array([*(rates.seconds_per_byte[name] for name in names), rates.fixed_s])
    rows = np.array([[*(run.work.read_bytes.get(name, 0.0) for name in names), 1.0] for run in runs])
    overhead_s = np.array([rates.overhead_s(run.work.n_layers, run.work.n_crossings) for run in runs]) - rates.fixed_s
    measured_s = np.array([1 / run.tokens_per_s for run in runs])
    # unknowns are factors on what was expected, equations are relative to what was measured
    equations = np.vstack([rows * expected / measured_s[:, None], _PRIOR_WEIGHT * np.eye(len(expected))])
    targets = np.concatenate([1 - overhead_s / measured_s, np.full(len(expected), _PRIOR_WEIGHT)])
    factors = np.maximum(np.linalg.lstsq(equations, targets, rcond=None)[0], _LEAST_SHARE)
    fitted = replace(
        rates,
        seconds_per_byte={name: float(rate) for name, rate in zip(names, factors * expected, strict=False)},
        fixed_s=float(factors[-1] * expected[-1]),
        known=rates.known | {name for run in runs for name, n_bytes in run.work.read_bytes.items() if n_bytes},
    )
    return replace(fitted, uncertainty=max(_BEST_UNCERTAINTY, _worst_error(fitted, runs)))


def _worst_error(rates: Rates, runs: Sequence[Run]) -> float:
    return max(abs(decode_s(run.work, rates) * run.tokens_per_s - 1) for run in runs)
