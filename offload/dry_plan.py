"""A plan whose compute buffers the engine itself has worked out, in a dry run of the placement. Pure but for that.

Owns going back and forth between both until they agree. Knows nothing of how a dry run is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from offload.allocation import Share, with_compute
from offload.load_parameters import ON_HOST, LoadParameters, load_parameters
from offload.machine import Machine
from offload.model import PlannedModel
from offload.placement import margin_bytes
from offload.plan import Plan, PlanQuestion, plan
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
    found = plan(model, question, machine, rates)
    for _ in range(_MOST_ROUNDS):
        measured = dry_run(found.setting, parameters_of(found))
        if found.found.placement is not None:
            shares = with_compute(found.found.shares, measured)
            if _is_held(shares, machine):
                return replace(found, found=replace(found.found, shares=shares))
        model = _scaled(model, found, measured)
        found = plan(model, question, machine, rates)
    return found


def parameters_of(found: Plan) -> LoadParameters:
    """Return what makes llama.cpp load as planned; what runs nowhere is left to the processor."""
    assessment = found.found
    if assessment.placement is None:
        return ON_HOST
    return load_parameters(assessment.profile, assessment.machine, assessment.placement)


def _scaled(model: PlannedModel, found: Plan, measured: Mapping[str, int]) -> PlannedModel:
    """Return `model` with compute buffers as large as on the device that the formula falls shortest of."""
    if found.found.placement is None:
        return model.measured(found.setting, sum(measured.values()))
    in_use = [share for share in found.found.shares if share.n_layers]
    ratios = [measured.get(share.device.name, 0) / share.compute_bytes for share in in_use]
    return replace(model, compute_scale=model.compute_scale * max(ratios))


def _is_held(shares: Sequence[Share], machine: Machine) -> bool:
    """Whether every GPU keeps its margin, and the processor, from whose memory some GPUs take."""
    host_bytes = sum(share.n_bytes for share in shares if share.device.shares_host)
    own = [share for share in shares if share.n_layers and not share.device.shares_host]
    return host_bytes <= machine.host.free_bytes - margin_bytes(machine.host) and all(
        share.n_bytes <= share.device.free_bytes - margin_bytes(share.device) for share in own
    )
