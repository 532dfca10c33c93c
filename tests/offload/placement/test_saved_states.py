"""The memory of chats that left the cache: what plans allow, and what is left of it while others take memory."""

from __future__ import annotations

import pytest

from offload.devices.machine import Device, DeviceKind
from offload.placement.saved_states import STALLED_SHARE, planned_state_bytes, state_limit_bytes
from offload.placement.shares import Share, margin_bytes

GIB = 1 << 30


def host(total_gib: float, free_gib: float) -> Device:
    return Device(name="CPU", kind=DeviceKind.CPU, total_bytes=int(total_gib * GIB), free_bytes=int(free_gib * GIB))


def share(device: Device, n_gib: float) -> Share:
    n_bytes = int(n_gib * GIB)
    return Share(
        device=device,
        n_layers=1,
        weight_bytes=n_bytes,
        cache_bytes=0,
        compute_bytes=0,
        host_bytes=0,
        beside_bytes=0,
        read_bytes=0,
        operations=0.0,
        work_bytes=0.0,
        attention_bytes=0.0,
    )


MARGIN_GIB = margin_bytes(host(16, 16)) / GIB


@pytest.mark.parametrize(
    ("total_gib", "free_gib", "model_gib", "max_gib", "planned_gib"),
    [
        (24, 22, 0.5, None, 8.0),  # a third of the memory
        (16, 12 + MARGIN_GIB, 8.0, None, 2.0),  # half of what the model leaves
        (8, 5 + MARGIN_GIB, 5.0, None, 0.0),
        (8, 4, 6.0, None, 0.0),  # a model that does not fit
        (24, 22, 1.0, 1.5, 0.5),  # models together may take 1.5 GiB
        (24, 22, 2.0, 1.5, 0.0),
        (24, 22, 0.5, 20.0, 8.0),
    ],
)
def test_chats_get_what_a_model_and_other_programs_leave(
    total_gib: float, free_gib: float, model_gib: float, max_gib: float | None, planned_gib: float
) -> None:
    machine = host(total_gib, free_gib)
    max_bytes = None if max_gib is None else int(max_gib * GIB)
    planned = planned_state_bytes(machine, [share(machine, model_gib)], max_bytes)
    assert planned / GIB == pytest.approx(planned_gib)


def test_what_lies_on_a_gpu_leaves_them_the_memory_of_the_machine() -> None:
    machine = host(12, 12)
    gpu = Device(name="CUDA0", kind=DeviceKind.GPU, total_bytes=24 * GIB, free_bytes=24 * GIB)
    assert planned_state_bytes(machine, [share(gpu, 20)]) == 4 * GIB


@pytest.mark.parametrize(
    ("held", "free", "stalled", "limit"),
    [
        (0, 5000, 0.0, 1000),  # as planned
        (1000, 1100, 0.0, 1000),
        (1000, 600, 0.0, 750),  # half of what is free with them, less the margin
        (1000, 0, 0.0, 450),
        (1000, -2000, 0.0, 0),
        (1000, 9000, STALLED_SHARE, 1000),
        (1000, 9000, 0.2, 500),  # free by count, and programs wait for pages all the same
        (500, 9000, 0.2, 250),
        (1, 9000, 0.2, 0),
        (5000, 9000, 0.2, 1000),
    ],
)
def test_memory_that_others_need_is_given_back(held: int, free: int, stalled: float, limit: int) -> None:
    assert state_limit_bytes(held, 1000, free, 100, stalled) == limit
