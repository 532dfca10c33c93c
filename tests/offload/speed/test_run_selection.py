"""Series of one model's speeds as they were recorded on two cores: alone, beside a build, and on a shared host."""

from __future__ import annotations

import pytest

from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from offload.speed.cost_model import Rates, Work, decode_s, expected_rates
from offload.speed.rate_fitting import Run, fit_rates
from offload.speed.run_selection import MeasuredSpeed, estimate_speed

Series = tuple[tuple[float, float | None], ...]
QUIET: Series = ((578.0, 0.04), (561.0, 0.06), (583.0, 0.03), (570.0, 0.12), (574.0, 0.05))
BUSY: Series = ((57.0, 0.71), (83.0, 0.62), (61.0, 0.77), (146.0, 0.48), (70.0, 0.66))
STEAL: Series = ((301.0, 0.45), (266.0, 0.52), (290.0, 0.49))
OLD: Series = tuple((speed, None) for speed, _ in (*QUIET, *BUSY))  # before the load was recorded
GUIDE = Work(read_bytes={HOST_NAME: 4.4e6}, n_layers=12)
HOST = Machine(Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=0, free_bytes=0, bytes_per_s=22e9))


def measured(series: Series) -> list[MeasuredSpeed]:
    return [MeasuredSpeed(speed, share) for speed, share in series]


@pytest.mark.parametrize(
    ("series", "low", "high", "weight"),
    [
        (QUIET, 574.0, 574.0, 1.0),
        ((*BUSY, *QUIET), 574.0, 574.0, 1.0),
        ((*QUIET, *BUSY * 5), 574.0, 574.0, 1.0),  # the guide that fell from 578 to 57
        ((*BUSY, (578.0, 0.04)), 578.0, 578.0, 1.0),  # one quiet answer is enough
        (BUSY, 83.0, 146.0, 0.05),
        (STEAL, 290.0, 301.0, 0.05),
        (OLD, 500.0, 583.0, 0.1),
    ],
)
def test_a_quiet_measurement_outweighs_any_number_of_busy_ones(
    series: Series, low: float, high: float, weight: float
) -> None:
    found = estimate_speed(measured(series))
    assert low <= found.tokens_per_s <= high
    assert found.weight == weight


def predicted(*works: tuple[Work, Series]) -> tuple[Rates, list[float]]:
    """Return the rates fitted to the series of each work, and the speeds that they predict."""
    runs = []
    for work, series in works:
        found = estimate_speed(measured(series))
        runs.append(Run(work, found.tokens_per_s, weight=found.weight, spread=found.spread))
    rates = fit_rates(expected_rates(HOST), runs)
    return rates, [1 / decode_s(work, rates) for work, _ in works]


BIG = Work(read_bytes={HOST_NAME: 1.3e9}, n_layers=16)  # 1.24 billion parameters in Q8_0
BIG_BUSY: Series = ((0.9, 0.82), (1.3, 0.78), (1.8, 0.74))
BIG_QUIET: Series = ((6.1, 0.1), (5.4, 0.15), (6.6, 0.08))


@pytest.mark.parametrize("busy", [((BIG, BIG_BUSY),), ((BIG, BIG_BUSY), (GUIDE, BUSY))])
def test_a_machine_that_was_only_seen_busy_is_predicted_near_its_memory_and_said_to_be_uncertain(
    busy: tuple[tuple[Work, Series], ...],
) -> None:
    expected_tps = 1 / decode_s(BIG, expected_rates(HOST))
    rates, (tps, *_) = predicted(*busy)
    assert tps > 0.6 * expected_tps
    assert rates.uncertainty == 0.6


def test_one_quiet_answer_corrects_what_a_busy_machine_taught() -> None:
    rates, (tps,) = predicted((BIG, (*BIG_BUSY, *BIG_QUIET)))
    assert tps == pytest.approx(6.1, rel=0.03)
    assert rates.uncertainty < 0.3


def test_a_quiet_model_corrects_the_prediction_of_another_that_was_only_seen_busy() -> None:
    rates, (tps, _) = predicted((BIG, BIG_BUSY), (GUIDE, QUIET))
    assert tps > 5
    assert 1 / decode_s(GUIDE, rates) == pytest.approx(574, rel=0.05)


def test_a_busy_machine_that_is_faster_than_expected_is_believed() -> None:
    slow = Machine(Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=0, free_bytes=0, bytes_per_s=2e9))
    found = estimate_speed(measured(((6.0, 0.3), (5.5, 0.4))))
    rates = fit_rates(expected_rates(slow), [Run(BIG, found.tokens_per_s, weight=found.weight)])
    assert 1 / decode_s(BIG, rates) == pytest.approx(6.0, rel=0.15)


def test_the_spread_of_quiet_answers_is_the_least_uncertainty() -> None:
    steady, unsteady = (
        predicted((BIG, series))[0].uncertainty for series in (((6.0, 0.1),) * 9, ((4.0, 0.1), (6.0, 0.1), (9.0, 0.1)))
    )
    assert steady < unsteady
    assert unsteady > 0.4


def test_prompts_of_a_busy_machine_count_as_weakly() -> None:
    work = Work(read_bytes={HOST_NAME: 1.3e9}, operations={HOST_NAME: 2.5e9}, n_layers=16)
    before = expected_rates(HOST).seconds_per_operation[HOST_NAME]
    busy, quiet = (
        fit_rates(expected_rates(HOST), (), [Run(work, 20.0, 512, weight=weight)]).seconds_per_operation[HOST_NAME]
        for weight in (0.05, 1.0)
    )
    assert before < busy < 1.6 * before < quiet
