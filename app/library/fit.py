"""Does a model fit on a machine, and how fast is it: the one answer that plan, search, recommend and pull give.

Owns how a model is asked for here: this machine, its rates, and the context, cache and sequences of the settings. The
arithmetic is `offload`'s. Knows nothing of where a header comes from.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.machine import survey
from app.engine.question import question_of
from app.engine.rates import rates_here
from app.engine.rpc import endpoints_of
from app.settings import Settings
from offload.assessment import Assessment, Verdict
from offload.machine import Machine
from offload.model import PlannedModel
from offload.plan import Plan, PlanQuestion, plan, settled
from offload.speed import Rates, expected_rates

__all__ = ["Circumstances", "Fit", "circumstances", "circumstances_here"]


@dataclass(frozen=True, slots=True)
class Fit:
    """What a model comes to on a machine, in short.

    `decode_tps` is None where nobody can tell; it may be off by `uncertainty`, a share of it. `total_bytes` are those
    of weights, cache and buffers together, for a context of `n_ctx` tokens.
    """

    verdict: Verdict
    decode_tps: float | None
    uncertainty: float
    total_bytes: int
    n_ctx: int

    @property
    def runs_well(self) -> bool:
        """Whether all of it is read where that is fastest."""
        return self.verdict in (Verdict.FITS, Verdict.TIGHT)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """A machine, how fast it is, and how models are wanted on it."""

    machine: Machine
    rates: Rates
    question: PlanQuestion

    def settled(self, model: PlannedModel) -> Assessment:
        """Return where `model` goes. Raises UsageError for a cache that it cannot have."""
        return settled(model, self.question, self.machine, self.rates)

    def fit(self, model: PlannedModel) -> Fit:
        """Return the verdict on `model`. Raises as `settled` does."""
        found = self.settled(model)
        return Fit(
            verdict=found.verdict,
            decode_tps=found.decode_tps,
            uncertainty=self.rates.uncertainty,
            total_bytes=found.profile.total_bytes,
            n_ctx=found.profile.setting.n_ctx,
        )

    def plan(self, model: PlannedModel, *, wants_remedies: bool = True) -> Plan:
        """Return the same with all that there is to tell: shares, warnings, ways out. Raises as `settled` does."""
        return plan(model, self.question, self.machine, self.rates, wants_remedies=wants_remedies)


def circumstances(settings: Settings, machine: Machine) -> Circumstances:
    """Return how `settings` want models on a `machine` that is not this one. Raises UsageError for unknown types."""
    return Circumstances(machine, expected_rates(machine), question_of(settings, machine))


def circumstances_here(settings: Settings, machine: Machine | None = None) -> Circumstances:
    """Return the same for this machine, with the speeds seen here; looking takes about a second, unless `machine` was
    looked at already.

    Raises EngineError where that fails.
    """
    machine = machine or survey(endpoints_of(settings.rpc)).machine
    return Circumstances(
        machine, rates_here(machine, settings.cache_dir, settings.threads), question_of(settings, machine)
    )
