from __future__ import annotations

from dataclasses import replace

import pytest

from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from offload.speed.cost_model import Rates, Work, decode_s, expected_rates, prefill_s
from offload.speed.rate_fitting import MeasuredSpeed, Run, estimate_speed, fit_rates

GB = 10**9
MACHINE = Machine(
    Device(name="CPU", kind=DeviceKind.CPU, total_bytes=32 * GB, free_bytes=24 * GB, bytes_per_s=50e9),
    (Device(name="GPU0", kind=DeviceKind.GPU, total_bytes=8 * GB, free_bytes=8 * GB, bytes_per_s=500e9),),
)
# ollama#14258: tok/s by layers on the GPU, of 33. The file's size is not told; only the ratio of speeds matters here.
CLIFF = {33: 105.8, 24: 31.9, 4: 12.1}
LAYER_BYTES = 4.8 * GB / 33


def run(n_gpu: int) -> Run:
    """One of the three measurements."""
    reading = {"GPU0": n_gpu * LAYER_BYTES, "CPU": (33 - n_gpu) * LAYER_BYTES}
    return Run(Work(read_bytes=reading, n_layers=33, n_crossings=2 if n_gpu < 33 else 0), CLIFF[n_gpu])


@pytest.mark.parametrize(("fitted", "left_out"), [((33, 24), 4), ((33, 4), 24)])
def test_two_points_of_the_cliff_predict_the_third_within_5_percent(fitted: tuple[int, ...], left_out: int) -> None:
    rates = fit_rates(expected_rates(MACHINE), [run(n) for n in fitted])
    assert 1 / decode_s(run(left_out).work, rates) == pytest.approx(CLIFF[left_out], rel=0.05)


def test_without_the_point_on_one_device_the_third_is_known_less_well() -> None:
    """All on the GPU is beyond both points then: 1 % of error at 24 layers is 5 % there.

    The points agree with no two costs of a layer better than that: they say 121 tok/s where 106 were measured.
    """
    rates = fit_rates(expected_rates(MACHINE), [run(24), run(4)])
    assert 1 / decode_s(run(33).work, rates) == pytest.approx(CLIFF[33], rel=0.15)


def test_a_fit_explains_the_runs_it_was_made_of() -> None:
    rates = fit_rates(expected_rates(MACHINE), [run(33), run(24)])
    for n_gpu in (33, 24):
        assert 1 / decode_s(run(n_gpu).work, rates) == pytest.approx(CLIFF[n_gpu], rel=0.02)
    assert rates.uncertainty < expected_rates(MACHINE).uncertainty


def test_attention_and_weights_are_separated_by_runs_at_two_depths() -> None:
    before = expected_rates(MACHINE)
    slow = replace(before, attention_seconds_per_byte=4 * before.attention_seconds_per_byte)
    works = [Work(read_bytes={"CPU": 1.0 * GB}, attention_bytes=depth * 1e5, n_layers=16) for depth in (256, 2048)]
    after = fit_rates(before, [Run(work, 1 / decode_s(work, slow)) for work in works])
    assert after.seconds_per_byte["CPU"] == pytest.approx(before.seconds_per_byte["CPU"], rel=0.05)
    assert after.attention_seconds_per_byte == pytest.approx(slow.attention_seconds_per_byte, rel=0.1)


def test_few_runs_do_not_make_a_prediction_sure() -> None:
    before = expected_rates(MACHINE)
    few, many = fit_rates(before, [run(33)]), fit_rates(before, [run(33)] * 60)
    assert 0.2 < few.uncertainty < before.uncertainty
    assert many.uncertainty == 0.05


def prompt(type_name: str) -> Work:
    """A token of a prompt to a billion weights of one type, on the processor."""
    kinds = {type_name: 2e9, "attention": 1e8, "elements": 1e8}
    return Work(read_bytes={"CPU": 1.0 * GB}, operations={"CPU": 2e9}, host_operations=kinds, n_layers=16)


@pytest.mark.parametrize("tps", [10.0, 100.0, 400.0])
def test_prompts_on_the_processor_say_how_fast_it_computes(tps: float) -> None:
    before = expected_rates(Machine(MACHINE.host))
    after = fit_rates(before, [], [Run(prompt("Q4_0"), tps, 512)])
    assert 1 / prefill_s(prompt("Q4_0"), after, "CPU", 512) == pytest.approx(tps, rel=0.02)


def test_prompts_on_one_gpu_say_how_fast_it_computes() -> None:
    work = Work(read_bytes={"GPU0": 1.0 * GB}, operations={"GPU0": 2e9, "CPU": 0.0}, n_layers=16)
    after = fit_rates(expected_rates(MACHINE), [], [Run(work, 5000.0, 512)])
    assert 1 / prefill_s(work, after, "CPU", 512) == pytest.approx(5000.0, rel=0.01)


@pytest.mark.parametrize("slower", [5.8, 3.0, 0.7])
def test_what_one_type_of_weights_taught_says_nothing_of_another(slower: float) -> None:
    before = expected_rates(Machine(MACHINE.host))
    q4_0, q4_1 = (prefill_s(prompt(name), before, "CPU", 512) for name in ("Q4_0", "Q4_1"))
    after = fit_rates(before, [], [Run(prompt("Q4_1"), 1 / (slower * q4_1), 512)])
    assert prefill_s(prompt("Q4_1"), after, "CPU", 512) == pytest.approx(slower * q4_1, rel=0.03)
    assert prefill_s(prompt("Q4_0"), after, "CPU", 512) == pytest.approx(q4_0, rel=0.2)
    both = fit_rates(before, [], [Run(prompt("Q4_1"), 1 / (slower * q4_1), 512), Run(prompt("Q4_0"), 1 / q4_0, 512)])
    assert prefill_s(prompt("Q4_1"), both, "CPU", 512) == pytest.approx(slower * q4_1, rel=0.03)
    assert prefill_s(prompt("Q4_0"), both, "CPU", 512) == pytest.approx(q4_0, rel=0.03)


def test_a_record_without_kinds_of_operations_teaches_none_of_them() -> None:
    before = expected_rates(Machine(MACHINE.host))
    old = replace(prompt("Q4_1"), host_operations={})
    assert fit_rates(before, [], [Run(old, 3.0, 512)]) == before


@pytest.mark.parametrize("on_gpu", [2e9, 0.0])
def test_prompts_that_two_devices_may_have_computed_say_it_of_neither(on_gpu: float) -> None:
    before = expected_rates(MACHINE)
    work = replace(prompt("Q4_0"), operations={"CPU": 2e9, "GPU0": on_gpu})
    assert fit_rates(before, [], [Run(work, 100.0, 512)]) == before


def test_a_device_that_no_run_touched_keeps_its_rate() -> None:
    before = expected_rates(MACHINE)
    after = fit_rates(before, [run(33)])
    assert after.seconds_per_byte["CPU"] == pytest.approx(before.seconds_per_byte["CPU"])
    assert after.seconds_per_byte["GPU0"] != before.seconds_per_byte["GPU0"]


def test_a_device_is_known_once_it_ran() -> None:
    unknown = Rates(
        seconds_per_byte={"CPU": 1e-10, "GPU0": 1e-11},
        seconds_per_operation={},
        link_seconds_per_byte={},
        attention_seconds_per_byte=1e-10,
        known=frozenset(),
    )
    assert fit_rates(unknown, [run(33)]).known == {"GPU0"}


def test_without_runs_nothing_changes() -> None:
    assert fit_rates(expected_rates(MACHINE), []) == expected_rates(MACHINE)


def test_a_run_of_no_speed_is_refused() -> None:
    with pytest.raises(ValueError, match="no speed"):
        fit_rates(expected_rates(MACHINE), [Run(run(33).work, 0.0)])


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
    before = expected_rates(HOST)
    busy, quiet = (fit_rates(before, (), [Run(prompt("Q4_0"), 20.0, 512, weight=weight)]) for weight in (0.05, 1.0))
    expected_s, busy_s, quiet_s = (prefill_s(prompt("Q4_0"), rates, HOST_NAME, 512) for rates in (before, busy, quiet))
    assert expected_s < busy_s < 1.6 * expected_s < quiet_s
    assert quiet_s == pytest.approx(1 / 20.0, rel=0.02)
