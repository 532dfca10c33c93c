from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.llama.devices import ggml_gpus
from app.engine.load import machine as machine_module
from app.engine.load.machine import (
    detect_machine,
    gpu_device,
    known_speeds,
    list_gpus,
    survey,
    unusable_gpus,
    with_host_bandwidth,
)
from offload.devices.bandwidth import ReadBandwidth
from offload.devices.gpus import ListedGpu, PciGpu
from offload.devices.machine import Device, DeviceKind, DeviceSpeed

GIB = 1 << 30
CARD = ListedGpu("CUDA0", "NVIDIA GeForce RTX 3060", False, 11 * GIB, 12 * GIB, "0000:01:00.0")


def test_a_gpu_has_the_speed_of_its_name_and_the_link_of_its_address() -> None:
    device = gpu_device(CARD, {"0000:01:00.0": 15.75e9})
    assert (device.name, device.kind) == ("CUDA0", DeviceKind.GPU)
    assert (device.bytes_per_s, device.link_bytes_per_s) == (360e9, 15.75e9)
    assert (device.free_bytes, device.total_bytes) == (11 * GIB, 12 * GIB)


def test_the_speed_of_a_gpu_that_the_table_lacks_is_that_of_its_driver() -> None:
    laptop = ListedGpu("CUDA0", "NVIDIA GeForce RTX 4070 Laptop GPU", False, GIB, GIB, "0000:01:00.0")
    assert gpu_device(laptop, {}, {"0000:01:00.0": 256e9}).bytes_per_s == 256e9
    assert gpu_device(CARD, {}, {"0000:01:00.0": 1e9}).bytes_per_s == 360e9


def test_a_gpu_of_apple_takes_from_the_memory_of_the_processor() -> None:
    metal = gpu_device(ListedGpu("MTL0", "Apple M2", False, 10 * GIB, 10 * GIB, ""), {})
    assert metal.kind is DeviceKind.INTEGRATED
    assert metal.total_bytes == 10 * GIB  # the working set that Metal recommends


def test_an_integrated_gpu_of_unknown_speed_reads_as_fast_as_the_processor() -> None:
    host = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=GIB, free_bytes=GIB, bytes_per_s=50e9)
    shared = gpu_device(ListedGpu("Vulkan0", "Some GPU", True, GIB, GIB, ""), {})
    assert with_host_bandwidth(shared, host).bytes_per_s == 50e9
    assert with_host_bandwidth(gpu_device(CARD, {}), host).bytes_per_s == 360e9
    card = gpu_device(ListedGpu("Vulkan1", "Some card", False, GIB, GIB, ""), {})
    assert with_host_bandwidth(card, host).bytes_per_s is None


def test_what_is_unknown_of_a_gpu_stays_unknown() -> None:
    device = gpu_device(ListedGpu("Vulkan0", "Some GPU", True, GIB, GIB, ""), {})
    assert device.kind is DeviceKind.INTEGRATED
    assert device.bytes_per_s is device.link_bytes_per_s is None


def test_a_gpu_of_another_machine_has_the_link_that_was_measured() -> None:
    listed = ListedGpu("RPC0", "10.0.0.2:50052", False, GIB, GIB, "", 110e6, 0.0005)
    device = gpu_device(listed, {})
    assert device.is_remote
    assert (device.link_latency_s, device.link_bytes_per_s) == (0.0005, 110e6)
    assert not gpu_device(CARD, {}).is_remote


QUIET, BUSY = ReadBandwidth(22e9, 2, 1 << 30, 6, 0.02), ReadBandwidth(9e9, 2, 1 << 30, 6, 0.8)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[ReadBandwidth]:
    """Return what measuring the memory finds next: nothing, which fails."""
    found: list[ReadBandwidth] = []
    monkeypatch.setattr(machine_module, "measure_read_bandwidth", lambda _n_threads: found.pop(0))
    monkeypatch.setattr(machine_module, "list_gpus", lambda _rpc, _cache_dir: [])
    return found


def test_how_fast_memory_is_read_is_measured_once_and_only_for_a_gpu(
    tmp_path: Path, measured: list[ReadBandwidth]
) -> None:
    assert detect_machine([], tmp_path).host.bytes_per_s is None
    measured.append(QUIET)
    for _ in range(2):
        machine = detect_machine([CARD], tmp_path)
        assert (machine.host.bytes_per_s, machine.gpus[0].name) == (22e9, "CUDA0")
    assert detect_machine([], tmp_path).host.bytes_per_s == 22e9


def test_the_memory_of_a_busy_machine_is_measured_again_once_it_is_quiet(
    tmp_path: Path, measured: list[ReadBandwidth]
) -> None:
    measured.append(BUSY)
    busy = survey((), tmp_path)
    assert (busy.machine.host.bytes_per_s, busy.is_certain) == (9e9, False)
    assert not survey((), tmp_path).is_certain, "not measured again for some minutes"
    assert detect_machine([CARD], tmp_path).host.bytes_per_s == 9e9, "nor at each load"
    measured.append(QUIET)
    quiet = survey((), tmp_path, "quiet")
    assert (quiet.machine.host.bytes_per_s, quiet.is_certain) == (22e9, True)
    assert detect_machine([CARD], tmp_path).host.bytes_per_s == 22e9
    measured.append(BUSY)
    again = survey((), tmp_path, "now")
    assert (again.machine.host.bytes_per_s, again.is_certain) == (22e9, True)


@pytest.mark.parametrize(
    ("later_s", "more_threads", "more_bytes", "is_measured"),
    [
        (0.0, 0, 0, False),
        (29 * 86_400.0, 0, 0, False),
        (31 * 86_400.0, 0, 0, True),
        (0.0, 1, 0, True),
        (0.0, 0, GIB, True),
    ],
    ids=["at once", "in a month", "later", "with more processors", "with more memory"],
)
def test_the_memory_of_a_quiet_machine_is_measured_again_only_where_it_may_be_another_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured: list[ReadBandwidth],
    later_s: float,
    more_threads: int,
    more_bytes: int,
    is_measured: bool,
) -> None:
    measured.append(QUIET)
    first = survey((), tmp_path)
    now_s, n_threads = time.time(), machine_module.default_threads()
    memory = replace(first.memory, total_bytes=first.memory.total_bytes + more_bytes)
    monkeypatch.setattr(machine_module.time, "time", lambda: now_s + later_s)
    monkeypatch.setattr(machine_module, "default_threads", lambda: n_threads + more_threads)
    monkeypatch.setattr(machine_module, "host_memory", lambda: memory)
    measured.append(BUSY)
    found = survey((), tmp_path)
    assert (found.machine.host.bytes_per_s, found.is_certain) == ((9e9, False) if is_measured else (22e9, True))


def test_the_speed_of_a_gpu_is_measured_once_for_each_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speed = DeviceSpeed(300e9, 20e12, others_share=0.01)
    machine = detect_machine([replace(CARD, speed=speed)], tmp_path)
    assert machine.gpus[0].speed == speed
    assert known_speeds(tmp_path) == {CARD.key: speed}
    monkeypatch.setattr(machine_module, "driver_versions", lambda: "a newer one")
    assert known_speeds(tmp_path) == {}


def test_the_speed_of_a_gpu_beside_other_programs_is_measured_again_after_some_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = DeviceSpeed(3e9, 20e9, others_share=0.7)
    detect_machine([replace(CARD, speed=busy)], tmp_path)
    assert known_speeds(tmp_path) == {CARD.key: busy}
    later_s = time.time() + 601
    monkeypatch.setattr(machine_module.time, "time", lambda: later_s)
    assert known_speeds(tmp_path) == {}


def test_a_gpu_whose_maker_gives_no_bandwidth_has_the_one_that_was_measured() -> None:
    unknown = ListedGpu("Vulkan0", "llvmpipe", False, GIB, GIB, "", speed=DeviceSpeed(2e9, 20e9))
    assert gpu_device(unknown, {}).bytes_per_s == 2e9
    assert gpu_device(replace(CARD, speed=DeviceSpeed(300e9, 20e12)), {}).bytes_per_s == 360e9


@pytest.mark.slow
def test_the_process_that_lists_gpus_lists_each_that_the_engine_can_use(tmp_path: Path) -> None:
    listed = list_gpus((), tmp_path)
    assert len(listed) == len(list(ggml_gpus()))
    assert all(isinstance(gpu, ListedGpu) and gpu.name for gpu in listed)


def test_a_gpu_on_the_bus_that_ggml_does_not_list_is_unusable() -> None:
    card, other = PciGpu("0000:01:00.0", "NVIDIA", None), PciGpu("0000:02:00.0", "AMD", None)
    assert unusable_gpus([card, other], ["0000:01:00.0"]) == (other,)
    assert unusable_gpus([card], []) == (card,)


def test_without_an_address_of_ggml_nothing_counts_as_unusable() -> None:
    assert unusable_gpus([PciGpu("0000:01:00.0", "AMD", None)], [""]) == ()
