"""From a model and a machine to a plan.

Owns when llama.cpp is asked what it would compute in, and when a formula has to do. Knows nothing of how it is
shown.
"""

from __future__ import annotations

from dataclasses import replace

from app.engine.dry_run import compute_by_device, dry_run_request
from app.engine.rpc import endpoints_of
from app.library.fit import Circumstances
from app.settings import Settings
from offload.dry_plan import dry_plan
from offload.load_parameters import ON_HOST, LoadParameters
from offload.model import PlannedModel
from offload.plan import Plan
from offload.profile import Setting

__all__ = ["plan_of", "plan_of_absent"]

_MOST_DRY_CELLS = 1 << 22  # a dry run takes 50 bytes for each, however much memory the machine has that is planned for


def plan_of(model: PlannedModel, settings: Settings, wanted: Circumstances, *, is_here: bool) -> Plan:
    """Plan, with what llama.cpp says that this plan computes in: of devices that are not here, by the processor's."""

    def dry_run(setting: Setting, parameters: LoadParameters) -> dict[str, int]:
        request = dry_run_request(model.header.path, setting, parameters)
        return compute_by_device(replace(request, rpc=endpoints_of(settings.rpc)))

    setting = wanted.settled(model).profile.setting
    if setting.n_cells > _MOST_DRY_CELLS:
        return wanted.plan(model)
    if is_here:
        return dry_plan(model, wanted.question, wanted.machine, wanted.rates, dry_run)
    n_bytes = sum(dry_run(setting, ON_HOST).values())
    return wanted.plan(model.measured(setting, n_bytes))


def plan_of_absent(model: PlannedModel, notice: str, wanted: Circumstances) -> Plan:
    """Plan a model whose header alone is here; `notice` tells of that."""
    found = wanted.plan(model)
    formula = "What it computes in is told by a formula, within 15 %."
    return replace(found, warnings=(*found.warnings, f"{notice} {formula}"))
