"""A placement in the terms that llama.cpp loads by: layers on GPUs, their proportions, and what stays behind; and the
memory that each device really holds after a load, compared with its plan. Pure.

Source: `load_tensors` in src/llama-model.cpp, `create_tensor` in src/llama-model-loader.cpp and `llama_context_params`
in include/llama.h, as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from offload.devices.machine import Device, DeviceKind, Machine
from offload.footprint.model import ModelProfile
from offload.placement.shares import Placement, Share, allocate, margin_bytes

_EXPERTS, _FEED_FORWARD = r"ffn_\w+_exps\.", r"ffn_(gate|up|down|gate_up)\.weight"


class LoadMode(StrEnum):
    """The way of reading the processor's weights into memory, by llama.cpp's names of `llama_load_mode`. AUTO maps the
    file wherever the devices allow it. NONE reads it into memory that GPUs can fetch from at full speed: from the pages
    of a file an H100 took prompts half as fast, and answers came as fast from either. MMAP_MLOCK maps it and keeps the
    system from dropping its pages."""

    AUTO = "auto"
    NONE = "none"
    MMAP_MLOCK = "mmap+mlock"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadParameters:
    """`devices` are names in llama.cpp's order, the first has the earliest layers; `tensor_split` is layers for each.
    With `op_offload` they may compute with the processor's weights; where one `fetches_weights`, the first of them does
    for prompts.

    Tensors whose names match `host_pattern` stay with the processor; it is empty where none do. Unless `offload_kqv`
    the cache and the attention over it are the processor's, of layers on GPUs too. `n_ubatch`, `n_outputs` (the most
    tokens of a step that have logits, 0: all) and `flash_attention` are what compute buffers were counted for.
    With `has_lazy_tables` the rows of tables that llama.cpp marks are read from the file when a token needs them.
    `n_threads` 0 leaves them to what was measured; 1 is enough where no layer is computed by the processor.
    """

    n_gpu_layers: int = 0
    devices: tuple[str, ...] = ()
    tensor_split: tuple[int, ...] = ()
    host_pattern: str = ""
    offload_kqv: bool = True
    op_offload: bool = True
    fetches_weights: bool = False
    n_ubatch: int = 512
    n_outputs: int = 0
    flash_attention: bool = False
    load_mode: LoadMode = LoadMode.AUTO
    has_lazy_tables: bool = False
    n_threads: int = 0


ON_HOST = LoadParameters()  # nothing on a GPU, and defaults for the processor


def load_parameters(profile: ModelProfile, machine: Machine, placement: Placement) -> LoadParameters:
    """Return the parameters that make llama.cpp place the layers of `profile` so."""
    used = [*reversed(placement.layers_by_gpu.items())]  # a placement begins with the last layers
    if placement.prompt_gpu and not used:
        used = [(placement.prompt_gpu, 0)]
    split = [str(index) for index in range(len(profile.layers) - placement.n_on_gpus, placement.n_split)]
    movable = _EXPERTS if profile.has_experts else _FEED_FORWARD
    host_pattern = rf"^blk\.({'|'.join(split)})\.{movable}" if split else ""
    n_outputs = profile.run_config.n_outputs
    has_host_work = placement.n_on_gpus < len(profile.layers) or bool(placement.n_split) or placement.has_cache_on_host
    return LoadParameters(
        n_gpu_layers=placement.n_on_gpus,
        devices=tuple(name for name, _ in used),
        tensor_split=tuple(count for _, count in used),
        host_pattern=host_pattern,
        offload_kqv=not placement.has_cache_on_host,
        op_offload=bool(placement.prompt_gpu) or not (used and has_host_work),
        fetches_weights=bool(placement.prompt_gpu),
        n_ubatch=profile.run_config.n_ubatch,
        n_outputs=n_outputs if n_outputs < profile.run_config.n_ubatch else 0,
        flash_attention=profile.run_config.is_fused,
        load_mode=LoadMode.NONE if host_pattern else _load_mode(profile, machine, placement),
        has_lazy_tables=bool(profile.lazy_bytes),
        n_threads=0 if has_host_work else 1,
    )


def _load_mode(profile: ModelProfile, machine: Machine, placement: Placement) -> LoadMode:
    """Return NONE where prompts are computed by a GPU that fetches the processor's weights, and AUTO elsewhere. Where
    memory is short the file is mapped: pages of a mapped file are the first that the system drops, and then reads again
    for every token."""
    is_read = placement.n_on_gpus < len(profile.layers)
    on_host = sum(share.n_bytes for share in allocate(profile, machine, placement) if share.device.shares_host)
    if is_read and machine.host.free_bytes - on_host < 2 * margin_bytes(machine.host):
        return LoadMode.MMAP_MLOCK
    fetches = any(gpu.name == placement.prompt_gpu and not gpu.shares_host for gpu in machine.gpus)
    return LoadMode.NONE if is_read and fetches else LoadMode.AUTO


# Of the planned weights: with less than the first a device was passed over, with less than the second it lacks some.
_LEAST_SHARE, _WHOLE_SHARE = 0.02, 0.95


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """Bytes on one device, by purpose."""

    weight_bytes: int = 0
    cache_bytes: int = 0
    compute_bytes: int = 0

    @property
    def n_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes + self.compute_bytes


@dataclass(frozen=True, slots=True)
class ExcessUsage:
    """Bytes that a load took beyond its plan: the largest excess on a GPU, and that on the processor."""

    gpu_bytes: int = 0
    host_bytes: int = 0


def excess_usage(shares: Sequence[Share], held: Mapping[str, DeviceUsage]) -> ExcessUsage:
    """Return the bytes taken beyond `shares`, by device name.
    The processor's weights are unknown: llama.cpp logs the whole of a mapped file, wherever its layers went."""
    used = [share for share in shares if share.n_bytes and share.device.kind is not DeviceKind.CPU]
    on_gpus = [held[share.device.name].n_bytes - share.n_bytes for share in used]
    (host,) = (share for share in shares if share.device.kind is DeviceKind.CPU)
    kept = held[host.device.name]
    on_host = kept.cache_bytes + kept.compute_bytes - host.cache_bytes - host.compute_bytes
    return ExcessUsage(max(0, *on_gpus, 0), max(0, on_host))


def with_reserved(machine: Machine, surplus: ExcessUsage) -> Machine:
    """Return `machine` with less free memory, by the excess of the last load."""

    def less(device: Device, n_bytes: int) -> Device:
        return replace(device, free_bytes=max(0, device.free_bytes - n_bytes))

    return Machine(less(machine.host, surplus.host_bytes), tuple(less(gpu, surplus.gpu_bytes) for gpu in machine.gpus))


def missing_gpus(shares: Sequence[Share], held: Mapping[str, DeviceUsage]) -> tuple[str, ...]:
    """Return the GPUs whose planned layers are almost entirely missing."""
    return _holding(shares, held, 0.0, _LEAST_SHARE)


def partial_gpus(shares: Sequence[Share], held: Mapping[str, DeviceUsage]) -> tuple[str, ...]:
    """Return the GPUs that hold only a part of their planned weights: llama.cpp leaves a tensor with the processor that
    a device cannot compute with, such as one beyond Vulkan's `maxStorageBufferRange`."""
    return _holding(shares, held, _LEAST_SHARE, _WHOLE_SHARE)


def _holding(shares: Sequence[Share], held: Mapping[str, DeviceUsage], least: float, most: float) -> tuple[str, ...]:
    found = ((share.device.name, share.weight_bytes) for share in _on_gpus(shares))
    return tuple(name for name, n in found if least * n <= held[name].weight_bytes < most * n)


def _on_gpus(shares: Sequence[Share]) -> list[Share]:
    return [share for share in shares if share.n_layers and share.device.kind is not DeviceKind.CPU]
