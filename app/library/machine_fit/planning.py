"""Does a model fit on a machine, and how fast is it: the one answer that plan, search, recommend and pull give.

Owns how a model is asked for here: this machine, its rates, and the context, cache and sequences of the settings. The
arithmetic is `offload`'s. Knows nothing of where a header comes from.

From a model and a machine to a plan.

Owns when llama.cpp is asked what it would compute in, and when a formula has to do. Knows nothing of how it is
shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.engine.load.dry_run import compute_by_device, dry_run_request
from app.engine.load.machine import survey
from app.engine.load.run_history import calibrated_rates
from app.engine.load.sizing import plan_constraints
from app.settings.parsing import parse_rpc_endpoints
from app.settings.settings import Settings
from offload.devices.machine import Machine
from offload.footprint.model import PlannedModel
from offload.footprint.profile import RunConfig
from offload.placement.assessment import Assessment, FitLevel
from offload.placement.load_parameters import ON_HOST, LoadParameters
from offload.plan import Plan, PlanConstraints, best_assessment, dry_plan, plan
from offload.speed.cost_model import Rates, expected_rates

__all__ = ["Fit", "PlanningContext", "local_planning_context", "plan_of", "plan_of_absent", "planning_context"]


@dataclass(frozen=True, slots=True)
class Fit:
    """What a model comes to on a machine, in short.

    `decode_tps` is None where nobody can tell; it may be off by `uncertainty`, a share of it. `total_bytes` are those
    of weights, cache and buffers together, for a context of `n_ctx` tokens.
    """

    verdict: FitLevel
    decode_tps: float | None
    uncertainty: float
    total_bytes: int
    n_ctx: int

    @property
    def runs_well(self) -> bool:
        """Whether all of it is read where that is fastest."""
        return self.verdict in (FitLevel.FITS, FitLevel.TIGHT)


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """A machine, how fast it is, and how models are wanted on it."""

    machine: Machine
    rates: Rates
    question: PlanConstraints

    def best_assessment(self, model: PlannedModel) -> Assessment:
        """Return where `model` goes. Raises UsageError for a cache that it cannot have."""
        return best_assessment(model, self.question, self.machine, self.rates)

    def fit(self, model: PlannedModel) -> Fit:
        """Return the verdict on `model`. Raises as `best_assessment` does."""
        found = self.best_assessment(model)
        return Fit(
            verdict=found.verdict,
            decode_tps=found.decode_tps,
            uncertainty=self.rates.uncertainty,
            total_bytes=found.profile.total_bytes,
            n_ctx=found.profile.setting.n_ctx,
        )

    def plan(self, model: PlannedModel, *, wants_remedies: bool = True) -> Plan:
        """Return the same with all that there is to tell: shares, warnings, ways out. Raises as `best_assessment` does."""
        return plan(model, self.question, self.machine, self.rates, wants_remedies=wants_remedies)


def planning_context(settings: Settings, machine: Machine) -> PlanningContext:
    """Return how `settings` want models on a `machine` that is not this one. Raises UsageError for unknown types."""
    return PlanningContext(machine, expected_rates(machine), plan_constraints(settings, machine))


def local_planning_context(settings: Settings, machine: Machine | None = None) -> PlanningContext:
    """Return the same for this machine, with the speeds seen here; looking takes about a second, unless `machine` was
    looked at already.

    Raises EngineError where that fails.
    """
    machine = machine or survey(parse_rpc_endpoints(settings.rpc)).machine
    return PlanningContext(
        machine, calibrated_rates(machine, settings.cache_dir, settings.threads), plan_constraints(settings, machine)
    )


_MOST_DRY_CELLS = 1 << 22  # a dry run takes 50 bytes for each, however much memory the machine has that is planned for


def plan_of(model: PlannedModel, settings: Settings, wanted: PlanningContext, *, is_here: bool) -> Plan:
    """Plan, with what llama.cpp says that this plan computes in: of devices that are not here, by the processor's."""

    def dry_run(setting: RunConfig, parameters: LoadParameters) -> dict[str, int]:
        request = dry_run_request(model.header.path, setting, parameters)
        return compute_by_device(replace(request, rpc=parse_rpc_endpoints(settings.rpc)))

    setting = wanted.best_assessment(model).profile.setting
    if setting.n_cells > _MOST_DRY_CELLS:
        return wanted.plan(model)
    if is_here:
        return dry_plan(model, wanted.question, wanted.machine, wanted.rates, dry_run)
    n_bytes = sum(dry_run(setting, ON_HOST).values())
    return wanted.plan(model.measured(setting, n_bytes))


def plan_of_absent(model: PlannedModel, notice: str, wanted: PlanningContext) -> Plan:
    """Plan a model whose header alone is here; `notice` tells of that."""
    found = wanted.plan(model)
    formula = "What it computes in is told by a formula, within 15 %."
    return replace(found, warnings=(*found.warnings, f"{notice} {formula}"))
