"""Which measured speeds of a model count, and how much, by the load of the machine while they were measured. Pure.

Load only slows: what was measured on a busy machine is a lower bound of its speed, and one quiet measurement is worth
more than any number of them. Independent of where measurements are stored, and of what is fitted to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from offload.devices.cpu_load import is_quiet

_N_QUIET = 5  # the newest, whose median counts
_N_OTHERS = 9  # the newest, of which the second fastest counts: the fastest may be a fault of a clock
# Quiet ones weigh 1. The fit knows an expected rate as well as a measurement of 0.03, so that a busy machine, however
# slow, moves it little; of older measurements the load is unknown.
_BUSY_WEIGHT, _UNKNOWN_WEIGHT = 0.05, 0.1


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """Tokens a second, and the share of the processors that others took meanwhile; None where it is unknown."""

    tokens_per_s: float
    others_share: float | None = None


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """Tokens a second, how much they weigh beside others, and the share by which what they are taken from differs."""

    tokens_per_s: float
    weight: float
    spread: float


def estimate_speed(measured: Sequence[MeasuredSpeed]) -> SpeedEstimate:
    """Return the speed of what was `measured` once or more, the newest last: of quiet measurements if there is one."""
    if quiet := [each.tokens_per_s for each in measured if is_quiet(each.others_share)][-_N_QUIET:]:
        return SpeedEstimate(median(quiet), 1.0, _spread(quiet))
    newest = measured[-_N_OTHERS:]
    fastest = sorted(newest, key=lambda each: each.tokens_per_s)[-2 if len(newest) > 2 else -1]
    weight = _UNKNOWN_WEIGHT if fastest.others_share is None else _BUSY_WEIGHT
    return SpeedEstimate(fastest.tokens_per_s, weight, _spread([each.tokens_per_s for each in newest]))


def _spread(speeds: Sequence[float]) -> float:
    """Return half the distance of the slowest and the fastest, as a share of the median."""
    return (max(speeds) - min(speeds)) / (2 * median(speeds))
