from __future__ import annotations

import platform
from types import SimpleNamespace
from typing import Any

import pytest

from offload.devices.gpus import driver_versions, nvidia_gpus


class _Error(Exception):
    pass


class Driver:
    """What pynvml offers, of one RTX 3060; `missing` are questions that it does not answer."""

    NVMLError = _Error
    NVML_CLOCK_MEM = 2

    def __init__(self, *missing: str, bus_id: str | bytes = "00000000:01:00.0") -> None:
        self.missing = missing
        self.bus_id = bus_id
        self.is_open = False

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlSystemGetDriverVersion": "580.95.05",
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=self.bus_id),
            "nvmlDeviceGetMaxClockInfo": 7501,
            "nvmlDeviceGetMemoryBusWidth": 192,
            "nvmlDeviceGetMaxPcieLinkGeneration": 4,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
        }

        def answer(*_arguments: object) -> Any:
            if name in self.missing:
                raise _Error(name)
            if name in ("nvmlInit", "nvmlShutdown"):
                self.is_open = name == "nvmlInit"
                return None
            assert self.is_open
            return answers[name]

        return answer


@pytest.mark.parametrize("bus_id", ["00000000:01:00.0", b"00000000:01:00.0"])
def test_a_card_has_the_speed_of_its_clock_and_bus_and_the_link_at_its_best(bus_id: str | bytes) -> None:
    driver = Driver(bus_id=bus_id)
    (card,) = nvidia_gpus(lambda: driver)
    assert card.address == "0000:01:00.0"
    assert card.bytes_per_s == pytest.approx(360e9, rel=0.001)
    assert card.link_bytes_per_s == pytest.approx(31.5e9, rel=0.001)
    assert not driver.is_open


def test_figures_that_the_driver_does_not_report_are_unknown() -> None:
    (card,) = nvidia_gpus(lambda: Driver("nvmlDeviceGetMemoryBusWidth", "nvmlDeviceGetMaxPcieLinkWidth"))
    assert card.bytes_per_s is None
    assert card.link_bytes_per_s is None


@pytest.mark.parametrize("question", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetPciInfo"])
def test_a_driver_that_does_not_respond_reports_no_card(question: str) -> None:
    assert nvidia_gpus(lambda: Driver(question)) == ()


def test_without_the_library_no_card_is_reported() -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("pynvml")

    assert nvidia_gpus(missing) == ()


def test_drivers_are_those_of_the_system_and_of_nvidia() -> None:
    system = driver_versions(lambda: Driver("nvmlInit"))
    assert platform.release() in system
    assert driver_versions(lambda: Driver()) == f"{system}, NVIDIA 580.95.05"
