from __future__ import annotations

from dataclasses import replace

import pytest

from offload.devices.machine import Device, DeviceKind, Machine
from offload.speed.cost_model import Rates, Work, decode_s, expected_rates, prefill_s
from offload.speed.rate_fitting import Run, fit_rates

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


def test_prompts_on_one_device_say_how_fast_it_computes() -> None:
    before = expected_rates(Machine(MACHINE.host))
    work = Work(read_bytes={"CPU": 1.0 * GB}, operations={"CPU": 2e9}, n_layers=16)
    after = fit_rates(before, [], [Run(work, 100.0, 512)])
    assert 1 / prefill_s(work, after, "CPU", 512) == pytest.approx(100.0, rel=0.01)


@pytest.mark.parametrize("on_gpu", [2e9, 0.0])
def test_prompts_that_two_devices_may_have_computed_say_it_of_neither(on_gpu: float) -> None:
    before = expected_rates(MACHINE)
    work = Work(read_bytes={}, operations={"CPU": 2e9, "GPU0": on_gpu})
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
