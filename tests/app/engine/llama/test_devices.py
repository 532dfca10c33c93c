"""The products are ggml's own, on the processor, which ggml lists as a device too."""

from __future__ import annotations

import itertools
from ctypes import c_int, c_void_p

import pytest

from app.engine.llama import devices
from app.engine.llama.devices import measure_speed
from app.engine.llama.native import ggml_function

CPU_KIND = 0  # of ggml_backend_dev_type@0.3.36
MATRIX_BYTES = 4096 * 4096 // 256 * 144  # Q4_K


@pytest.fixture
def processor() -> int:
    address: int = ggml_function("ggml_backend_dev_by_type", c_void_p, c_int)(CPU_KIND)
    return address


@pytest.mark.slow
def test_a_device_is_measured_by_the_bytes_and_operations_of_its_products(
    processor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_WEIGHT_BYTES", 40 << 20)
    ticks = itertools.count(step=0.5)
    speed = measure_speed(processor, 1 << 30, lambda: next(ticks))  # each pass takes half a second
    assert speed is not None
    assert speed.bytes_per_s == 4 * MATRIX_BYTES / 0.5
    assert speed.operations_per_s == 2 * 4096 * 4096 * 512 / 0.5


def test_a_device_with_little_memory_is_not_measured(processor: int) -> None:
    assert measure_speed(processor, 100 << 20) is None


def test_a_device_that_has_not_the_memory_that_it_reports_is_not_measured(
    processor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_WEIGHT_BYTES", 1 << 50)
    monkeypatch.setattr(devices, "_N_ROWS", 1 << 39)
    assert measure_speed(processor, 1 << 62) is None


@pytest.mark.slow
def test_weights_are_f16_where_a_device_has_no_product_for_others(
    processor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, True])
    monkeypatch.setattr(devices._Products, "are_supported", lambda _self, _device: next(answers))
    monkeypatch.setattr(devices, "_WEIGHT_BYTES", 40 << 20)
    ticks = itertools.count(step=1.0)
    speed = measure_speed(processor, 1 << 30, lambda: next(ticks))
    assert speed is not None
    assert speed.bytes_per_s == 2 * 4096 * 4096, "one matrix of F16 in a second"
