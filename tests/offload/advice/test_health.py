from __future__ import annotations

from dataclasses import replace

import pytest

from offload.advice.health import Findings, find_problems
from offload.devices.machine import Device, DeviceKind, Machine

GIB = 1 << 30
HOST = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=16 * GIB, free_bytes=12 * GIB, bytes_per_s=40e9)
HEALTHY = Findings(
    machine=Machine(HOST),
    engine_version="0.3.36",
    unusable_vendors=(),
    is_limited=False,
    has_avx2=True,
    swapped_bytes=0,
    disk_bytes_per_s=None,
    repacking_is_safe=True,
)


def test_a_healthy_machine_has_no_problems() -> None:
    assert find_problems(HEALTHY) == ()
    assert find_problems(replace(HEALTHY, has_avx2=None, disk_bytes_per_s=2e9)) == ()


@pytest.mark.parametrize(("vendor", "flag"), [("NVIDIA", "GGML_CUDA"), ("AMD", "GGML_HIP"), ("Intel", "GGML_VULKAN")])
def test_a_gpu_that_this_build_cannot_use_comes_first_with_the_command_that_mends_it(vendor: str, flag: str) -> None:
    first, *_ = find_problems(replace(HEALTHY, unusable_vendors=(vendor, vendor), swapped_bytes=GIB))
    assert vendor in first.what
    assert f"-D{flag}=on" in first.next_step
    assert 'llama-cpp-python==0.3.36"' in first.next_step


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        (replace(HEALTHY, machine=Machine(replace(HOST, total_bytes=4 * GIB))), "4.0 GiB of memory"),
        (replace(HEALTHY, machine=Machine(replace(HOST, free_bytes=GIB))), "Only 1.0 GiB"),
        (replace(HEALTHY, is_limited=True), "container"),
        (replace(HEALTHY, swapped_bytes=2 * GIB), "2.0 GiB were moved to swap"),
        (replace(HEALTHY, disk_bytes_per_s=100e6), "100 MB/s: 5.0 GiB take 54 s"),
        (replace(HEALTHY, has_avx2=False), "no AVX2"),
        (replace(HEALTHY, repacking_is_safe=False), "repacks"),
    ],
)
def test_each_problem_is_reported_once_with_a_next_step(findings: Findings, words: str) -> None:
    (problem,) = find_problems(findings)
    assert words in problem.what
    assert problem.next_step.endswith(".")
