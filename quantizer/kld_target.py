"""The mix that diverges as much as was asked for: proposed by expectation, measured, and corrected. Pure.

Owns the way to the target. Knows nothing of how a mix is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from quantizer.errors import UsageError
from quantizer.mix_search import Mix, MixSearch

__all__ = ["KLD_TOLERANCE", "MeasuredMix", "mix_for_kld"]

KLD_TOLERANCE = 0.1  # how far below the asked divergence a mix may end
_MAX_TRIALS = 8
_AIM = 1 - KLD_TOLERANCE / 2
_NOTHING = 1e-3  # of what is too much: where to look when the other end loses nothing at all


@dataclass(frozen=True, slots=True)
class MeasuredMix:
    """A mix, and the divergence that was measured of it."""

    mix: Mix
    kld: float


def mix_for_kld(search: MixSearch, target: float, measure: Callable[[Mix], float]) -> MeasuredMix:
    """Return the smallest mix that diverges by at most `target` nats a token, within the tolerance if there is one.

    Each proposal is `measure`d; what it shows of expectations corrects the next. Where mixes are few, the nearest one
    below is returned. Raises UsageError, with the range that can be had, for a target beyond it.
    """
    below: MeasuredMix | None = None
    above: MeasuredMix | None = None
    expected = target * _AIM
    for _ in range(_MAX_TRIALS):
        mix = search.within_loss(expected)
        if any(known and known.mix.types == mix.types for known in (below, above)):
            break
        trial = MeasuredMix(mix, measure(mix))
        if trial.kld > target:
            above = trial
        else:
            below = trial
            if trial.kld >= target * (1 - KLD_TOLERANCE):
                return trial
        expected = _next(trial, target, below, above)
    return _within_reach(search, target, below, above)


def _next(trial: MeasuredMix, target: float, below: MeasuredMix | None, above: MeasuredMix | None) -> float:
    """Return what to expect of the next mix, between those known, if the last trial is as wrong about it."""
    wrong = trial.mix.kld / trial.kld if trial.kld else 1.0
    expected = target * _AIM * wrong
    if below is None or above is None:
        return expected
    low, high = below.mix.kld, above.mix.kld
    return expected if low < expected < high else math.sqrt(max(low, high * _NOTHING) * high)


def _within_reach(
    search: MixSearch, target: float, below: MeasuredMix | None, above: MeasuredMix | None
) -> MeasuredMix:
    if below is None or below.mix.n_bytes >= search.best.n_bytes:
        least = f" The best mix that is no copy diverges by {above.kld:.2g}." if above else ""
        raise UsageError(f"No mix diverges by as little as {target:g}.{least}", "Give a larger --kld.")
    if below.mix.n_bytes <= search.smallest.n_bytes:
        raise UsageError(
            f"Even the smallest mix, of {below.mix.n_bytes:,} bytes, diverges by {below.kld:.2g} only.",
            "Give a smaller --kld.",
        )
    return below
