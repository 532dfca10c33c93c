"""A placement, and the bytes and the work of each device under it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from offload.devices.machine import Device, DeviceKind, Machine
from offload.footprint.model import DEFAULT_RUN, ModelProfile, RunConfig
from offload.footprint.weights import Layer
from offload.speed.cost_model import (
    ATTENTION,
    ELEMENTS,
    FUSED_ATTENTION,
    TYPICAL_TURN,
    Rates,
    Turn,
    Work,
    decode_s,
    operations_of,
    prefill_s,
)
from offload.speed.type_costs import AS_IN_FILE, NO_WORK, TypeWork, Weights, in_layout, summed, without

_MARGIN_SHARE, _LEAST_MARGIN_BYTES, _MOST_MARGIN_BYTES = 0.04, 256 << 20, 1 << 30
_HOST_MARGIN_BYTES = 512 << 20
ATTENTION_KINDS = (ATTENTION, FUSED_ATTENTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`gpu_layers` by GPU in the order of `gpus`, the output counted as one; the rest is the processor's. `gpus` are
    names; the first takes the last layers, the next those before. The layers before `n_split` keep their movable part
    with the processor even when they are on a GPU, and where it `has_cache_on_host` all of them their cache. A token
    crosses between devices `n_crossings` times and takes `token_s`; one of a prompt takes `prompt_s`, and a typical
    turn `turn_s`. `prompt_gpu` computes prompts with the processor's weights too, and is one of `gpus`, which has no
    layers where no other has any; it is empty where the processor computes them."""

    gpus: tuple[str, ...]
    gpu_layers: tuple[int, ...]
    n_split: int
    n_crossings: int
    token_s: float
    has_cache_on_host: bool = False
    prompt_s: float = 0.0
    turn_s: float = 0.0
    prompt_gpu: str = ""

    @property
    def n_on_gpus(self) -> int:  # the output counted
        return sum(self.gpu_layers)

    @property
    def layers_by_gpu(self) -> dict[str, int]:
        """The layers of each GPU that has any, in the order of `gpus`."""
        return {name: count for name, count in zip(self.gpus, self.gpu_layers, strict=True) if count}


ALL_ON_HOST = Placement(gpus=(), gpu_layers=(), n_split=0, n_crossings=0, token_s=0.0)  # without a speed


def margin_bytes(device: Device) -> int:
    """Return the bytes that a plan leaves free on a device, for drivers, displays and other programs."""
    if device.shares_host:
        return _HOST_MARGIN_BYTES
    return min(max(_LEAST_MARGIN_BYTES, int(device.total_bytes * _MARGIN_SHARE)), _MOST_MARGIN_BYTES)


def has_host_memory(gpu: Device) -> bool:
    """Return whether llama.cpp puts the processor's weights into memory that `gpu` fetches from, as the file has them:
    it comes before the buffers of repacked weights."""
    return gpu.kind is DeviceKind.GPU and not gpu.is_remote


def as_in_file(run_config: RunConfig) -> RunConfig:
    return replace(run_config, layout=replace(run_config.layout, is_repacked=False))


def turn_of(profile: ModelProfile) -> Turn:
    return TYPICAL_TURN.within(profile.run_config.n_ctx)


def n_at_once(profile: ModelProfile) -> int:
    """Return how many tokens of a typical prompt are computed at once."""
    return min(profile.run_config.n_ubatch, turn_of(profile).n_prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The share of one device, in bytes; `n_layers` counts the output as a layer. `host_bytes` are the engine's own,
    `beside_bytes` those of auxiliary models, `read_bytes` what one token of an answer reads, `operations` what it
    computes. `work_bytes` is what reading keeps it busy with: of the processor weights, and what it could read while it
    unpacks them; `attention_bytes` is what it could read while it attends, 0 of GPUs. `weights` are what a token is
    multiplied with, by the kind that is possible there."""

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
    attention: TypeWork = NO_WORK
    weights: Weights = field(default_factory=dict)
    run_config: RunConfig = DEFAULT_RUN
    has_output: bool = False
    cache_read_bytes: int = 0  # of the `read_bytes`

    @property
    def n_bytes(self) -> int:
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
                parts[host].append(left)
        end -= count
    parts[host] += profile.layers[:end]
    last = next((name for name, count in counts.items() if count), host)
    if last != host:
        parts[last].append(Layer(weight_bytes=profile.tied_bytes))
    in_use = {name for name, count in counts.items() if count or name == placement.prompt_gpu}
    if any(gpu.name in in_use and has_host_memory(gpu) for gpu in machine.gpus):
        profile = replace(profile, run_config=as_in_file(profile.run_config))
    shares = []
    for device in (*machine.gpus, machine.host):
        has_output = device.name == last
        compute_bytes = profile.compute_bytes if has_output else profile.inner_compute_bytes
        if placement.has_cache_on_host and device.kind is not DeviceKind.CPU:
            compute_bytes = min(compute_bytes, profile.unattending_bytes)
        if device.name == placement.prompt_gpu:
            compute_bytes = profile.fetching_compute_bytes(
                has_layers=bool(parts[device.name]),
                has_output=has_output,
                has_cache_on_host=placement.has_cache_on_host,
            )
        n_layers = end if device is machine.host else counts.get(device.name, 0)
        is_used = bool(parts[device.name]) or device.name == placement.prompt_gpu
        compute_bytes *= is_used
        shares.append(_share(profile, device, n_layers, parts[device.name], compute_bytes, has_output=has_output))
    return tuple(shares)


def overfull(shares: Sequence[Share], machine: Machine) -> tuple[Share, ...]:
    """Return the shares that leave their device less than its margin; the processor's where those that take from its
    memory do so together."""
    host_bytes = sum(share.n_bytes for share in shares if share.device.shares_host)
    is_host_full = host_bytes > machine.host.free_bytes - margin_bytes(machine.host)
    return tuple(
        share
        for share in shares
        if (
            is_host_full and share.device.kind is DeviceKind.CPU
            if share.device.shares_host
            else share.n_bytes and share.n_bytes > share.device.free_bytes - margin_bytes(share.device)
        )
    )


def decode_work(shares: Sequence[Share], placement: Placement) -> Work:
    work = _work(shares, placement, {share.device.name: share.work_bytes for share in shares}, n_tokens=1)
    return replace(
        work,
        attention_bytes=sum(share.attention_bytes for share in shares),
        attention=sum((share.attention for share in shares), start=NO_WORK),
    )


def prefill_work(profile: ModelProfile, shares: Sequence[Share], placement: Placement) -> Work:
    """Return the work of one token of a prompt: many tokens together read all experts. The output is not in that of the
    processor, for only the last token of a prompt has one. The processor computes its products, and its share of what
    is between them and of attention; with the cache there all of that. A GPU that computes with the processor's weights
    leaves it attention over a cache that was put there."""
    n_tokens, output = n_at_once(profile), profile.layers[-1]
    host = next(share for share in shares if share.device.kind is DeviceKind.CPU)
    has_host_output = host.has_output
    host_bytes = host.weight_bytes - profile.input_bytes
    host_operations = host.operations - (output.operations if has_host_output else 0)
    read = {share.device.name: share.weight_bytes for share in shares} | {host.device.name: host_bytes}
    layers_only = [
        replace(each, weights=without(each.weights, output.weights)) if each.has_output else each for each in shares
    ]
    work = _work(layers_only, placement, read, n_tokens=n_tokens)
    work = replace(work, operations={**work.operations, host.device.name: host_operations})
    if not profile.prompt_operations:
        attention: dict[str, float] = {}
        by_kind = {}
    else:
        n_all = sum(layer.operations for layer in profile.layers[:-1])
        on_host = host_operations / n_all if n_all else 0.0
        end = len(profile.layers) - placement.n_on_gpus
        attending = sum(
            layer.operations
            for index, layer in enumerate(profile.layers[:-1])
            if index < end or (placement.has_cache_on_host and layer.cache_bytes)
        )
        attending = attending / n_all if n_all else 0.0
        attention = {kind: attending * n for kind, n in profile.prompt_operations.items() if kind in ATTENTION_KINDS}
        elements = {kind: on_host * n for kind, n in profile.prompt_operations.items() if kind == ELEMENTS}
        by_kind = {**operations_of(work.weights.get(host.device.name, {})), **elements, **attention}
    if placement.prompt_gpu:
        fetched_bytes: float = fetched_weight_bytes(profile, host)
        if not placement.has_cache_on_host:
            attention, fetched_bytes = {}, fetched_bytes + host.cache_read_bytes
        return replace(work, host_operations=attention, prompt_gpu=placement.prompt_gpu, fetched_bytes=fetched_bytes)
    return replace(work, host_operations=by_kind) if any(by_kind.values()) else work


def fetched_weight_bytes(profile: ModelProfile, host: Share) -> int:
    """Return the weights of the processor's share that a GPU fetches for each micro-batch of a prompt."""
    output_bytes = profile.layers[-1].weight_bytes if host.has_output else 0
    return host.weight_bytes - profile.input_bytes - output_bytes


def seconds_of(
    profile: ModelProfile, machine: Machine, rates: Rates, shares: Sequence[Share], placement: Placement
) -> tuple[float, float]:
    """Return the seconds of a token of a prompt, and of one of an answer."""
    prompt_s = prefill_s(prefill_work(profile, shares, placement), rates, machine.host.name, n_at_once(profile))
    return prompt_s, decode_s(decode_work(shares, placement), rates)


def _work(shares: Sequence[Share], placement: Placement, read_bytes: Mapping[str, float], *, n_tokens: int) -> Work:
    return Work(
        read_bytes=read_bytes,
        operations={share.device.name: share.operations for share in shares},
        weights={
            share.device.name: in_layout(share.weights, share.run_config.layout, n_tokens)
            for share in shares
            if share.weights
        },
        is_fused=any(share.run_config.is_fused for share in shares),
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
        compute_bytes=compute_bytes,
        host_bytes=profile.host_bytes if is_host else 0,
        beside_bytes=(profile.beside_host_bytes if is_host else 0) + (profile.beside_bytes if has_output else 0),
        read_bytes=weights_read + cache_read,
        operations=sum(part.operations for part in parts),
        work_bytes=weights_read + beside,
        attention_bytes=sum(part.attention_bytes for part in parts) if is_host else 0.0,
        attention=sum((part.attention for part in parts), start=NO_WORK) if is_host else NO_WORK,
        weights=summed(*(part.weights for part in parts)),
        run_config=profile.run_config if is_host else replace(profile.run_config, layout=AS_IN_FILE),
        has_output=has_output,
        cache_read_bytes=cache_read,
    )


def _left(layer: Layer, *, is_split: bool, has_cache_on_host: bool) -> Layer:
    left = Layer()
    if is_split:
        left = Layer(
            weight_bytes=layer.movable_bytes,
            read_bytes=layer.movable_read_bytes,
            operations=movable_operations(layer),
            unpacking_bytes=layer.movable_unpacking_bytes,
            weights=layer.movable_weights,
        )
    if not (has_cache_on_host and layer.cache_bytes):
        return left
    cached, n_read = layer.cache_bytes, layer.cache_read_bytes
    return replace(
        left,
        cache_bytes=cached,
        cache_read_bytes=n_read,
        attention_bytes=layer.attention_bytes,
        attention=layer.attention,
    )


def movable_operations(layer: Layer) -> float:
    return layer.operations * (layer.movable_read_bytes / layer.read_bytes if layer.read_bytes else 0.0)


def _rest(layer: Layer, left: Layer) -> Layer:
    return Layer(
        weight_bytes=layer.weight_bytes - left.weight_bytes,
        cache_bytes=layer.cache_bytes - left.cache_bytes,
        read_bytes=layer.read_bytes - left.read_bytes,
        cache_read_bytes=layer.cache_read_bytes - left.cache_read_bytes,
        operations=layer.operations - left.operations,
        unpacking_bytes=layer.unpacking_bytes - left.unpacking_bytes,
        attention_bytes=layer.attention_bytes - left.attention_bytes,
        attention=NO_WORK if left.attention.n_weights else layer.attention,
        weights=without(layer.weights, left.weights) if left.weights else layer.weights,
    )
