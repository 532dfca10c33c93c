"""Fits and plans of models on a machine, as plan, search, recommend and pull use them.

Owns the planning context (machine, rates, and what the settings request), and whether compute buffers come from
llama.cpp's dry run or a formula. The arithmetic is `offload`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.engine.load.dry_run import DryRunRequest, compute_by_device
from app.engine.load.machine import survey
from app.engine.load.run_history import fitted_rates
from app.engine.load.sizing import requested_config
from app.protocol.library import ModelFit
from app.settings.parsing import parse_rpc_endpoints
from app.settings.settings import Settings
from offload.devices.machine import Machine
from offload.footprint.model import PlannedModel
from offload.footprint.profile import RunConfig
from offload.placement.assessment import Assessment
from offload.placement.load_parameters import ON_HOST, LoadParameters
from offload.plan import PlacementPlan, best_assessment, dry_plan, plan
from offload.speed.cost_model import Rates, expected_rates

__all__ = ["PlanningContext", "local_planning_context", "plan_of", "plan_of_absent", "planning_context"]

_MOST_DRY_CELLS = 1 << 22  # a dry run takes 50 bytes for each cell, whatever the planned machine has


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """A machine, its speed, and the settings that models are planned with."""

    machine: Machine
    rates: Rates
    requested: RunConfig

    def best_assessment(self, model: PlannedModel) -> Assessment:
        """Return the best placement of `model`. Raises UsageError for a cache type that it does not support."""
        return best_assessment(model, self.requested, self.machine, self.rates)

    def fit(self, model: PlannedModel) -> ModelFit:
        """Return the fit of `model`. Raises as `best_assessment` does."""
        found = self.best_assessment(model)
        decode_tps = None if found.decode_tps is None else round(found.decode_tps, 3)
        return ModelFit(found.verdict.value, decode_tps, found.profile.total_bytes)

    def plan(self, model: PlannedModel, *, wants_remedies: bool = True) -> PlacementPlan:
        """Return the plan of `model`: shares, warnings, remedies. Raises as `best_assessment` does."""
        return plan(model, self.requested, self.machine, self.rates, wants_remedies=wants_remedies)


def planning_context(settings: Settings, machine: Machine) -> PlanningContext:
    """Return the context for a `machine` other than this one. Raises UsageError for unknown types."""
    return PlanningContext(machine, expected_rates(machine), requested_config(settings, machine))


def local_planning_context(settings: Settings, machine: Machine | None = None) -> PlanningContext:
    """Return the context for this machine with measured speeds; without `machine` a survey takes about a second.

    Raises EngineError if that fails.
    """
    machine = machine or survey(parse_rpc_endpoints(settings.rpc)).machine
    return PlanningContext(
        machine, fitted_rates(machine, settings.cache_dir, settings.threads), requested_config(settings, machine)
    )


def plan_of(model: PlannedModel, settings: Settings, context: PlanningContext, *, is_here: bool) -> PlacementPlan:
    """Plan with compute buffers from llama.cpp's dry run; those of devices not present are estimated on the CPU."""

    def dry_run(setting: RunConfig, parameters: LoadParameters) -> dict[str, int]:
        rpc = parse_rpc_endpoints(settings.rpc)
        return compute_by_device(DryRunRequest(model.header.path, setting, parameters, rpc))

    run_config = context.best_assessment(model).profile.run_config
    if run_config.n_cells > _MOST_DRY_CELLS:
        return context.plan(model)
    if is_here:
        return dry_plan(model, context.requested, context.machine, context.rates, dry_run)
    n_bytes = sum(dry_run(run_config, ON_HOST).values())
    return context.plan(model.measured(run_config, n_bytes))


def plan_of_absent(model: PlannedModel, notice: str, context: PlanningContext) -> PlacementPlan:
    """Plan a model of which only the header was fetched, as `notice` says; compute buffers come from a formula."""
    found = context.plan(model)
    formula = "Its compute buffers are estimated by a formula, within 15 %."
    return replace(found, warnings=(*found.warnings, f"{notice} {formula}"))
