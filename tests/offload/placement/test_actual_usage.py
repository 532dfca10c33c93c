from __future__ import annotations

from dataclasses import replace

from offload.devices.machine import Device, DeviceKind, Machine
from offload.placement.actual_usage import DeviceUsage, ExcessUsage, excess_usage, missing_gpus, with_reserved
from offload.placement.allocation import Share

CARD = Device(name="CUDA0", kind=DeviceKind.GPU, total_bytes=1000, free_bytes=900)
HOST = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=9000, free_bytes=8000)


def share(device: Device, n_layers: int = 3) -> Share:
    return Share(
        device=device,
        n_layers=n_layers,
        weight_bytes=100,
        cache_bytes=50,
        compute_bytes=20,
        host_bytes=0,
        read_bytes=100,
        operations=0.0,
        work_bytes=0.0,
        attention_bytes=0.0,
        beside_bytes=0,
    )


SHARES = (share(CARD), share(HOST))
AS_PLANNED = {"CUDA0": DeviceUsage(100, 50, 20), "CPU": DeviceUsage(100, 50, 20)}


def test_a_load_as_planned_leaves_nothing_to_learn() -> None:
    assert excess_usage(SHARES, AS_PLANNED) == ExcessUsage(0, 0)


def test_excess_usage_of_a_device_is_reserved_in_the_next_plan() -> None:
    held = {"CUDA0": DeviceUsage(100, 50, 27), "CPU": DeviceUsage(100, 55, 20)}
    surplus = excess_usage(SHARES, held)
    assert surplus == ExcessUsage(gpu_bytes=7, host_bytes=5)
    machine = with_reserved(Machine(HOST, (CARD,)), surplus)
    assert (machine.gpus[0].free_bytes, machine.host.free_bytes) == (893, 7995)


def test_less_than_planned_is_no_surplus_and_a_whole_mapped_file_is_none_either() -> None:
    assert excess_usage(SHARES, {"CUDA0": DeviceUsage(100, 50, 1), "CPU": DeviceUsage(100_000, 50, 20)}) == ExcessUsage(
        0, 0
    )


def test_a_gpu_without_its_weights_is_missed() -> None:
    passed_over = AS_PLANNED | {"CUDA0": DeviceUsage(0, 0, 20)}
    assert missing_gpus(SHARES, passed_over) == ("CUDA0",)
    assert missing_gpus(SHARES, AS_PLANNED) == ()
    assert missing_gpus((replace(SHARES[0], n_layers=0), SHARES[1]), passed_over) == ()
