"""A plan whose compute buffers the engine itself has worked out, in a dry run of the placement. Pure but for that.

Owns going back and forth between both until they agree. Knows nothing of how a dry run is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from offload.allocation import is_held, with_compute
from offload.assessment import Assessment, Verdict
from offload.load_parameters import ON_HOST, LoadParameters, load_parameters
from offload.machine import Machine
from offload.model import PlannedModel
from offload.plan import Plan, PlanQuestion, settled, told
from offload.profile import Setting
from offload.speed import Rates

__all__ = ["DryRun", "dry_plan", "parameters_of"]

DryRun = Callable[[Setting, LoadParameters], Mapping[str, int]]
"""Tells what each device, by name, computes in under a setting when layers are placed so."""

_MOST_ROUNDS = 3


def dry_plan(model: PlannedModel, question: PlanQuestion, machine: Machine, rates: Rates, dry_run: DryRun) -> Plan:
    """Plan as `offload.plan` does, and hold each placement against a dry run of it; where it takes more, plan again.

    Raises UsageError for a cache that the model cannot have, and what `dry_run` raises.
    """
    found = settled(model, question, machine, rates)
    for _ in range(_MOST_ROUNDS):
        measured = dry_run(found.profile.setting, parameters_of(found))
        if found.placement is not None:
            shares = with_compute(found.shares, measured)
            is_well = is_held(shares, machine)
            if is_well or question.gpu_layers is not None:  # those stay where they were put
                verdict = found.verdict if is_well else Verdict.WONT_RUN
                return told(replace(found, shares=shares, verdict=verdict), model, question, machine, rates)
        model = _scaled(model, found, measured)
        found = settled(model, question, machine, rates)
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
