"""The search for a placement: of all that fit, the one with the fastest answers; and the bytes and work of each device
under a placement. Pure.

The last layers go to GPUs, the output first; of layers there, the experts (or the feed-forward of a dense model) may
stay with the processor, those of the first ones first, and so may the cache of all. For every order of GPUs, with the
cache on GPUs and on the host, all numbers of such layers and of layers on GPUs are tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from offload.devices.machine import Device, DeviceKind, Machine
from offload.footprint.model import DEFAULT_RUN, ModelProfile, RunConfig
from offload.footprint.weights import Layer
from offload.speed.cost_model import Rates, Work, reading_by_device
from offload.speed.type_costs import AS_IN_FILE, NO_WORK, TypeWork, Weights, bytes_of, in_layout, summed, without

_MARGIN_SHARE, _LEAST_MARGIN_BYTES, _MOST_MARGIN_BYTES = 0.04, 256 << 20, 1 << 30
_HOST_MARGIN_BYTES = 512 << 20
_CROSSINGS_OF_A_MOVED_PART = 2  # to what stayed with the processor, and back
_MOST_GPUS_IN_ANY_CHOICE = 3

Bytes = NDArray[np.float64]
Counts = NDArray[np.int64]
_HostSeconds = tuple[list[float], list[float], list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`gpu_layers` by GPU in the order of `gpus`, the output counted as one; the rest is the processor's. `gpus` are
    names; the first takes the last layers, the next those before. The layers before `n_split` keep their movable part
    with the processor even when they are on a GPU, and where it `has_cache_on_host` all of them their cache. A token
    crosses between devices `n_crossings` times and takes `token_s`."""

    gpus: tuple[str, ...]
    gpu_layers: tuple[int, ...]
    n_split: int
    n_crossings: int
    token_s: float
    has_cache_on_host: bool = False

    @property
    def n_on_gpus(self) -> int:  # the output counted
        return sum(self.gpu_layers)


ALL_ON_HOST = Placement(gpus=(), gpu_layers=(), n_split=0, n_crossings=0, token_s=0.0)  # without a speed


@dataclass(frozen=True, slots=True)
class _Tables:
    """For every number of split layers (rows) and of layers on GPUs (columns): bytes there, read there, left behind.
    `host_s` is what the processor takes for what it keeps; `n_split` counts the layers on GPUs that are split, and
    `n_moved` what stays behind of layers there."""

    has_cache_on_host: bool
    on_gpu: Bytes
    read_on_gpu: Bytes
    on_host: Bytes
    host_s: Bytes
    n_split: Bytes
    n_moved: Bytes


def margin_bytes(device: Device) -> int:
    """Return the bytes that a plan leaves free on a device, for drivers, displays and other programs."""
    if device.shares_host:
        return _HOST_MARGIN_BYTES
    return min(max(_LEAST_MARGIN_BYTES, int(device.total_bytes * _MARGIN_SHARE)), _MOST_MARGIN_BYTES)


def place(profile: ModelProfile, machine: Machine, rates: Rates) -> Placement | None:
    """Return the fastest placement that fits into free memory less the margins, None where none does."""
    orders = _orders(machine.gpus, rates)
    host_s = _host_seconds(profile, machine, rates)
    places = (False, True) if machine.gpus else (False,)
    found = [
        _best(profile, machine, rates, tables, order)
        for tables in (_tables(profile, host_s, has_cache_on_host=is_there) for is_there in places)
        for order in orders
        if order or not tables.has_cache_on_host
    ]
    return min((placement for placement in found if placement), key=lambda placement: placement.token_s, default=None)


def _orders(gpus: Sequence[Device], rates: Rates) -> list[tuple[Device, ...]]:
    """Return the orders in which GPUs may be filled, identical GPUs only once. The faster first, where there are few in
    every choice of them, and else each alone too; of two also the slower first, for a fast one may be too small for the
    last layers."""

    def pace(gpu: Device) -> float:
        return rates.seconds_per_byte[gpu.name]

    fastest = sorted(gpus, key=lambda gpu: (pace(gpu), -gpu.free_bytes))  # of those alike, the one with the most room
    if len(gpus) <= _MOST_GPUS_IN_ANY_CHOICE:
        orders = [order for n_gpus in range(len(gpus) + 1) for order in combinations(fastest, n_gpus)]
        orders += [(slower, faster) for faster, slower in combinations(fastest, 2)]
    else:
        orders = [tuple(fastest[:n_gpus]) for n_gpus in range(len(gpus) + 1)] + [(gpu,) for gpu in fastest]
    different: dict[object, tuple[Device, ...]] = {}
    for order in orders:
        key = tuple((pace(gpu), gpu.free_bytes, gpu.total_bytes, gpu.kind) for gpu in order)
        different.setdefault(key, order)
    return list(different.values())


def curve(profile: ModelProfile, machine: Machine, rates: Rates) -> tuple[float, ...]:
    """Return the time per token with 0, 1, 2 … layers on the fastest GPU, as if they fitted."""
    tables = _tables(profile, _host_seconds(profile, machine, rates), has_cache_on_host=False)
    gpu = min(machine.gpus, key=lambda device: rates.seconds_per_byte[device.name], default=None)
    if gpu is None:
        return (float(tables.host_s[0, 0]) + rates.overhead_s(len(profile.layers)),)
    reading_s = tables.read_on_gpu[0] * rates.seconds_per_byte[gpu.name] + tables.host_s[0]
    n_layers = len(profile.layers)
    is_mixed = np.array([0 < count < n_layers for count in range(n_layers + 1)])
    return tuple((reading_s + is_mixed * rates.crossing_s + rates.overhead_s(n_layers)).tolist())


def _tables(profile: ModelProfile, host_s: _HostSeconds, *, has_cache_on_host: bool) -> _Tables:
    layers = profile.layers
    n_rows = len(layers) if any(layer.movable_bytes for layer in layers) else 1  # the output has nothing to move
    backwards = layers[::-1]
    is_split = (np.arange(len(layers))[::-1][None, :] < np.arange(n_rows)[:, None]).astype(np.float64)

    def column(values: Sequence[float]) -> Bytes:
        return np.array(values, np.float64)[None, :]

    cache = column([layer.cache_bytes for layer in backwards])
    cache_read = column([layer.cache_read_bytes for layer in backwards])
    split = is_split * column([layer.movable_bytes for layer in backwards])
    split_read = is_split * column([layer.movable_read_bytes for layer in backwards])
    is_cached = (cache > 0) & has_cache_on_host
    moved_cache, attended = cache * is_cached, cache_read * is_cached
    whole = column([layer.weight_bytes for layer in backwards]) + cache
    read = column([layer.read_bytes for layer in backwards]) + cache_read
    on_gpu, read_on_gpu = _summed(whole - split - moved_cache), _summed(read - split_read - attended)
    on_host = whole.sum() - on_gpu + profile.input_bytes  # before what a tied output adds on its device
    on_gpu[:, 1:] += profile.tied_bytes + profile.beside_bytes
    on_host[:, 0] += profile.beside_bytes
    n_split, n_cached = _summed(is_split * (split > 0)), _summed(is_cached.astype(np.float64))
    has_host_work = (np.arange(len(layers) + 1)[None, :] < len(layers)) | (n_split + n_cached > 0)
    on_host += profile.host_bytes + profile.beside_host_bytes + has_host_work * profile.compute_bytes
    attending_s, working_s, movable_s = (column(values) for values in host_s)
    left_s = is_split * movable_s + attending_s * is_cached
    left_on_host_s = working_s.sum() - _summed(working_s - left_s)
    return _Tables(has_cache_on_host, on_gpu, read_on_gpu, on_host, left_on_host_s, n_split, n_split + n_cached)


def _host_seconds(profile: ModelProfile, machine: Machine, rates: Rates) -> _HostSeconds:
    """Return the seconds of each layer on the processor, the last first: of attention, of all, of what can be split."""
    host, run_config = machine.host.name, profile.run_config
    model_bytes = sum(bytes_of(layer.weights) for layer in profile.layers)

    # Most layers are alike, and a recommendation places hundreds of models: to price each took a third of its time.
    @cache
    def reading_s(weights: tuple[tuple[str, TypeWork], ...], n_bytes: float) -> float:
        used = {host: in_layout(dict(weights), run_config.layout, 1)}
        return reading_by_device(Work(read_bytes={host: n_bytes}, weights=used), rates, model_bytes)[host]

    attending_s, working_s, movable_s = [], [], []
    for layer in reversed(profile.layers):
        attention_s = rates.attention_s(
            host,
            Work(
                read_bytes={},
                attention_bytes=layer.attention_bytes,
                attention=layer.attention,
                is_fused=run_config.is_fused,
            ),
        )
        attending_s.append(attention_s)
        working_s.append(reading_s(tuple(layer.weights.items()), layer.work_bytes) + attention_s)
        movable_s.append(reading_s(tuple(layer.movable_weights.items()), layer.movable_work_bytes))
    return attending_s, working_s, movable_s


def _summed(values: Bytes) -> Bytes:  # of the first 0, 1, 2 … columns
    sums = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


@dataclass(frozen=True, slots=True)
class _Fill:
    """One GPU takes the layers from `start` to `end`, counted from the last; by split layers and layers on GPUs."""

    gpu: Device
    start: Counts
    end: Counts

    @property
    def is_used(self) -> NDArray[np.bool_]:
        return self.end > self.start

    def sums(self, table: Bytes) -> Bytes:
        return np.take_along_axis(table, self.end, axis=1) - np.take_along_axis(table, self.start, axis=1)


_Filling = tuple[list[_Fill], NDArray[np.bool_]]  # the share of each GPU, and whether it is complete for a column


def _fill_in_turn(profile: ModelProfile, tables: _Tables, gpus: Sequence[Device]) -> _Filling:
    """Fill one GPU after the other, each as far as its memory goes."""
    counts = _counts(tables)
    edge = np.zeros((counts.shape[0], 1), np.int64)
    fills = []
    for gpu in gpus:
        more = tables.on_gpu - np.take_along_axis(tables.on_gpu, edge, axis=1)
        filled = np.maximum(edge, (more <= _room(profile, gpu, tables)).sum(axis=1, keepdims=True) - 1)
        fills.append(_Fill(gpu, np.minimum(counts, edge), np.minimum(counts, filled)))
        edge = filled
    return fills, counts <= edge


def _fill_slower_first(profile: ModelProfile, tables: _Tables, slower: Device, faster: Device) -> _Filling:
    """Give the slower GPU, which takes the last layers, only what does not fit on the faster one."""
    counts = _counts(tables)
    wanted = tables.on_gpu - _room(profile, faster, tables)
    edges = [np.searchsorted(row, least) for row, least in zip(tables.on_gpu, wanted, strict=True)]
    edge = np.minimum(np.array(edges), counts)
    most = (tables.on_gpu <= _room(profile, slower, tables)).sum(axis=1, keepdims=True) - 1
    return [_Fill(slower, np.zeros_like(counts), edge), _Fill(faster, edge, counts)], edge <= np.maximum(most, 0)


def _room(profile: ModelProfile, gpu: Device, tables: _Tables) -> int:
    return gpu.free_bytes - margin_bytes(gpu) - _computing(profile, tables)


def _computing(profile: ModelProfile, tables: _Tables) -> int:
    return profile.unattending_bytes if tables.has_cache_on_host else profile.compute_bytes


def _counts(tables: _Tables) -> Counts:
    return np.broadcast_to(np.arange(tables.on_gpu.shape[1]), tables.on_gpu.shape)


def _best(
    profile: ModelProfile, machine: Machine, rates: Rates, tables: _Tables, gpus: Sequence[Device]
) -> Placement | None:
    """Return the fastest placement on `gpus`, filled in this order, or without any on the processor."""
    is_reversed = len(gpus) == 2 and rates.seconds_per_byte[gpus[0].name] > rates.seconds_per_byte[gpus[1].name]
    filling = _fill_slower_first(profile, tables, *gpus) if is_reversed else _fill_in_turn(profile, tables, gpus)
    (fills, has_room), has_host_layers = filling, _counts(tables) < len(profile.layers)
    n_devices = sum((fill.is_used for fill in fills), start=has_host_layers.astype(np.int64))
    n_crossings = np.maximum(0, n_devices - 1) + _CROSSINGS_OF_A_MOVED_PART * tables.n_moved
    reading_s = [fill.sums(tables.read_on_gpu) * rates.seconds_per_byte[fill.gpu.name] for fill in fills]
    token_s = sum(reading_s, start=tables.host_s) + n_crossings * rates.crossing_s
    token_s = token_s + rates.overhead_s(len(profile.layers))
    token_s = token_s + sum(fill.is_used * rates.latency_s.get(fill.gpu.name, 0.0) for fill in fills)
    # the processor's memory has the rest, and what GPUs take that share it
    shared = [fill for fill in fills if fill.gpu.shares_host]
    taken = [fill.sums(tables.on_gpu) + fill.is_used * _computing(profile, tables) for fill in shared]
    is_held = sum(taken, start=tables.on_host) <= machine.host.free_bytes - margin_bytes(machine.host)
    token_s = np.where(has_room & is_held, token_s, np.inf)
    row, column = np.unravel_index(np.argmin(token_s), token_s.shape)
    if not np.isfinite(token_s[row, column]):
        return None
    return Placement(
        gpus=tuple(gpu.name for gpu in gpus),
        gpu_layers=tuple(int((fill.end - fill.start)[row, column]) for fill in fills),
        n_split=int(row) if tables.n_split[row, column] else 0,
        n_crossings=int(n_crossings[row, column]),
        token_s=float(token_s[row, column]),
        has_cache_on_host=bool(tables.has_cache_on_host and column),
    )


_OPERATIONS_PER_CACHED_BYTE = 4  # of an F16 cache whose keys and values are shared by four heads


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
                attending = _OPERATIONS_PER_CACHED_BYTE * left.cache_read_bytes
                parts[host].append(replace(left, operations=left.operations + attending))
        end -= count
    parts[host] += profile.layers[:end]
    last = next((name for name, count in counts.items() if count), host)
    if last != host:
        parts[last].append(Layer(weight_bytes=profile.tied_bytes))
    shares = []
    for device in (*machine.gpus, machine.host):
        has_output = device.name == last
        compute_bytes = profile.compute_bytes if has_output else profile.inner_compute_bytes
        if placement.has_cache_on_host and device.kind is not DeviceKind.CPU:
            compute_bytes = min(compute_bytes, profile.unattending_bytes)
        n_layers = end if device is machine.host else counts.get(device.name, 0)
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
            else share.n_layers and share.n_bytes > share.device.free_bytes - margin_bytes(share.device)
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
    """Return the work of one token of a prompt: many tokens together read all experts. The processor computes its share
    of each kind of operations; the output is not in them, for only the last token of a prompt has one."""
    n_ubatch, output = profile.run_config.n_ubatch, profile.layers[-1].weights
    read = {share.device.name: share.weight_bytes for share in shares}
    layers_only = [replace(each, weights=without(each.weights, output)) if each.has_output else each for each in shares]
    work = _work(layers_only, placement, read, n_tokens=n_ubatch)
    n_all = sum(layer.operations for layer in profile.layers[:-1])
    n_on_gpus = sum(share.operations for share in shares if share.device.kind is not DeviceKind.CPU)
    if any(share.n_layers for share in shares if share.device.kind is not DeviceKind.CPU):
        n_on_gpus -= profile.layers[-1].operations
    on_host = 1 - n_on_gpus / n_all if n_all else 0.0
    if on_host <= 0:
        return work
    return replace(work, host_operations={kind: on_host * n for kind, n in profile.prompt_operations.items()})


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
        compute_bytes=compute_bytes if parts else 0,
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
    )


def _left(layer: Layer, *, is_split: bool, has_cache_on_host: bool) -> Layer:
    left = Layer()
    if is_split:
        share = layer.movable_read_bytes / layer.read_bytes if layer.read_bytes else 0.0
        left = Layer(
            weight_bytes=layer.movable_bytes,
            read_bytes=layer.movable_read_bytes,
            operations=layer.operations * share,
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
