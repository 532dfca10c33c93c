"""Warnings of a plan before anything is loaded: the cost of a partial fit, and what is unknown. Pure.

Owns the sentences. Independent of remedies.
"""

from __future__ import annotations

from collections.abc import Iterator

from offload.format import format_bandwidth, format_memory, format_speed
from offload.placement.allocation import overfull
from offload.placement.assessment import Assessment, FitLevel
from offload.speed.cost_model import Rates


def plan_warnings(found: Assessment, rates: Rates, n_ctx_train: int) -> Iterator[str]:
    """Yield the warnings of an assessment, the most important first; `n_ctx_train` 0 is unknown."""
    if found.verdict is FitLevel.WONT_RUN:
        yield _too_large(found)
    if found.verdict is FitLevel.PARTIAL:
        yield f"{fit_summary(found)}{_what_it_costs(found)}."
    if found.verdict is FitLevel.TIGHT:
        yield "It fits with little to spare: another program that takes memory may make loading fail."
    yield from _device_warnings(found, rates)
    if not found.profile.is_exact:
        yield "This architecture keeps an index beside its cache, which is not counted: it needs more memory."
    if 0 < n_ctx_train < found.profile.run_config.n_ctx:
        yield f"It was trained on {n_ctx_train:,} tokens of context: text beyond them may make no sense."


def _device_warnings(found: Assessment, rates: Rates) -> Iterator[str]:
    """Yield what is unknown of devices, and which GPUs get nothing because the processor reads faster."""
    in_use = {share.device.name for share in found.shares if share.read_bytes}
    pace = rates.seconds_per_byte
    host_s = pace[found.machine.host.name]
    for gpu in found.machine.gpus:
        if not gpu.total_bytes:
            yield f"How much memory {gpu.name} has is unknown, so nothing is planned for it; set it with --vram."
        elif gpu.speed and not found.is_manual and gpu.name not in in_use and pace[gpu.name] > host_s:
            slow, fast = (format_bandwidth(1 / seconds) for seconds in (pace[gpu.name], host_s))
            yield f"{gpu.name} gets no layers: it reads weights at {slow} GB/s, the processor at {fast}."
    for share in found.shares:
        if share.device.name in in_use - rates.known:
            unknown = f"How fast {share.device.name} reads its memory is unknown"
            yield f"{unknown}, so no speed is predicted; set it with @GB/s."


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
    return f"{placement.n_on_gpus} of {n_layers} layers {verb}{without}"


def _what_it_costs(found: Assessment) -> str:
    host = next(share for share in found.shares if share.device.name == found.machine.host.name)
    fastest = max((gpu.bytes_per_s or 0 for gpu in found.machine.gpus), default=0)
    if found.speed is None or found.best_tps is None or not host.device.bytes_per_s or not fastest:
        return ", the rest is read by the processor"
    share = host.read_bytes / sum(share.read_bytes for share in found.shares)
    slow, fast = format_bandwidth(host.device.bytes_per_s), format_bandwidth(fastest)
    pace = f"{format_speed(found.speed.decode_tps)} tok/s instead of {format_speed(found.best_tps)}"
    if not host.read_bytes:
        return f": {pace}, because part of it is on a slower GPU"
    return f": {pace}, because {share:.0%} of the bytes are read at {slow} GB/s instead of {fast}"
