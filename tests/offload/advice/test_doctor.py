from __future__ import annotations

from dataclasses import replace

import pytest

from offload.advice.doctor import Constraint, Findings, Symptoms, bottleneck, find_problems
from offload.devices.machine import Device, DeviceKind, Machine
from offload.placement.assessment import FitLevel
from quantizer.system.installation import Installation, Installer, Shell

GIB = 1 << 30
HOST = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=16 * GIB, free_bytes=12 * GIB, bytes_per_s=40e9)
HEALTHY = Findings(
    machine=Machine(HOST),
    engine_version="0.3.36",
    installation=Installation(installer=Installer.PIP, shell=Shell.UNIX, python="/v/bin/python"),
    build_tools=(),
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


@pytest.mark.parametrize(
    ("vendor", "tools", "definition", "missing"),
    [
        ("NVIDIA", ("nvcc", "glslc"), "GGML_CUDA=on", ""),
        ("NVIDIA", ("glslc",), "GGML_VULKAN=on", ""),
        ("NVIDIA", (), "GGML_CUDA=on", "Install the CUDA toolkit (nvcc). "),
        ("AMD", ("hipcc", "glslc"), "GGML_HIP=on", ""),
        ("AMD", ("glslc",), "GGML_VULKAN=on", ""),
        ("AMD", (), "GGML_VULKAN=on", "Install the Vulkan SDK (glslc). "),
        ("Intel", ("icpx", "glslc"), "GGML_SYCL=on", ""),
        ("Intel", ("glslc",), "GGML_VULKAN=on", ""),
        ("Intel", (), "GGML_VULKAN=on", "Install the Vulkan SDK (glslc). "),
        ("Apple", ("clang",), "GGML_METAL=on", ""),
        ("Apple", (), "GGML_METAL=on", "Install the Xcode command line tools (clang). "),
    ],
)
def test_a_gpu_that_this_build_cannot_use_comes_first_with_the_command_that_mends_it(
    vendor: str, tools: tuple[str, ...], definition: str, missing: str
) -> None:
    broken = replace(HEALTHY, unusable_vendors=(vendor, vendor), swapped_bytes=GIB, build_tools=tools)
    first, second = find_problems(broken)
    assert vendor in first.what
    assert "swapped" in second.what
    assert first.next_step.startswith(f"{missing}Build one that can: env ")
    assert f" -D{definition}" in first.next_step
    assert "/v/bin/python -m pip install" in first.next_step
    assert "llama-cpp-python==0.3.36" in first.next_step


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        (replace(HEALTHY, machine=Machine(replace(HOST, total_bytes=4 * GIB))), "4.0 GiB of memory"),
        (replace(HEALTHY, machine=Machine(replace(HOST, free_bytes=GIB))), "Only 1.0 GiB"),
        (replace(HEALTHY, is_limited=True), "container"),
        (replace(HEALTHY, swapped_bytes=2 * GIB), "2.0 GiB of memory is swapped out"),
        (replace(HEALTHY, disk_bytes_per_s=100e6), "100 MB/s: 5.0 GiB takes 54 s"),
        (replace(HEALTHY, has_avx2=False), "no AVX2"),
        (replace(HEALTHY, repacking_is_safe=False), "repacks"),
    ],
)
def test_each_problem_is_reported_once_with_a_next_step(findings: Findings, words: str) -> None:
    (problem,) = find_problems(findings)
    assert words in problem.what
    assert problem.next_step.endswith(".")


GOOD = Symptoms(
    verdict=FitLevel.FITS,
    queue_s=0.1,
    n_ahead=0,
    prefill_tps=200.0,
    decode_tps=20.0,
    n_prefill=500,
    n_decode=250,
    read_bytes=800_000_000,
    predicted_tps=22.0,
    remedy=None,
    smaller=("Q4_K_M", 1.5),
)


def test_an_answer_that_takes_most_of_a_turn_is_bound_by_reading() -> None:
    found = bottleneck(GOOD)
    assert found.constraint is Constraint.BANDWIDTH
    assert "12.5 s is spent on the answer (250 tokens)" in found.reason
    assert "16 GB/s" in found.reason
    assert found.first_step == "Quantize to Q4_K_M: 30 tok/s predicted instead of 20."


def test_where_no_smaller_file_helps_only_other_memory_does() -> None:
    assert "no smaller quantization" in bottleneck(replace(GOOD, smaller=None)).first_step


@pytest.mark.parametrize("verdict", [FitLevel.PARTIAL, FitLevel.WONT_RUN])
def test_a_model_that_does_not_fit_is_bound_by_memory_whatever_else_is_slow(verdict: FitLevel) -> None:
    found = bottleneck(replace(GOOD, verdict=verdict, queue_s=99.0, remedy="--ctx 4096"))
    assert (found.constraint, found.first_step) == (Constraint.CAPACITY, "--ctx 4096")


def test_long_prompts_are_bound_by_computing() -> None:
    assert bottleneck(replace(GOOD, n_prefill=4000)).constraint is Constraint.PREFILL


def test_waiting_longer_than_for_anything_else_is_the_queue() -> None:
    found = bottleneck(replace(GOOD, queue_s=30.0, n_ahead=4))
    assert found.constraint is Constraint.QUEUE
    assert "behind 4 others" in found.reason


def test_far_less_than_predicted_is_the_work_of_others() -> None:
    assert bottleneck(replace(GOOD, decode_tps=8.0)).constraint is Constraint.OTHERS
    assert bottleneck(replace(GOOD, decode_tps=8.0, predicted_tps=None)).constraint is Constraint.BANDWIDTH
