"""The bytes and the work of each device under a placement. Pure.

Owns the bookkeeping of one placement. Independent of how it was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from offload.devices.machine import Device, DeviceKind, Machine
from offload.footprint.profile import ModelProfile
from offload.footprint.weights import Layer
from offload.placement.search import Placement, margin_bytes
from offload.speed.cost_model import Work

_OPERATIONS_PER_CACHED_BYTE = 4  # of an F16 cache whose keys and values are shared by four heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The share of one device, in bytes; `n_layers` counts the output as a layer.

    `host_bytes` are the engine's own, `beside_bytes` those of auxiliary models, `read_bytes` what one token of an
    answer reads, `operations` what it computes. `work_bytes` is what reading keeps it busy with: of the processor
    weights, and what it could read while it unpacks them; `attention_bytes` is what it could read while it attends, 0
    of GPUs.
    """

    device: Device
    n_layers: int
    weight_bytes: int
    cache_bytes: int
    compute_bytes: int
    host_bytes: int
    beside_bytes: int
    read_bytes: int
    operations: float
    work_bytes: float
    attention_bytes: float

    @property
    def n_bytes(self) -> int:
        """All bytes that the device holds."""
        return self.weight_bytes + self.cache_bytes + self.compute_bytes + self.host_bytes + self.beside_bytes


def allocate(profile: ModelProfile, machine: Machine, placement: Placement) -> tuple[Share, ...]:
    """Return the share of each GPU, in the machine's order, and then the processor's."""
    counts = dict(zip(placement.gpus, placement.gpu_layers, strict=True))
    host = machine.host.name
    parts: dict[str, list[Layer]] = {device.name: [] for device in (*machine.gpus, machine.host)}
    end = len(profile.layers)
    for name, count in counts.items():
        for index in range(end - count, end):
            layer = profile.layers[index]
            left = _left(layer, is_split=index < placement.n_split, has_cache_on_host=placement.has_cache_on_host)
            parts[name].append(_rest(layer, left))
            if left.weight_bytes or left.cache_bytes:
                attending = _OPERATIONS_PER_CACHED_BYTE * left.cache_read_bytes
                parts[host].append(replace(left, operations=left.operations + attending))
        end -= count
    parts[host] += profile.layers[:end]
    last = next((name for name, count in counts.items() if count), host)
    if last != host:
        parts[last].append(Layer(weight_bytes=profile.tied_bytes))

    def share(device: Device, n_layers: int) -> Share:
        has_output = device.name == last
        compute_bytes = profile.compute_bytes if has_output else profile.inner_compute_bytes
        if placement.has_cache_on_host and device.kind is not DeviceKind.CPU:
            compute_bytes = min(compute_bytes, profile.unattending_bytes)
        return _share(profile, device, n_layers, parts[device.name], compute_bytes, has_output=has_output)

    return (*(share(gpu, counts.get(gpu.name, 0)) for gpu in machine.gpus), share(machine.host, end))


def overfull(shares: Sequence[Share], machine: Machine) -> tuple[Share, ...]:
    """Return the shares that leave their device less than its margin; the processor's where those that take from its
    memory do so together.
    """
    host_bytes = sum(share.n_bytes for share in shares if share.device.shares_host)
    is_host_full = host_bytes > machine.host.free_bytes - margin_bytes(machine.host)
    return tuple(
        share
        for share in shares
        if (
            is_host_full and share.device.kind is DeviceKind.CPU
            if share.device.shares_host
            else share.n_layers and share.n_bytes > share.device.free_bytes - margin_bytes(share.device)
        )
    )


def decode_work(shares: Sequence[Share], placement: Placement) -> Work:
    """Return the work of one token of an answer."""
    work = _work(shares, placement, {share.device.name: share.work_bytes for share in shares})
    return replace(work, attention_bytes=sum(share.attention_bytes for share in shares))


def prefill_work(shares: Sequence[Share], placement: Placement) -> Work:
    """Return the work of one token of a prompt: many tokens together read all experts."""
    return _work(shares, placement, {share.device.name: share.weight_bytes for share in shares})


def _work(shares: Sequence[Share], placement: Placement, read_bytes: Mapping[str, float]) -> Work:
    return Work(
        read_bytes=read_bytes,
        operations={share.device.name: share.operations for share in shares},
        n_layers=sum(share.n_layers for share in shares),
        n_crossings=placement.n_crossings,
    )


def _share(
    profile: ModelProfile,
    device: Device,
    n_layers: int,
    parts: Sequence[Layer],
    compute_bytes: int,
    *,
    has_output: bool,
) -> Share:
    is_host = device.kind is DeviceKind.CPU
    weight_bytes = sum(part.weight_bytes for part in parts)
    weights_read, cache_read = sum(part.read_bytes for part in parts), sum(part.cache_read_bytes for part in parts)
    beside = sum(part.unpacking_bytes for part in parts) if is_host else cache_read
    return Share(
        device=device,
        n_layers=n_layers,
        weight_bytes=weight_bytes + (profile.input_bytes if is_host else 0),
        cache_bytes=sum(part.cache_bytes for part in parts),
        compute_bytes=compute_bytes if parts else 0,
        host_bytes=profile.host_bytes if is_host else 0,
        beside_bytes=(profile.beside_host_bytes if is_host else 0) + (profile.beside_bytes if has_output else 0),
        read_bytes=weights_read + cache_read,
        operations=sum(part.operations for part in parts),
        work_bytes=weights_read + beside,
        attention_bytes=sum(part.attention_bytes for part in parts) if is_host else 0.0,
    )


def _left(layer: Layer, *, is_split: bool, has_cache_on_host: bool) -> Layer:
    """Return the part of a layer on a GPU that stays with the processor."""
    left = Layer()
    if is_split:
        share = layer.movable_read_bytes / layer.read_bytes if layer.read_bytes else 0.0
        left = Layer(
            weight_bytes=layer.movable_bytes,
            read_bytes=layer.movable_read_bytes,
            operations=layer.operations * share,
            unpacking_bytes=layer.movable_unpacking_bytes,
        )
    if not (has_cache_on_host and layer.cache_bytes):
        return left
    cached, n_read = layer.cache_bytes, layer.cache_read_bytes
    return replace(left, cache_bytes=cached, cache_read_bytes=n_read, attention_bytes=layer.attention_bytes)


def _rest(layer: Layer, left: Layer) -> Layer:
    """Return the part of a layer beside the part that is `left` elsewhere."""
    return Layer(
        weight_bytes=layer.weight_bytes - left.weight_bytes,
        cache_bytes=layer.cache_bytes - left.cache_bytes,
        read_bytes=layer.read_bytes - left.read_bytes,
        cache_read_bytes=layer.cache_read_bytes - left.cache_read_bytes,
        operations=layer.operations - left.operations,
        unpacking_bytes=layer.unpacking_bytes - left.unpacking_bytes,
        attention_bytes=layer.attention_bytes - left.attention_bytes,
    )
