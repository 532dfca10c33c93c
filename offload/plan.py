"""A plan: what a model comes to on a machine, what to tell a person, and the ways out. Pure.

Owns what is asked and what is answered. Independent of where a header or a machine's description comes from.

A plan whose compute buffers the engine itself has worked out, in a dry run of the placement. Pure but for that.

Owns going back and forth between both until they agree. Independent of how a dry run is made.

A plan as one JSON object, for `localllm plan --json` and the service's API. Pure.

Owns the names of its fields. Independent of who reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from offload.advice.remedies import Remedy, remedies_of
from offload.advice.warnings import beyond_training, warnings_of
from offload.devices.machine import Machine
from offload.footprint.auxiliary_models import AuxiliaryUsage
from offload.footprint.context import DEFAULT_N_CELLS, DEFAULT_N_CTX
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel
from offload.footprint.profile import DEFAULT_DEPTH, RunConfig
from offload.placement.allocation import is_held, with_compute
from offload.placement.assessment import Assessment, FitLevel, choose, choose_manual
from offload.placement.load_parameters import ON_HOST, LoadParameters, load_parameters
from offload.speed.cost_model import Rates

__all__ = [
    "DryRun",
    "Plan",
    "PlanConstraints",
    "best_assessment",
    "dry_plan",
    "parameters_of",
    "plan",
    "plan_json",
    "told",
]

_DEPTH_SHARE = 4  # a speed is told for a quarter of the context: who asks for a long one will not leave it empty


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConstraints:
    """How a model is wanted. `n_ctx` 0 leaves the context open, `n_cells` 0 how many cells all sequences share.

    `gpu_layers` are layers by names of GPUs, the output counted as one; None leaves them to the planner.
    """

    n_ctx: int = 0
    n_cells: int = 0
    kv_types: KvTypes
    n_sequences: int = 1
    is_fused: bool = True
    gpu_layers: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The best there is: where everything goes (`found`), sentences to be told, ways out ranked by speed.

    A speed may be off by `uncertainty`, a share of it.
    """

    setting: RunConfig
    found: Assessment
    uncertainty: float
    warnings: tuple[str, ...]
    remedies: tuple[Remedy, ...]


def plan(
    model: PlannedModel, question: PlanConstraints, machine: Machine, rates: Rates, *, wants_remedies: bool = True
) -> Plan:
    """Plan `model` for `machine`, whose speeds are `rates`. Raises UsageError for a cache that it cannot have, and for
    layers on GPUs that are not there."""
    found = best_assessment(model, question, machine, rates)
    return told(found, model, question, machine, rates, wants_remedies=wants_remedies)


def best_assessment(model: PlannedModel, question: PlanConstraints, machine: Machine, rates: Rates) -> Assessment:
    """Return the best that `model` comes to, without what to tell of it. Raises as `plan` does."""
    wanted = _setting(model, question)
    if question.gpu_layers is not None:
        return choose_manual(model, wanted, machine, rates, question.gpu_layers)
    return choose(model, wanted, machine, rates)


def told(
    found: Assessment,
    model: PlannedModel,
    question: PlanConstraints,
    machine: Machine,
    rates: Rates,
    *,
    wants_remedies: bool = True,
) -> Plan:
    """Return what was `found` of a model with all that there is to tell of it; looking for ways out takes longest, and
    who asks at every key leaves them out."""
    return Plan(
        setting=found.profile.setting,
        found=found,
        uncertainty=rates.uncertainty,
        warnings=(*warnings_of(found, rates), *beyond_training(found.profile.setting.n_ctx, model.n_ctx_train)),
        remedies=remedies_of(model, _setting(model, question), machine, rates, found) if wants_remedies else (),
    )


def _setting(model: PlannedModel, question: PlanConstraints) -> RunConfig:
    """Return the sizes that the engine would choose with memory enough."""
    n_ctx = question.n_ctx or min(model.n_ctx_train or DEFAULT_N_CTX, DEFAULT_N_CTX)
    return RunConfig(
        n_ctx=n_ctx,
        n_cells=question.n_cells or max(n_ctx, min(n_ctx * question.n_sequences, DEFAULT_N_CELLS)),
        kv_types=question.kv_types,
        n_sequences=question.n_sequences,
        depth=min(n_ctx, max(DEFAULT_DEPTH, n_ctx // _DEPTH_SHARE)),
        is_fused=question.is_fused or question.kv_types.needs_flash_attention,
    )


DryRun = Callable[[RunConfig, LoadParameters], Mapping[str, int]]
"""Tells what each device, by name, computes in under a setting when layers are placed so."""

_MOST_ROUNDS = 3


def dry_plan(model: PlannedModel, question: PlanConstraints, machine: Machine, rates: Rates, dry_run: DryRun) -> Plan:
    """Plan as `offload.plan` does, and hold each placement against a dry run of it; where it takes more, plan again.

    Raises UsageError for a cache that the model cannot have, and what `dry_run` raises.
    """
    found = best_assessment(model, question, machine, rates)
    for _ in range(_MOST_ROUNDS):
        measured = dry_run(found.profile.setting, parameters_of(found))
        if found.placement is not None:
            shares = with_compute(found.shares, measured)
            is_well = is_held(shares, machine)
            if is_well or question.gpu_layers is not None:  # those stay where they were put
                verdict = found.verdict if is_well else FitLevel.WONT_RUN
                return told(replace(found, shares=shares, verdict=verdict), model, question, machine, rates)
        model = _scaled(model, found, measured)
        found = best_assessment(model, question, machine, rates)
    return told(found, model, question, machine, rates)


def parameters_of(found: Assessment) -> LoadParameters:
    """Return what makes llama.cpp load as planned; what runs nowhere is left to the processor."""
    if found.placement is None:
        return ON_HOST
    return load_parameters(found.profile, found.machine, found.placement)


def _scaled(model: PlannedModel, found: Assessment, measured: Mapping[str, int]) -> PlannedModel:
    """Return `model` with compute buffers as large as on the device that the formula falls shortest of."""
    if found.placement is None:
        return model.measured(found.profile.setting, sum(measured.values()))
    in_use = [share for share in found.shares if share.n_layers]
    ratios = [measured.get(share.device.name, 0) / share.compute_bytes for share in in_use]
    return replace(model, compute_scale=model.compute_scale * max(ratios))


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as one object; numbers that nobody can know are null, and `extras` are there where any are.

    What extras take is not in the other figures of a device, but for the bytes that lie among its layers. `change` of a
    remedy is what a program can set to follow it, empty where that is no setting.
    """
    found, speed = plan.found, plan.found.speed
    told: dict[str, Any] = {
        "verdict": found.verdict.value,
        "setting": _setting_json(plan.setting),
        "layers": len(found.profile.layers),
        "devices": [
            {
                "name": share.device.name,
                "weights_bytes": share.weight_bytes,
                "kv_bytes": share.cache_bytes,
                "compute_bytes": share.compute_bytes + share.host_bytes,
                "free_bytes": share.device.free_bytes,
                "total_bytes": share.device.total_bytes,
                "bytes_per_s": share.device.bytes_per_s,
                "kind": share.device.kind.value,
                "description": share.device.description,
                "layers": share.n_layers,
            }
            for share in found.shares
        ],
        "decode_tps": _rounded(found.decode_tps),
        "best_tps": _rounded(found.best_tps),
        "prefill_tps": _rounded(speed.prefill_tps if speed else None),
        "first_token_s": _rounded(speed.first_token_s if speed else None),
        "uncertainty": round(plan.uncertainty, 3),
        "curve": [{"gpu_layers": count, "decode_tps": _rounded(tps)} for count, tps in enumerate(found.curve)],
        "warnings": list(plan.warnings),
        "remedies": [_remedy(remedy) for remedy in plan.remedies],
    }
    if found.profile.extras:
        told["extras"] = [_extra(extra) for extra in found.profile.extras]
        for device, share in zip(told["devices"], found.shares, strict=True):
            device["extras_bytes"] = share.beside_bytes
    return told


def _setting_json(setting: RunConfig) -> dict[str, Any]:
    return {
        "ctx": setting.n_ctx,
        "cells": setting.n_cells,
        "kv_type": str(setting.kv_types),
        "sequences": setting.n_sequences,
        "ubatch": setting.n_ubatch,
        "depth": setting.depth,
        "flash_attention": setting.is_fused,
    }


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {
        "what": remedy.what,
        "decode_tps": _rounded(remedy.decode_tps),
        "cost": remedy.cost,
        "change": {name: value for name, value in asdict(remedy.change).items() if value},
    }


def _extra(extra: AuxiliaryUsage) -> dict[str, Any]:
    return {
        "what": extra.what,
        "weights_bytes": extra.weight_bytes,
        "kv_bytes": extra.cache_bytes,
        "compute_bytes": extra.compute_bytes + extra.host_bytes,
    }


def _rounded(tps: float | None) -> float | None:
    return None if tps is None else round(tps, 3)
