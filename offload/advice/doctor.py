"""Findings of `localllm doctor`: problems of a machine for running models, and the bottleneck of a measured answer.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from offload.devices.machine import Machine
from offload.devices.numa import NumaChoice
from offload.format import format_bandwidth, format_memory
from offload.placement.assessment import FitLevel
from quantizer.figures import format_speed
from quantizer.system.installation import Installation, build_command

_LITTLE_BYTES, _LITTLE_FREE_BYTES = 8 << 30, 2 << 30
_SWAPPED_BYTES = 512 << 20
_SLOW_DISK_BYTES_PER_S, _COMMON_MODEL_BYTES = 200e6, 5 << 30


@dataclass(frozen=True, slots=True)
class GpuBackend:
    """A way in which llama.cpp uses a GPU: its definitions for CMake, the program that a build needs, and where that is
    from. Source: docs/build.md of llama.cpp."""

    definitions: tuple[str, ...]
    tool: str
    toolkit: str


_CUDA = GpuBackend(("GGML_CUDA=on",), "nvcc", "the CUDA toolkit")
_HIP = GpuBackend(("GGML_HIP=on",), "hipcc", "ROCm")
_VULKAN = GpuBackend(("GGML_VULKAN=on",), "glslc", "the Vulkan SDK")
_METAL = GpuBackend(("GGML_METAL=on",), "clang", "the Xcode command line tools")
_SYCL = GpuBackend(("GGML_SYCL=on", "CMAKE_C_COMPILER=icx", "CMAKE_CXX_COMPILER=icpx"), "icpx", "Intel's oneAPI")
# By the maker of the GPU, the fastest first; and what to install where a machine has none of the tools
_BACKENDS = {
    "NVIDIA": ((_CUDA, _VULKAN), _CUDA),
    "AMD": ((_HIP, _VULKAN), _VULKAN),
    "Intel": ((_SYCL, _VULKAN), _VULKAN),
    "Apple": ((_METAL,), _METAL),
}
BUILD_TOOLS = frozenset(backend.tool for backends, _ in _BACKENDS.values() for backend in backends)


def choose_backend(vendor: str, tools: Collection[str]) -> GpuBackend:
    """Return how to build for a GPU, given which of BUILD_TOOLS this machine has."""
    backends, usual = _BACKENDS[vendor]
    return next((backend for backend in backends if backend.tool in tools), usual)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, and what to do about it."""

    what: str
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The facts about a machine. `unusable_vendors` are makers of GPUs that this build of llama.cpp cannot use, and
    `build_tools` those of BUILD_TOOLS that are installed.
    `has_avx2` is None on processors that are not x86, `swapped_bytes` what the system has moved out of memory,
    `disk_bytes_per_s` the speed of the disk with the models, None where unknown."""

    machine: Machine
    engine_version: str
    installation: Installation
    build_tools: Collection[str]
    unusable_vendors: Sequence[str]
    is_limited: bool
    has_avx2: bool | None
    swapped_bytes: int
    disk_bytes_per_s: float | None
    repacking_is_safe: bool
    numa: NumaChoice | None = None  # where there are several nodes
    engine_features: str = ""  # the backends of llama.cpp and what they were built with
    known_problems: Sequence[Problem] = ()  # of folders and of the environment, which are no matter of the machine
    paths: Sequence[tuple[str, str]] = ()  # a label and the path of each folder in use


def find_problems(findings: Findings) -> tuple[Problem, ...]:
    """Return the problems, the most important first."""
    found: list[Problem] = [*findings.known_problems]
    for vendor in sorted(set(findings.unusable_vendors)):
        backend = choose_backend(vendor, findings.build_tools)
        command = build_command(findings.installation, findings.engine_version, backend.definitions)
        what = f"This build of llama.cpp cannot use the {vendor} GPU of this machine."
        needed = "" if backend.tool in findings.build_tools else f"Install {backend.toolkit} ({backend.tool}). "
        found.append(Problem(what, f"{needed}Build one that can: {command}"))
    host = findings.machine.host
    total, free = format_memory(host.total_bytes), format_memory(host.free_bytes)
    if findings.is_limited:
        what = f"This container may use {total} of memory, less than the machine has."
        found.append(Problem(what, "Raise its limit."))
    elif host.total_bytes < _LITTLE_BYTES:
        found.append(Problem(f"Only small models fit into {total} of memory.", "Choose models below 4B parameters."))
    if host.free_bytes < _LITTLE_FREE_BYTES:
        found.append(Problem(f"Only {free} of memory is free.", "Close programs that use a lot of memory."))
    if findings.swapped_bytes > _SWAPPED_BYTES:
        moved = format_memory(findings.swapped_bytes)
        what = f"{moved} of memory is swapped out, which is slow to read."
        found.append(Problem(what, "Close programs, or add memory."))
    speed = findings.disk_bytes_per_s
    if speed is not None and speed < _SLOW_DISK_BYTES_PER_S:
        load_s, size = _COMMON_MODEL_BYTES / speed, format_memory(_COMMON_MODEL_BYTES)
        what = f"Models are read from disk at {speed / 1e6:,.0f} MB/s: {size} takes {load_s:,.0f} s."
        found.append(Problem(what, "Move them to a faster disk, and set LOCALLLM_DATA_DIR."))
    if findings.has_avx2 is False:
        what = "This processor has no AVX2, so prompts are computed slowly."
        found.append(Problem(what, "Use a GPU, or small models."))
    if not findings.repacking_is_safe:
        what = "This build of llama.cpp crashes on this processor when it repacks weights, so repacking is off."
        found.append(Problem(what, "Build it with GCC 13 or later, or with clang."))
    return tuple(found)


_SLOWED_DOWN = 0.5  # of the predicted speed: below it something else than reading takes the time


class Constraint(StrEnum):
    """The limiting resource."""

    CAPACITY = "memory capacity"
    BANDWIDTH = "memory bandwidth"
    PREFILL = "prefill compute"
    QUEUE = "the queue"
    OTHERS = "other programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """One measured answer, and the plan of its model. Speeds are in tokens per second. A turn is `n_prefill` tokens of
    prompt and `n_decode` of answer, as the model is used. `queue_s` is what the answer waited for its turn, behind
    `n_ahead` others. `read_bytes` is what a token reads, `predicted_tps` what was expected, `remedy` the first remedy
    where not all fits, `smaller` a quantization and how many times as fast it is; None where unknown."""

    verdict: FitLevel
    queue_s: float
    n_ahead: int
    prefill_tps: float
    decode_tps: float
    n_prefill: int
    n_decode: int
    read_bytes: int
    predicted_tps: float | None
    remedy: str | None
    smaller: tuple[str, float] | None


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The constraint, the reason, and the first step."""

    constraint: Constraint
    reason: str
    first_step: str


def bottleneck(symptoms: Symptoms) -> Bottleneck:
    """Return the bottleneck. Memory comes first: where a model does not fit, all else follows from it."""
    if symptoms.verdict in (FitLevel.PARTIAL, FitLevel.WONT_RUN):
        reason = "Part of the model is in slow memory."
        return Bottleneck(Constraint.CAPACITY, reason, symptoms.remedy or "Choose a smaller model.")
    prefill_s, decode_s = symptoms.n_prefill / symptoms.prefill_tps, symptoms.n_decode / symptoms.decode_tps
    if symptoms.queue_s > max(prefill_s, decode_s):
        reason = f"An answer waited {symptoms.queue_s:.1f} s in the queue, behind {symptoms.n_ahead} others."
        return Bottleneck(Constraint.QUEUE, reason, "Serve more requests at once with --parallel, or send fewer.")
    if prefill_s > decode_s:
        reason = (
            f"Of one turn, {prefill_s:.1f} s is spent on the prompt ({symptoms.n_prefill:,} tokens)"
            f" and {decode_s:.1f} s on the answer ({symptoms.n_decode:,} tokens)."
        )
        first_step = (
            "Start prompts with the same text: common prefixes are cached. `localllm tune` finds the fastest batch."
        )
        return Bottleneck(Constraint.PREFILL, reason, first_step)
    pace, tps = format_speed(symptoms.decode_tps), symptoms.predicted_tps
    if tps and symptoms.decode_tps < _SLOWED_DOWN * tps:
        reason = f"Answers come at {pace} tok/s where {format_speed(tps)} were expected."
        first_step = "Close other programs that use processor or memory, and measure again."
        return Bottleneck(Constraint.OTHERS, reason, first_step)
    answers = f"{decode_s:.1f} s is spent on the answer ({symptoms.n_decode:,} tokens)"
    read = format_bandwidth(symptoms.read_bytes * symptoms.decode_tps)
    reason = f"Of one turn, {answers} and {prefill_s:.1f} s on the prompt; decoding reads {read} GB/s."
    if symptoms.smaller is None:
        return Bottleneck(Constraint.BANDWIDTH, reason, "Use faster memory or a GPU: no smaller quantization helps.")
    name, gain = symptoms.smaller
    faster = format_speed(gain * symptoms.decode_tps)
    return Bottleneck(Constraint.BANDWIDTH, reason, f"Quantize to {name}: {faster} tok/s predicted instead of {pace}.")
