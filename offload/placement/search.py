"""The search for a placement: of all that fit, the one with the fastest answers. Pure.

The last layers go to GPUs, the output first; of layers there, the experts (or the feed-forward of a dense model) may
stay with the processor, those of the first ones first, and so may the cache of all. For every order of GPUs, with the
cache on GPUs and on the host, all numbers of such layers and of layers on GPUs are tried. Independent of verdicts and
of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from offload.devices.machine import Device, Machine
from offload.footprint.profile import ModelProfile
from offload.speed.cost_model import Rates

_MARGIN_SHARE, _LEAST_MARGIN_BYTES, _MOST_MARGIN_BYTES = 0.04, 256 << 20, 1 << 30
_HOST_MARGIN_BYTES = 512 << 20
_CROSSINGS_OF_A_MOVED_PART = 2  # to what stayed with the processor, and back
_MOST_GPUS_IN_ANY_CHOICE = 3

Bytes = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`gpu_layers` by GPU in the order of `gpus`, the output counted as one; the rest is the processor's.

    `gpus` are names; the first takes the last layers, the next those before. The layers before `n_split` keep their
    movable part with the processor even when they are on a GPU, and where it `has_cache_on_host` all of them their
    cache. A token crosses between devices `n_crossings` times and takes `token_s`.
    """

    gpus: tuple[str, ...]
    gpu_layers: tuple[int, ...]
    n_split: int
    n_crossings: int
    token_s: float
    has_cache_on_host: bool = False

    @property
    def n_on_gpus(self) -> int:
        """Layers on GPUs, the output counted."""
        return sum(self.gpu_layers)


ALL_ON_HOST = Placement(gpus=(), gpu_layers=(), n_split=0, n_crossings=0, token_s=0.0)  # without a speed


@dataclass(frozen=True, slots=True)
class _Tables:
    """For every number of split layers (rows) and of layers on GPUs (columns): bytes there, read there, left behind.

    `host_s` is what the processor takes for what it keeps; `n_split` counts the layers on GPUs that are split, and
    `n_moved` what stays behind of layers there.
    """

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
    found = [
        _best(profile, machine, rates, tables, order)
        for tables in (_tables(profile, machine, rates, has_cache_on_host=is_there) for is_there in (False, True))
        for order in orders
        if order or not tables.has_cache_on_host
    ]
    return min((placement for placement in found if placement), key=lambda placement: placement.token_s, default=None)


def _orders(gpus: Sequence[Device], rates: Rates) -> list[tuple[Device, ...]]:
    """Return the orders in which GPUs may be filled, identical GPUs only once.

    The faster first, where there are few in every choice of them, and else each alone too; of two also the slower
    first, for a fast one may be too small for the last layers.
    """

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
    tables = _tables(profile, machine, rates, has_cache_on_host=False)
    gpu = min(machine.gpus, key=lambda device: rates.seconds_per_byte[device.name], default=None)
    if gpu is None:
        return (float(tables.host_s[0, 0]) + rates.overhead_s(len(profile.layers)),)
    reading_s = tables.read_on_gpu[0] * rates.seconds_per_byte[gpu.name] + tables.host_s[0]
    n_layers = len(profile.layers)
    is_mixed = np.array([0 < count < n_layers for count in range(n_layers + 1)])
    return tuple((reading_s + is_mixed * rates.crossing_s + rates.overhead_s(n_layers)).tolist())


def _tables(profile: ModelProfile, machine: Machine, rates: Rates, *, has_cache_on_host: bool) -> _Tables:
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
    pace = rates.seconds_per_byte[machine.host.name]
    attending_s = column([layer.attention_bytes * rates.attention_seconds_per_byte for layer in backwards])
    working_s = column([layer.work_bytes * pace for layer in backwards]) + attending_s
    left_s = is_split * column([layer.movable_work_bytes * pace for layer in backwards])
    left_s = left_s + attending_s * is_cached
    host_s = working_s.sum() - _summed(working_s - left_s)
    return _Tables(has_cache_on_host, on_gpu, read_on_gpu, on_host, host_s, n_split, n_split + n_cached)


def _summed(values: Bytes) -> Bytes:
    """Return the sums of the first 0, 1, 2 … columns."""
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
        """Return the sums of `table` over the layers of this GPU."""
        return np.take_along_axis(table, self.end, axis=1) - np.take_along_axis(table, self.start, axis=1)


@dataclass(frozen=True, slots=True)
class _Filling:
    """The share of each GPU, and whether it is complete for a column."""

    fills: tuple[_Fill, ...]
    has_room: NDArray[np.bool_]


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
    return _Filling(tuple(fills), counts <= edge)


def _fill_slower_first(profile: ModelProfile, tables: _Tables, slower: Device, faster: Device) -> _Filling:
    """Give the slower GPU, which takes the last layers, only what does not fit on the faster one."""
    counts = _counts(tables)
    wanted = tables.on_gpu - _room(profile, faster, tables)
    edges = [np.searchsorted(row, least) for row, least in zip(tables.on_gpu, wanted, strict=True)]
    edge = np.minimum(np.array(edges), counts)
    most = (tables.on_gpu <= _room(profile, slower, tables)).sum(axis=1, keepdims=True) - 1
    fills = (_Fill(slower, np.zeros_like(counts), edge), _Fill(faster, edge, counts))
    return _Filling(fills, edge <= np.maximum(most, 0))


def _room(profile: ModelProfile, gpu: Device, tables: _Tables) -> int:
    return gpu.free_bytes - margin_bytes(gpu) - _computing(profile, tables)


def _computing(profile: ModelProfile, tables: _Tables) -> int:
    return profile.unattending_bytes if tables.has_cache_on_host else profile.compute_bytes


def _counts(tables: _Tables) -> Counts:
    """Return the layers on GPUs of each column, in every row."""
    return np.broadcast_to(np.arange(tables.on_gpu.shape[1]), tables.on_gpu.shape)


def _best(
    profile: ModelProfile, machine: Machine, rates: Rates, tables: _Tables, gpus: Sequence[Device]
) -> Placement | None:
    """Return the fastest placement on `gpus`, filled in this order, or without any on the processor."""
    is_reversed = len(gpus) == 2 and rates.seconds_per_byte[gpus[0].name] > rates.seconds_per_byte[gpus[1].name]
    filling = _fill_slower_first(profile, tables, *gpus) if is_reversed else _fill_in_turn(profile, tables, gpus)
    fills, has_host_layers = filling.fills, _counts(tables) < len(profile.layers)
    n_devices = sum((fill.is_used for fill in fills), start=has_host_layers.astype(np.int64))
    n_crossings = np.maximum(0, n_devices - 1) + _CROSSINGS_OF_A_MOVED_PART * tables.n_moved
    reading_s = [fill.sums(tables.read_on_gpu) * rates.seconds_per_byte[fill.gpu.name] for fill in fills]
    token_s = sum(reading_s, start=tables.host_s) + n_crossings * rates.crossing_s
    token_s = token_s + rates.overhead_s(len(profile.layers))
    token_s = token_s + sum(fill.is_used * rates.latency_s.get(fill.gpu.name, 0.0) for fill in fills)
    token_s = np.where(filling.has_room & _is_held(profile, machine, tables, fills), token_s, np.inf)
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


def _is_held(profile: ModelProfile, machine: Machine, tables: _Tables, fills: Sequence[_Fill]) -> NDArray[np.bool_]:
    """Return whether the processor's memory has room for the rest, and for what GPUs take that share it."""
    shared = [
        fill.sums(tables.on_gpu) + fill.is_used * _computing(profile, tables) for fill in fills if fill.gpu.shares_host
    ]
    on_host = sum(shared, start=tables.on_host)
    return np.asarray(on_host <= machine.host.free_bytes - margin_bytes(machine.host))
