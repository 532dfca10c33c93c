"""The rates of a machine fitted to measured runs, starting from the expected ones; and which measured speeds count.
Pure.

Load only slows: what was measured on a busy machine is a lower bound of its speed, and one quiet measurement is worth
more than any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from offload.devices.host import is_quiet
from offload.speed.cost_model import Rates, Work, decode_s

_PRIOR_WEIGHT = 0.03  # an expected rate weighs as much as a run that is known this well
_KIND_PRIOR_WEIGHT = 0.05  # of a kind of weights, where the memory that they are read from is as unknown
_MEASURED_PRIOR_WEIGHT = 0.1  # of attention and the fixed cost, where attention was measured like the types
_LEAST_SHARE = 0.05  # of an expected rate: no device is twenty times as fast
_LEAST_FACTOR = 0.25  # of what is expected of a kind of operations: no processor computes it four times as fast
_BEST_UNCERTAINTY = 0.05
_BUSY_UNCERTAINTY = 0.6  # at most, where no run is certain: how busy it was says little about the machine


@dataclass(frozen=True, slots=True)
class Run:
    """One measured decode, or a prefill in micro-batches of `n_ubatch`: the work of a token, and tokens per second.
    `weight` is 1 for one of a quiet machine, and less where others may have slowed it; `spread` is the share by which
    it differs from time to time."""

    work: Work
    tokens_per_s: float
    n_ubatch: int = 1
    weight: float = 1.0
    spread: float = 0.0

    @property
    def is_certain(self) -> bool:
        return self.weight >= 1.0


def fit_rates(rates: Rates, runs: Sequence[Run], prompts: Sequence[Run] = ()) -> Rates:
    """Return `rates` fitted to the measured answers and, for operations, prompts. Seconds per byte of each device,
    those of attention and the fixed cost are least squares of relative errors, in which each expected rate counts as a
    weak measurement: what no run touched stays as it was. So are a processor's seconds for each kind of weights, in
    answers and in prompts: a type that no run had is expected as before. Where types were not measured, memory is as
    unknown as they are, and an answer teaches its bandwidth to all. Where no run is certain, neither is what is
    predicted. Raises ValueError for a run of no speed."""
    if not all(speed > 0 for speed in (run.tokens_per_s for run in (*runs, *prompts))):
        raise ValueError("a run has no speed")
    fitted = _fitted(rates, runs) if runs else rates
    return _with_operations(fitted, prompts)


def _fitted(rates: Rates, runs: Sequence[Run]) -> Rates:
    # What was measured product by product is fitted kind by kind; of other devices so are the bytes, and of a processor
    # without a table both: its kinds are what a run differs by from what all others taught of its memory.
    names = sorted(name for name in rates.seconds_per_byte if name not in rates.tables)
    host = next((name for name in rates.seconds_per_byte if name not in rates.link_seconds_per_byte), "")
    kinds = sorted({kind for run in runs for kind in run.work.weights.get(host, {})})
    expected = np.array(
        [*(rates.seconds_per_byte[name] for name in names), rates.attention_seconds_per_byte, rates.fixed_s]
    )
    of_kinds = [rates.weights_s(host, run.work.weights.get(host, {})) for run in runs]
    rows = np.array(
        [
            [
                *(run.work.read_bytes.get(name, 0.0) * rates.seconds_per_byte[name] for name in names),
                rates.attention_s(host, run.work),
                rates.fixed_s,
                *(seconds.get(kind, 0.0) for kind in kinds),
            ]
            for run, seconds in zip(runs, of_kinds, strict=True)
        ]
    )
    n_others = len(expected)
    is_measured = host in rates.tables
    kind_prior = _PRIOR_WEIGHT if is_measured else _KIND_PRIOR_WEIGHT
    step_prior = _MEASURED_PRIOR_WEIGHT if is_measured else _PRIOR_WEIGHT
    priors = np.array([*[_PRIOR_WEIGHT] * len(names), step_prior, step_prior, *[kind_prior] * len(kinds)])
    # A kind beside the memory that it is read from is a difference: nothing is expected of it.
    wanted = np.array([*[1.0] * n_others, *[float(is_measured)] * len(kinds)])
    settled = replace(
        rates,
        seconds_per_byte={name: 0.0 if name in names else value for name, value in rates.seconds_per_byte.items()},
        attention_seconds_per_byte=0.0,
        attention_factor=0.0,
        fixed_s=0.0,
        weight_factors=dict.fromkeys(kinds, 0.0 if is_measured else 1.0),
    )
    overhead_s = np.array([decode_s(run.work, settled) for run in runs])
    measured_s = np.array([1 / run.tokens_per_s for run in runs])
    weights = np.array([run.weight for run in runs])
    # unknowns are factors on what was expected, equations are relative to what was measured
    equations = np.vstack([weights[:, None] * rows / measured_s[:, None], np.diag(priors)])
    targets = np.concatenate([weights * (1 - overhead_s / measured_s), priors * wanted])
    solution = np.linalg.lstsq(equations, targets, rcond=None)[0]
    found = np.maximum(solution[:n_others], _LEAST_SHARE) * expected
    of_kind = solution[n_others:]
    if not is_measured and host in names:  # a difference in what was expected, of which memory takes so many times
        memory_factor = found[names.index(host)] / expected[names.index(host)]
        of_kind = 1 + of_kind / memory_factor
    fitted = replace(
        rates,
        seconds_per_byte={**rates.seconds_per_byte, **dict(zip(names, found.tolist(), strict=False))},
        attention_seconds_per_byte=float(found[-2]),
        attention_factor=rates.attention_factor * float(found[-2] / expected[-2]),
        fixed_s=float(found[-1]),
        weight_factors={kind: max(_LEAST_SHARE, float(factor)) for kind, factor in zip(kinds, of_kind, strict=True)},
        known=rates.known | {name for run in runs for name, n_bytes in run.work.read_bytes.items() if n_bytes},
    )
    return replace(fitted, uncertainty=_uncertainty(fitted, runs))


def _uncertainty(fitted: Rates, runs: Sequence[Run]) -> float:
    """Return the worst error or spread over the certain runs, but at least that of few runs: they explain themselves.
    Without a certain one it is not less than before, and more where they contradict what was expected."""
    certain = [run for run in runs if run.is_certain]
    if not certain:
        worst = max(abs(decode_s(run.work, fitted) * run.tokens_per_s - 1) for run in runs)
        return max(fitted.uncertainty, min(_BUSY_UNCERTAINTY, worst))
    worst = max(max(abs(decode_s(run.work, fitted) * run.tokens_per_s - 1), run.spread) for run in certain)
    return max(_BEST_UNCERTAINTY, worst, fitted.uncertainty / math.sqrt(1 + len(certain)))


def _with_operations(rates: Rates, prompts: Sequence[Run]) -> Rates:
    """Return `rates` with the seconds per operation of each GPU that computed whole prompts alone, and the factors of
    the kinds that the processor computed where there is no GPU: else its share may have gone there. Prompts of a busy
    machine count where there are no others, as weakly as answers do."""
    gpus = rates.link_seconds_per_byte
    measured: dict[str, list[tuple[float, float]]] = {}
    for prompt in prompts:
        busy = [name for name, operations in prompt.work.operations.items() if operations]
        name = busy[0] if len(busy) == 1 and busy[0] in gpus else ""  # where others compute too, nothing follows
        overhead_s = rates.overhead_s(prompt.work.n_layers) / prompt.n_ubatch + rates.prompt_token_s
        computing_s = 1 / prompt.tokens_per_s - overhead_s
        if name and computing_s > 0:
            measured.setdefault(name, []).append((prompt.weight, computing_s / prompt.work.operations[name]))
    found = {name: _pulled(rates.seconds_per_operation[name], seconds) for name, seconds in measured.items()}
    factors = {} if gpus else _operation_factors(rates, prompts)
    return replace(
        rates,
        seconds_per_operation={**rates.seconds_per_operation, **found},
        operation_factors={**rates.operation_factors, **factors},
    )


def _operation_factors(rates: Rates, prompts: Sequence[Run]) -> dict[str, float]:
    """Return how many times the expected seconds each kind of operations took the processor in `prompts`."""
    fitted = [prompt for prompt in prompts if prompt.work.host_operations and len(prompt.work.operations) == 1]
    kinds = sorted({kind for prompt in fitted for kind in prompt.work.host_operations})
    if not kinds:
        return {}
    (host,) = fitted[0].work.operations
    rows, targets = [], []
    for prompt in fitted:
        by_kind = rates.operations_s(host, prompt.work, prompt.n_ubatch)
        expected_s = [by_kind.get(kind, 0.0) for kind in kinds]
        overhead_s = rates.overhead_s(prompt.work.n_layers) / prompt.n_ubatch + rates.prompt_token_s
        computing_s = 1 / prompt.tokens_per_s - overhead_s
        # An error is relative to what was expected, so that a type that is many times slower is believed; of a busy
        # machine to what was measured: it may be the load that is many times slower.
        scale = prompt.weight / (sum(expected_s) if prompt.is_certain else 1 / prompt.tokens_per_s)
        rows.append([scale * seconds for seconds in expected_s])
        targets.append(scale * max(computing_s, 0.0))
    equations = np.vstack([np.array(rows), _PRIOR_WEIGHT * np.eye(len(kinds))])
    wanted = np.concatenate([np.array(targets), np.full(len(kinds), _PRIOR_WEIGHT)])
    found = np.maximum(np.linalg.lstsq(equations, wanted, rcond=None)[0], _LEAST_FACTOR)
    return {kind: float(factor) for kind, factor in zip(kinds, found, strict=True)}


def _pulled(expected: float, measured: Sequence[tuple[float, float]]) -> float:
    """Return the median of the heaviest of `measured`, pairs of weight and value, drawn to what was expected."""
    weight = max(weight for weight, _ in measured)
    value = median(value for each, value in measured if each == weight)
    if weight >= 1.0:
        return value
    ratio = expected / value
    return expected * (weight**2 * ratio + _PRIOR_WEIGHT**2) / (weight**2 * ratio**2 + _PRIOR_WEIGHT**2)


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
    return (max(speeds) - min(speeds)) / (2 * median(speeds))
