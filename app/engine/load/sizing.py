"""The sizes of a context before a load, and whether a model that is slow or too large is loaded at all.

Owns where the numbers come from: the settings, the file and this machine's memory. `offload` decides by them.
"""

from __future__ import annotations

from dataclasses import replace

from app.engine.protocol.messages import EngineConfig, UnfitPolicy
from app.protocol.errors import UnfitError
from app.settings.settings import Settings
from offload.advice.remedies import Remedy
from offload.devices.host_memory import host_memory
from offload.devices.machine import Machine
from offload.footprint.context import ContextRequest, plan_context
from offload.footprint.kv_cache import (
    bytes_per_cell,
    check_kv_types,
    n_cached_sequences,
    n_window_cells,
    parse_kv_types,
)
from offload.footprint.profile import RunConfig
from offload.format import format_speed
from offload.placement.assessment import FitLevel
from offload.plan import PlacementPlan
from quantizer.gguf.header import Header
from quantizer.gguf.layer_caches import kv_shape_of, layer_caches_of
from quantizer.gguf.validation import shard_paths
from quantizer.system.errors import EngineError

_MAX_REMEDIES = 3


def size_context(config: EngineConfig, header: Header, *, is_on_host: bool) -> tuple[EngineConfig, str]:
    """Return `config` with context and cells chosen, and a notice for the user or "".

    The memory for the cache is only known when it `is_on_host`. Raises UsageError for cache types that this model
    cannot have, EngineError for a context that does not fit.
    """
    types, shape, caches = parse_kv_types(config.kv_type), kv_shape_of(header), layer_caches_of(header)
    check_kv_types(types, shape)
    windowed = [layer for layer in caches.layers if layer.is_windowed]
    plan = plan_context(
        ContextRequest(
            n_ctx=config.n_ctx,
            n_ctx_train=header.integer(f"{header.architecture}.context_length") or 0,
            n_sequences=config.n_sequences,
            bytes_per_cell=bytes_per_cell(types, shape),
            weight_bytes=sum(path.stat().st_size for path in shard_paths(header)),
            free_bytes=host_memory().free_bytes if is_on_host else None,
            windowed_bytes_per_cell=types.n_bytes(
                sum(layer.k_elements for layer in windowed), sum(layer.v_elements for layer in windowed)
            ),
            n_windowed_cells=n_window_cells(caches, n_cached_sequences(caches, config.n_sequences)),
        )
    )
    return replace(config, n_ctx=plan.n_ctx, n_cells=plan.n_cells, kv_type=str(types)), plan.notice


def check_fit(plan: PlacementPlan, when_unfit: UnfitPolicy) -> str:
    """Return the warning to give before `plan` is loaded, "" when the whole model fits.

    Raises UnfitError when the user has to agree first, EngineError when nobody can be asked and it is too large.
    """
    level = plan.assessment.verdict
    is_too_large = level is FitLevel.WONT_RUN and (bool(plan.assessment.machine.gpus) or _exceeds_memory(plan))
    if level is not FitLevel.PARTIAL and not is_too_large:
        return ""
    cause, remedy = plan.warnings[0], _remedies_text(plan.remedies)
    if when_unfit is UnfitPolicy.ASK:
        raise UnfitError(cause, remedy)
    if is_too_large and when_unfit is not UnfitPolicy.LOAD:
        raise EngineError(cause, f"{remedy} Or load it anyway with --yes.".lstrip())
    return cause


def _exceeds_memory(plan: PlacementPlan) -> bool:
    """Return whether the model takes more than all free memory, so that it is read from disk again and again."""
    profile = plan.assessment.profile
    return profile.weight_bytes + profile.cache_bytes + profile.compute_bytes > plan.assessment.machine.host.free_bytes


def _remedies_text(remedies: tuple[Remedy, ...]) -> str:
    texts = [
        remedy.what + (f" ({format_speed(remedy.decode_tps)} tok/s)" if remedy.decode_tps is not None else "")
        for remedy in remedies[:_MAX_REMEDIES]
    ]
    return f"What would help: {'; '.join(texts)}." if texts else ""


def requested_config(settings: Settings, machine: Machine) -> RunConfig:
    """Return the run configuration that `settings` request, with fused attention on GPUs. Raises UsageError."""
    config = EngineConfig(n_ctx=settings.ctx, kv_type=settings.kv_type, n_sequences=settings.parallel)
    return requested_run(config, is_fused=bool(machine.gpus))


def requested_run(config: EngineConfig, *, is_fused: bool) -> RunConfig:
    """Return the run configuration that `config` requests of the planner. Raises UsageError."""
    return RunConfig(
        n_ctx=config.n_ctx,
        n_cells=config.n_cells,
        kv_types=parse_kv_types(config.kv_type),
        n_sequences=config.n_sequences,
        is_fused=is_fused,
        gpu_layers=config.gpu_layers,
    )
