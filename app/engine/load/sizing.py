"""From what was asked and what the header says to the sizes of a context, before anything is loaded.

Owns where the numbers come from: the file, and this machine's memory. How they decide is `offload`'s.

Whether a model that is slow here, or too large, is loaded all the same. Pure.

Owns what comes of a verdict. Knows nothing of who is asked.

What a plan is asked, as the settings have it and the engine would load.
"""

from __future__ import annotations

from dataclasses import replace

import psutil

from app.engine.protocol.messages import EngineConfig, UnfitPolicy
from app.settings.settings import Settings
from offload.advice.remedies import Remedy
from offload.devices.machine import Machine
from offload.footprint.context import ContextRequest, plan_context
from offload.footprint.kv_cache import bytes_per_cell, check_kv_types, parse_kv_types
from offload.format import speed
from offload.placement.assessment import FitLevel
from offload.plan import Plan, PlanConstraints
from quantizer.errors import EngineError, UnfitError
from quantizer.gguf.header import Header
from quantizer.gguf.layer_caches import kv_shape_of
from quantizer.gguf.validation import shard_paths

__all__ = ["check_fit", "plan_constraints", "size_context"]


def size_context(config: EngineConfig, header: Header, *, is_on_host: bool) -> tuple[EngineConfig, str]:
    """Return `config` with context and cells chosen, and a notice for a person or "".

    Unless the cache `is_on_host` nobody knows here what it may take. Raises UsageError for cache types that this model
    cannot have, EngineError for a context that does not fit.
    """
    types, shape = parse_kv_types(config.kv_type), kv_shape_of(header)
    check_kv_types(types, shape)
    plan = plan_context(
        ContextRequest(
            n_ctx=config.n_ctx,
            n_ctx_train=header.integer(f"{header.architecture}.context_length") or 0,
            n_sequences=config.n_sequences,
            bytes_per_cell=bytes_per_cell(types, shape),
            weight_bytes=sum(path.stat().st_size for path in shard_paths(header)),
            free_bytes=psutil.virtual_memory().available if is_on_host else None,
        )
    )
    return replace(config, n_ctx=plan.n_ctx, n_cells=plan.n_cells, kv_type=str(types)), plan.notice


_MOST_REMEDIES = 3


def check_fit(plan: Plan, when_unfit: UnfitPolicy) -> str:
    """Return what a person is to be told of `plan` before it is loaded, "" where all fits.

    Raises UnfitError where a yes is needed first, EngineError where nobody can be asked and it is too large.
    """
    verdict = plan.found.verdict
    is_hopeless = verdict is FitLevel.WONT_RUN and (bool(plan.found.machine.gpus) or _is_beyond_memory(plan))
    if verdict is not FitLevel.PARTIAL and not is_hopeless:
        return ""
    cause, remedy = plan.warnings[0], _ways_out(plan.remedies)
    if when_unfit is UnfitPolicy.ASK:
        raise UnfitError(cause, remedy)
    if is_hopeless and when_unfit is not UnfitPolicy.LOAD:
        raise EngineError(cause, f"{remedy} Or load it all the same with --yes.".lstrip())
    return cause


def _is_beyond_memory(plan: Plan) -> bool:
    """Whether a processor alone has less free than it takes, and reads from disk; without a margin it still runs."""
    profile = plan.found.profile
    return profile.weight_bytes + profile.cache_bytes + profile.compute_bytes > plan.found.machine.host.free_bytes


def _ways_out(remedies: tuple[Remedy, ...]) -> str:
    told = [
        remedy.what + (f" ({speed(remedy.decode_tps)} tok/s)" if remedy.decode_tps is not None else "")
        for remedy in remedies[:_MOST_REMEDIES]
    ]
    return f"What would help: {'; '.join(told)}." if told else ""


def plan_constraints(settings: Settings, machine: Machine) -> PlanConstraints:
    """Return the question. Attention is fused on GPUs, where that is the faster way. Raises UsageError."""
    return PlanConstraints(
        n_ctx=settings.ctx,
        kv_types=parse_kv_types(settings.kv_type),
        n_sequences=settings.parallel,
        is_fused=bool(machine.gpus),
    )
