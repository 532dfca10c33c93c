"""Warnings of a plan, and remedies, each assessed like the plan itself, the fastest first. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from offload.advice.vllm import checkpoint_of, cluster_for, vllm_command
from offload.devices.machine import Device, DeviceKind, Machine
from offload.footprint.kv_cache import KvTypes, supports_kv_types
from offload.footprint.model import PlannedModel, RunConfig
from offload.format import format_bandwidth, format_memory
from offload.placement.assessment import Assessment, FitLevel, assess, choose
from offload.placement.shares import overfull
from offload.speed.cost_model import Rates, expected_rates
from quantizer.figures import format_figure, format_speed
from quantizer.gguf.tensor_types import FILE_TYPES

_FILE_TYPES = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "Q2_K")  # from the best to the smallest
_SMALLER_FILE = 0.95  # of the bytes: a smaller saving is no remedy
_FASTER = 1.05
_READING_TPS = 5.0  # below reading speed, other machines are worth it
_SMALLER_KV = "q8_0"
_LEAST_N_CTX = 2048
_GPU_GIB = (6, 8, 12, 16, 24, 32, 48, 80)
_COMMON_GPU_BYTES_PER_S = 360e9  # an RTX 3060, for machines without a GPU
_GPU_SHARE = 0.97  # of a card's memory that is free on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The setting to change: another context, cache or file type; empty where it stays."""

    n_ctx: int = 0
    kv_type: str = ""
    file_type: str = ""


_NO_CHANGE = Change()


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do, the predicted speeds of answers, prompts and a typical turn (None where unknown), and what it costs.
    `change` is the same for programs; empty where the user has to buy or to join something."""

    what: str
    decode_tps: float | None
    cost: str
    verdict: FitLevel
    change: Change = _NO_CHANGE
    prefill_tps: float | None = None
    turn_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Case:
    """The assessment to improve, and the run configuration that was wanted."""

    model: PlannedModel
    wanted: RunConfig
    machine: Machine
    rates: Rates
    assessment: Assessment


def choice_summary(found: Assessment) -> str:
    """Return what was chosen for a model that runs: 20 of 33 layers fit, micro-batches of 2,048."""
    return f"{fit_summary(found)}, micro-batches of {found.profile.run_config.n_ubatch:,}"


def find_remedies(model: PlannedModel, wanted: RunConfig, rates: Rates, found: Assessment) -> tuple[Remedy, ...]:
    """Return the remedies for `found`, the best assessment of `model` as `wanted`; none where everything fits."""
    if found.verdict is FitLevel.FITS:
        return ()
    case = _Case(model, wanted, found.machine, rates, found)
    ways = [*_smaller_file(case), *_smaller_cache(case), *_shorter_context(case)]
    speeds = [found.decode_tps, *(way.decode_tps for way in ways)]
    if all((tps or 0.0) < _READING_TPS for tps in speeds):
        cluster = cluster_for(model, found.profile, found.machine)
        if cluster is not None:
            needs = "" if checkpoint_of(model) else "; of a GGUF vLLM takes one file only, with vllm-gguf-plugin"
            joined = ", joined with `ray start`" if cluster.n_machines > 1 else ""
            cost = f"{cluster}{joined}{needs}; clients then use http://HOST:8000/v1"
            ways.append(Remedy(vllm_command(model, cluster, wanted.n_ctx), None, cost, FitLevel.FITS))
    ways += _larger_gpu(case)
    return tuple(sorted(ways, key=lambda remedy: remedy.turn_s or math.inf))


def _smaller_file(case: _Case) -> Iterator[Remedy]:
    """Yield the best type that fits whole; where none does, the best and the smallest that help."""
    fast_bytes = sum(gpu.free_bytes for gpu in case.machine.gpus) or case.machine.host.free_bytes
    helping: list[Remedy] = []
    for name in _FILE_TYPES:
        least_bytes = FILE_TYPES[name].base.bits_per_weight * case.model.n_parameters / 8
        if least_bytes > min(_SMALLER_FILE * case.model.n_bytes, case.machine.free_bytes):
            continue
        if helping and least_bytes > fast_bytes and name != _FILE_TYPES[-1]:
            continue  # neither the best that helps nor the smallest, and it cannot fit whole
        smaller = case.model.quantized(FILE_TYPES[name])
        if smaller.n_bytes > _SMALLER_FILE * case.model.n_bytes:
            continue
        found = choose(smaller, case.wanted, case.machine, case.rates)
        loss = FILE_TYPES[name].perplexity_loss
        cost = f"+{loss:.2f} on a perplexity of 6.23" if loss is not None else FILE_TYPES[name].description
        if _helps(found, case.assessment):
            what = f"quantize to {name} ({format_memory(smaller.n_bytes)})"
            helping.append(_remedy(what, found, cost, Change(file_type=name)))
            if found.verdict in (FitLevel.FITS, FitLevel.TIGHT):
                yield helping[-1]
                return
    yield from helping if len(helping) < 2 else (helping[0], helping[-1])


def _smaller_cache(case: _Case) -> Iterator[Remedy]:
    kv_types = KvTypes(_SMALLER_KV, _SMALLER_KV)
    if case.wanted.kv_types == KvTypes() and supports_kv_types(kv_types, case.model.kv_shape):
        wanted = replace(case.wanted, kv_types=kv_types, is_fused=True)
        found = choose(case.model, wanted, case.machine, case.rates)
        if _helps(found, case.assessment):
            what = f"--kv-type {_SMALLER_KV} ({format_memory(found.profile.cache_bytes)} of cache)"
            yield _remedy(what, found, "almost none", Change(kv_type=_SMALLER_KV))


def _shorter_context(case: _Case) -> Iterator[Remedy]:
    """Yield the longest context that helps, by halves."""
    n_ctx = case.wanted.n_ctx // 2
    while n_ctx >= _LEAST_N_CTX:
        wanted = replace(case.wanted, n_ctx=n_ctx, n_cells=n_ctx, depth=min(n_ctx, case.wanted.depth))
        found = choose(case.model, wanted, case.machine, case.rates)
        if _helps(found, case.assessment):
            yield _remedy(f"--ctx {n_ctx}", found, f"context of {n_ctx:,} tokens", Change(n_ctx=n_ctx))
            return
        n_ctx //= 2


def _larger_gpu(case: _Case) -> Iterator[Remedy]:
    """Yield the smallest usual card that holds everything, as fast as the fastest GPU of this machine."""
    known = [gpu.bytes_per_s for gpu in case.machine.gpus if gpu.bytes_per_s]
    bytes_per_s = max(known, default=_COMMON_GPU_BYTES_PER_S)
    is_unified = bool(case.machine.gpus) and all(gpu.kind is DeviceKind.INTEGRATED for gpu in case.machine.gpus)
    if is_unified:
        bytes_per_s = _COMMON_GPU_BYTES_PER_S
    least_bytes = case.assessment.profile.weight_bytes - case.assessment.profile.input_bytes
    for size in _GPU_GIB:
        if size << 30 < least_bytes:
            continue
        card = Device(
            name="new GPU",
            kind=DeviceKind.GPU,
            total_bytes=size << 30,
            free_bytes=int(_GPU_SHARE * (size << 30)),
            bytes_per_s=bytes_per_s,
        )
        machine = Machine(case.machine.host, (card,))
        found = assess(case.assessment.profile, machine, expected_rates(machine))
        if found.verdict in (FitLevel.FITS, FitLevel.TIGHT):
            what, cost = ("a machine with a GPU", "the machine") if is_unified else ("a GPU", "the card")
            assumed = f"assuming {format_bandwidth(bytes_per_s)} GB/s"
            yield _remedy(f"{what} of {size} GiB", found, f"{cost}; {assumed}")
            return


def _helps(found: Assessment, before: Assessment) -> bool:
    """Return whether a remedy helps: the model runs, or more of it fits, or a turn is faster."""
    if found.verdict.rank < before.verdict.rank:
        return True
    turn_s, before_s = found.turn_s, before.turn_s
    return turn_s is not None and before_s is not None and before_s >= _FASTER * turn_s


def _remedy(what: str, found: Assessment, cost: str, change: Change = _NO_CHANGE) -> Remedy:
    prefill_tps = found.speed.prefill_tps if found.speed else None
    return Remedy(what, found.decode_tps, cost, found.verdict, change, prefill_tps, found.turn_s)


def plan_warnings(found: Assessment, rates: Rates, n_ctx_train: int) -> Iterator[str]:
    """Yield the warnings of an assessment, the most important first; `n_ctx_train` 0 is unknown."""
    if found.verdict is FitLevel.WONT_RUN:
        yield _too_large(found)
    if found.verdict is FitLevel.PARTIAL:
        yield f"{fit_summary(found)}{_what_it_costs(found)}."
    if found.verdict is FitLevel.TIGHT:
        yield "It barely fits: loading may fail if another program uses more memory."
    yield from _device_warnings(found, rates)
    yield from _assumptions(found, rates)
    if found.placement is not None and (lazy_bytes := found.profile.lazy_bytes):
        what = f"Its per-layer embeddings, {format_memory(lazy_bytes)}, stay in the file"
        yield f"{what}: the rows that a text needs are read when it comes."
    if not found.profile.is_exact:
        yield "This architecture has further caches that are not counted: it needs more memory."
    if 0 < n_ctx_train < found.profile.run_config.n_ctx:
        yield f"It was trained on {n_ctx_train:,} tokens of context: answers beyond that may be nonsense."


def _device_warnings(found: Assessment, rates: Rates) -> Iterator[str]:
    in_use = {share.device.name for share in found.shares if share.read_bytes}
    pace = rates.seconds_per_byte
    host_s = pace[found.machine.host.name]
    for gpu in found.machine.gpus:
        if not gpu.total_bytes:
            yield f"The memory of {gpu.name} is unknown, so nothing is planned for it; set it with --vram."
        elif gpu.speed and not found.is_manual and gpu.name not in in_use and pace[gpu.name] > host_s:
            slow, fast = (format_bandwidth(1 / seconds) for seconds in (pace[gpu.name], host_s))
            yield f"{gpu.name} gets no layers: it reads weights at {slow} GB/s, the processor at {fast}."
    for share in found.shares:
        if (name := share.device.name) in in_use - rates.known:
            yield f"The memory bandwidth of {name} is unknown, so no speed is predicted; set it with @GB/s."


def _assumptions(found: Assessment, rates: Rates) -> Iterator[str]:
    """Yield what prompts are predicted from, where a GPU computes them and it was not measured."""
    name = found.placement.prompt_gpu if found.placement is not None and found.speed else ""
    for gpu in found.machine.gpus:
        if gpu.name != name:
            continue
        pace = 1 / rates.seconds_per_operation[name] / 1e12
        link = rates.link_seconds_per_byte[name]
        assumed = [f"its link carries {format_bandwidth(1 / link)} GB/s"] if link and not gpu.link_bytes_per_s else []
        if gpu.speed is None and name not in rates.tables:
            assumed.append(f"it computes {format_figure(pace, 3)} TFLOP/s")
        if assumed:
            what = " and ".join(assumed)
            yield f"Of {name} it is assumed, not measured, that {what}: prompts may be faster or slower."


def _too_large(found: Assessment) -> str:
    if found.placement is not None:  # a manual placement
        full = [
            f"{share.device.name} would hold {format_memory(share.n_bytes)}"
            f" and has {format_memory(share.device.free_bytes)} free"
            for share in overfull(found.shares, found.machine)
        ]
        return f"{'; '.join(full)}, minus a safety margin."
    free = found.machine.free_bytes
    profile = found.profile
    parts = f"{format_memory(profile.weight_bytes)} of weights, {format_memory(profile.cache_bytes)} of cache"
    if beside := profile.beside_bytes + profile.beside_host_bytes:
        parts += f", {format_memory(beside)} beside the model"
    needed = format_memory(profile.total_bytes)
    return f"Not enough memory: it needs {needed} ({parts}) and may use {format_memory(free)}, minus a safety margin."


def fit_summary(found: Assessment) -> str:
    """Return how much of a model that runs is on GPUs: 20 of 33 layers fit."""
    placement, n_layers = found.placement, len(found.profile.layers)
    assert placement is not None
    n_split = max(0, placement.n_split - (n_layers - placement.n_on_gpus))
    movable = "experts" if found.profile.has_experts else "feed-forward"
    if (n_split or placement.has_cache_on_host) and placement.n_on_gpus == n_layers:
        left = [f"the {movable} of {n_split} of {n_layers} layers"] if n_split else []
        left += ["the cache"] if placement.has_cache_on_host else []
        what = " and ".join(left)
        verb = "stay" if len(left) > 1 or (n_split and found.profile.has_experts) else "stays"
        return f"{what[0].upper()}{what[1:]} {verb} with the processor"
    without = f", {n_split} of them without their {movable}" if n_split else ""
    without += ", all without their cache" if placement.has_cache_on_host else ""
    verb = "are on GPUs" if found.is_manual else "fit"
    prompts = (
        f", {placement.prompt_gpu} computes prompts only" if placement.prompt_gpu and not placement.n_on_gpus else ""
    )
    return f"{placement.n_on_gpus} of {n_layers} layers {verb}{without}{prompts}"


def _what_it_costs(found: Assessment) -> str:
    host = next(share for share in found.shares if share.device.name == found.machine.host.name)
    fastest = max((gpu.bytes_per_s or 0 for gpu in found.machine.gpus), default=0)
    if found.speed is None or found.best_tps is None or not host.device.bytes_per_s or not fastest:
        return ", the rest is read by the processor"
    share = host.read_bytes / sum(share.read_bytes for share in found.shares)
    slow, fast = format_bandwidth(host.device.bytes_per_s), format_bandwidth(fastest)
    pace = f"{format_speed(found.speed.decode_tps)} tok/s instead of {format_speed(found.best_tps)}"
    if not host.read_bytes or host.device.bytes_per_s >= fastest:
        return f": {pace}, because part of it is on a slower GPU"
    return f": {pace}, because {share:.0%} of the bytes are read at {slow} GB/s instead of {fast}"
