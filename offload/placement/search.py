"""The search for a placement: of all that fit, the one with the fastest typical turn, prompt and answer together. Pure.

The last layers go to GPUs, the output first; of layers there, the experts (or the feed-forward of a dense model) may
stay with the processor, those of the first ones first, and so may the cache of all. For every order of GPUs, with the
cache on GPUs and on the host, all numbers of such layers and of layers on GPUs are tried. Prompts of what stays with
the processor are computed there, or by a GPU that fetches the weights for each micro-batch: the first of llama.cpp's
list, even one without a layer, where it has room for what it fetches. Source: `ggml_backend_sched_backend_id_from_cur`
in ggml/src/ggml-backend.cpp, and `make_cpu_buft_list` in src/llama-model.cpp, as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from offload.devices.machine import Device, Machine
from offload.footprint.model import ModelProfile
from offload.placement.shares import (
    ATTENTION_KINDS,
    Placement,
    allocate,
    as_in_file,
    has_host_memory,
    margin_bytes,
    movable_operations,
    n_at_once,
    overfull,
    seconds_of,
    turn_of,
)
from offload.speed.cost_model import (
    ELEMENTS,
    Rates,
    Work,
    gpu_operations_s,
    host_products_s,
    reading_by_device,
)
from offload.speed.type_costs import AS_IN_FILE, TypeWork, bytes_of, in_layout

_CROSSINGS_OF_A_MOVED_PART = 2  # to what stayed with the processor, and back
_MOST_GPUS_IN_ANY_CHOICE = 3
_BESIDE_PRODUCTS = (*ATTENTION_KINDS, ELEMENTS)
_ROUNDED_BYTES = 1.0  # what is left of sums and differences of all layers

Bytes = NDArray[np.float64]
Counts = NDArray[np.int64]
_HostSeconds = tuple[list[float], list[float], list[float]]


@dataclass(frozen=True, slots=True)
class _Tables:
    """For every number of split layers (rows) and of layers on GPUs (columns): bytes there, read there, left behind.
    `host_s` is what the processor takes for what it keeps; `n_split` counts the layers on GPUs that are split, and
    `n_moved` what stays behind of layers there. Of a token of a prompt: the weights of GPUs and of the processor, the
    cache that is fetched with those, the operations of each, what they take, and attention on the processor."""

    has_cache_on_host: bool
    on_gpu: Bytes
    read_on_gpu: Bytes
    on_host: Bytes
    host_s: Bytes
    n_split: Bytes
    n_moved: Bytes
    weights_on_gpu: Bytes
    weights_on_host: Bytes
    fetched: Bytes
    host_operations: Bytes
    host_prompt_s: Bytes
    host_attending_s: Bytes
    gpu_prompt_s: Mapping[str, Bytes]  # by GPU


def place(profile: ModelProfile, machine: Machine, rates: Rates) -> Placement | None:
    """Return the placement with the fastest turn that fits into free memory less the margins, None where none does."""
    found = []
    for is_packed, orders in _orders_by_layout(machine, rates).items():
        ours = profile if is_packed else replace(profile, run_config=as_in_file(profile.run_config))
        host_s = _host_seconds(ours, machine, rates)
        for has_cache_on_host in (False, True):
            orders_here = [order for order in orders if order or not has_cache_on_host]
            if orders_here:
                tables = _tables(ours, host_s, machine, rates, has_cache_on_host=has_cache_on_host)
                found += [_best(ours, machine, rates, tables, order) for order in orders_here]
    return min((placement for placement in found if placement), key=lambda placement: placement.turn_s, default=None)


def _orders_by_layout(machine: Machine, rates: Rates) -> dict[bool, list[tuple[Device, ...]]]:
    """Return the orders of GPUs, by whether the processor's weights may be repacked beside them."""
    found: dict[bool, list[tuple[Device, ...]]] = {}
    for order in _orders(machine.gpus, rates):
        found.setdefault(not any(map(has_host_memory, order)), []).append(order)
    return found


def with_prompts(profile: ModelProfile, machine: Machine, rates: Rates, placement: Placement) -> Placement:
    """Return `placement` with its seconds, and with prompts where they are computed faster: by the processor, or by the
    GPU that llama.cpp takes for it. A GPU without layers needs room for what it fetches."""
    if placement.n_on_gpus:
        lent = [replace(placement, prompt_gpu=name) for name in (_lender(placement, machine),) if name]
    else:
        alone = [replace(placement, gpus=(gpu.name,), gpu_layers=(0,), prompt_gpu=gpu.name) for gpu in machine.gpus]
        lent = [each for gpu, each in zip(machine.gpus, alone, strict=True) if not gpu.is_remote]
        lent = [each for each in lent if not overfull(allocate(profile, machine, each), machine)]
    timed = []
    for each in (replace(placement, prompt_gpu=""), *lent):
        shares = allocate(profile, machine, each)
        prompt_s, token_s = seconds_of(profile, machine, rates, shares, each)
        turn_s = turn_of(profile).seconds(prompt_s, token_s)
        timed.append(replace(each, token_s=token_s, prompt_s=prompt_s, turn_s=turn_s))
    return min(timed, key=lambda each: each.turn_s)


def _lender(placement: Placement, machine: Machine) -> str:
    """Return the GPU of `placement` that llama.cpp takes for prompts of the processor's layers, "" without one: the one
    that it lists first, which has the earliest layers. GPUs of other machines fetch nothing."""
    is_remote = {gpu.name: gpu.is_remote for gpu in machine.gpus}
    return next((name for name in reversed(placement.layers_by_gpu) if not is_remote[name]), "")


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
    tables = _tables(profile, _host_seconds(profile, machine, rates), machine, rates, has_cache_on_host=False)
    gpu = min(machine.gpus, key=lambda device: rates.seconds_per_byte[device.name], default=None)
    if gpu is None:
        return (float(tables.host_s[0, 0]) + rates.overhead_s(len(profile.layers)),)
    reading_s = tables.read_on_gpu[0] * rates.seconds_per_byte[gpu.name] + tables.host_s[0]
    n_layers = len(profile.layers)
    is_mixed = np.array([0 < count < n_layers for count in range(n_layers + 1)])
    return tuple((reading_s + is_mixed * rates.crossing_s + rates.overhead_s(n_layers)).tolist())


def _tables(
    profile: ModelProfile, host_s: _HostSeconds, machine: Machine, rates: Rates, *, has_cache_on_host: bool
) -> _Tables:
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

    # Of a token of a prompt: what the processor has of all is what no GPU has, and of layers there what is split.
    def left(whole: Bytes, moved: Bytes) -> Bytes:
        on_gpus = _summed(whole - is_split * moved)
        return float(whole.sum()) - on_gpus

    is_inner = column([0.0, *[1.0] * (len(layers) - 1)])  # of a prompt only the last token has an output
    weights, movable = (
        column([getattr(layer, name) for layer in backwards]) for name in ("weight_bytes", "movable_bytes")
    )
    weights_on_gpu = _summed(weights - is_split * movable)
    weights_on_gpu[:, 1:] += profile.tied_bytes
    operations = column([layer.operations for layer in backwards])
    moved_operations = column([movable_operations(layer) for layer in backwards])
    costs = _prompt_costs(profile, machine, rates)
    shares = is_inner * operations / max((is_inner * operations).sum(), 1e-9)
    moved_shares = shares * moved_operations / np.maximum(operations, 1e-9)
    is_attending = (
        shares * (column([layer.cache_bytes for layer in backwards]) > 0) if has_cache_on_host else 0 * shares
    )
    host_prompt_s = left(column(costs.host_s), column(costs.moved_host_s))
    host_prompt_s = host_prompt_s + costs.elements_s * left(shares, moved_shares)
    return _Tables(
        has_cache_on_host,
        on_gpu,
        read_on_gpu,
        on_host,
        left_on_host_s,
        n_split,
        n_split + n_cached,
        weights_on_gpu=weights_on_gpu,
        weights_on_host=left(weights, movable),
        fetched=left(is_inner * (weights + cache_read * (not has_cache_on_host)), movable),
        host_operations=left(is_inner * operations, moved_operations),
        host_prompt_s=host_prompt_s,
        host_attending_s=costs.attention_s * (shares.sum() - _summed(shares - is_attending)),
        gpu_prompt_s={
            name: _summed(column(whole_s) - is_split * column(moved_s))
            for name, (whole_s, moved_s) in costs.gpu_s.items()
        },
    )


@dataclass(frozen=True, slots=True)
class _PromptCosts:
    """Seconds for a token of a prompt, the last layer first: of products on the processor, of all and of what can be
    split, and on each GPU; and of the whole model between products, and attending, on the processor."""

    host_s: list[float]
    moved_host_s: list[float]
    gpu_s: dict[str, tuple[list[float], list[float]]]
    elements_s: float
    attention_s: float


def _prompt_costs(profile: ModelProfile, machine: Machine, rates: Rates) -> _PromptCosts:
    host, run_config, n_tokens = machine.host.name, profile.run_config, n_at_once(profile)
    beside = {kind: n for kind, n in profile.prompt_operations.items() if kind in _BESIDE_PRODUCTS}
    by_kind = rates.operations_s(host, Work(read_bytes={}, host_operations=beside), n_tokens)
    by_kind = {kind: rates.operation_factors.get(kind, 1.0) * each for kind, each in by_kind.items()}
    attention_s = sum(each for kind, each in by_kind.items() if kind in ATTENTION_KINDS)

    @cache
    def on_host_s(weights: tuple[tuple[str, TypeWork], ...], operations: float) -> float:
        if not beside:  # a profile without kinds
            return operations * rates.seconds_per_operation[host]
        return host_products_s(rates, host, in_layout(dict(weights), run_config.layout, n_tokens), n_tokens)

    @cache
    def on_gpu_s(name: str, weights: tuple[tuple[str, TypeWork], ...], operations: float) -> float:
        return gpu_operations_s(rates, name, in_layout(dict(weights), AS_IN_FILE, n_tokens), operations, n_tokens)

    output = profile.layers[-1]
    inner = [(tuple(each.weights.items()), each.operations) for each in reversed(profile.layers[:-1])]
    movable = [
        (tuple(each.movable_weights.items()), movable_operations(each)) for each in reversed(profile.layers[:-1])
    ]
    return _PromptCosts(
        host_s=[0.0, *(on_host_s(*each) for each in inner)],
        moved_host_s=[0.0, *(on_host_s(*each) for each in movable)],
        gpu_s={
            gpu.name: (
                [on_gpu_s(gpu.name, (), output.operations), *(on_gpu_s(gpu.name, *each) for each in inner)],
                [0.0, *(on_gpu_s(gpu.name, *each) for each in movable)],
            )
            for gpu in machine.gpus
        },
        elements_s=sum(by_kind.values()) - attention_s,
        attention_s=attention_s,
    )


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
    """Return the placement with the fastest turn on `gpus`, filled in this order, or without any on the processor."""
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
    overhead_s = rates.overhead_s(len(profile.layers)) + n_crossings * rates.crossing_s
    overhead_s = overhead_s + sum(fill.is_used * rates.latency_s.get(fill.gpu.name, 0.0) for fill in fills)
    found = _prompts(profile, machine, rates, tables, fills, taken, overhead_s / n_at_once(profile))
    turn_s = np.where(has_room & is_held, turn_of(profile).seconds(found.prompt_s, token_s), np.inf)
    row, column = np.unravel_index(np.argmin(turn_s), turn_s.shape)
    if not np.isfinite(turn_s[row, column]):
        return None
    lender = int(found.lender[row, column])
    return Placement(
        gpus=tuple(gpu.name for gpu in gpus),
        gpu_layers=tuple(int((fill.end - fill.start)[row, column]) for fill in fills),
        n_split=int(row) if tables.n_split[row, column] else 0,
        n_crossings=int(n_crossings[row, column]),
        token_s=float(token_s[row, column]),
        has_cache_on_host=bool(tables.has_cache_on_host and column),
        prompt_s=float(found.prompt_s[row, column]),
        turn_s=float(turn_s[row, column]),
        prompt_gpu=gpus[lender].name if lender >= 0 else "",
    )


@dataclass(frozen=True, slots=True)
class _Prompts:
    """The seconds of a token of a prompt, and the index of the GPU that computes with the processor's weights, -1 where
    none does; by split layers and layers on GPUs."""

    prompt_s: Bytes
    lender: Counts


def _prompts(
    profile: ModelProfile,
    machine: Machine,
    rates: Rates,
    tables: _Tables,
    fills: Sequence[_Fill],
    taken: Sequence[Bytes],
    overhead_s: Bytes,
) -> _Prompts:
    """Return how prompts are computed fastest. `taken` are the bytes that GPUs take of the processor's memory, those
    that share it in their order."""
    host, n_tokens = machine.host.name, n_at_once(profile)
    has_fetched = tables.fetched > _ROUNDED_BYTES
    on_gpus_s = np.zeros_like(tables.on_gpu)
    for fill in fills:
        reading_s = fill.sums(tables.weights_on_gpu) * rates.seconds_per_byte[fill.gpu.name] / n_tokens
        on_gpus_s = on_gpus_s + np.maximum(fill.sums(tables.gpu_prompt_s[fill.gpu.name]), reading_s)
    reading_s = tables.weights_on_host * rates.seconds_per_byte[host] / n_tokens
    own_s = np.maximum(tables.host_prompt_s + tables.host_attending_s, reading_s)
    lender = np.full(tables.on_gpu.shape, -1)
    is_free = np.ones_like(lender, dtype=bool)  # no GPU that comes before in llama.cpp's list is used
    counts = _counts(tables)
    is_alone = len(fills) == 1 and not tables.has_cache_on_host  # without layers there is no cache to put elsewhere
    shared_bytes = tables.on_host + sum(taken)
    for index, fill in reversed(list(enumerate(fills))):
        if fill.gpu.is_remote:
            continue
        may_lend = is_free & (fill.is_used | ((counts == 0) & is_alone)) & has_fetched
        lent_s = tables.fetched * rates.link_seconds_per_byte[fill.gpu.name] / n_tokens
        lent_s = lent_s + tables.host_operations * rates.seconds_per_operation[fill.gpu.name]
        lent_s = lent_s + (tables.host_attending_s if tables.has_cache_on_host else 0.0)
        n_bytes = np.where(
            fill.is_used,
            profile.fetching_compute_bytes(
                has_layers=True, has_output=not index, has_cache_on_host=tables.has_cache_on_host
            ),
            profile.fetching_compute_bytes(has_layers=False, has_output=False, has_cache_on_host=False),
        )
        if fill.gpu.shares_host:
            more = n_bytes - fill.is_used * _computing(profile, tables)
            has_room = shared_bytes + more <= machine.host.free_bytes - margin_bytes(machine.host)
        else:
            has_room = fill.sums(tables.on_gpu) + n_bytes <= fill.gpu.free_bytes - margin_bytes(fill.gpu)
        is_lent = may_lend & has_room & (lent_s < own_s)
        lender, own_s = np.where(is_lent, index, lender), np.where(is_lent, lent_s, own_s)
        is_free &= ~fill.is_used
    return _Prompts(on_gpus_s + own_s + overhead_s + rates.prompt_token_s, lender)
