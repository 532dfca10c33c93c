"""Recommendation of a model of the catalogue for this machine and a role, with the reason. Pure: no network.

Owns the choice and its reasons. Fits are computed as everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.library.hub.catalogue import CatalogueModel, Role
from app.library.machine_fit.planning import (
    COMFORTABLE_TPS,
    NEARLY_AS_FAST,
    PlanningContext,
    choose_quant,
    keeps_pace,
    speed_of,
)
from app.protocol.library import Quant, Recommendation, Recommended
from offload.format import format_memory, format_speed

__all__ = ["recommend"]

# Tokens a second that a model should reach: completions must keep up with typing, a small model must gain speed.
_PACES_TPS = {
    Role.CHAT: COMFORTABLE_TPS,
    Role.MOE: COMFORTABLE_TPS,
    Role.CODE: 25.0,
    Role.SMALL: 25.0,
    Role.EMBEDDING: 0.0,
}


def recommend(models: Sequence[CatalogueModel], role: Role, here: PlanningContext) -> Recommendation:
    """Recommend the first of `models` (best first) that has the role, fits here and is fast enough for it.

    If none is, recommend the first that is nearly as fast as the fastest that runs.
    """
    pace_tps = _PACES_TPS[role]
    passed_over: list[Recommended] = []
    for model in (_best_quant(model, role, here, pace_tps) for model in models if role in model.roles):
        if keeps_pace(model.quant, pace_tps):
            why = _why(pace_tps, passed_over)
            return Recommendation(role.value, why, replace(model, why=why, keeps_pace=True), tuple(passed_over))
        passed_over.append(model)
    running = [model for model in passed_over if model.quant.fit.verdict != "wont_run"]
    if not running:
        return Recommendation(role.value, _why_nothing(here), None, tuple(passed_over))
    enough_tps = NEARLY_AS_FAST * max(speed_of(model.quant) for model in running)
    best = next(model for model in running if speed_of(model.quant) >= enough_tps)
    why = f"No model of this kind fits and reaches {format_speed(pace_tps)} tok/s; this is the best of the fastest."
    others = tuple(other for other in passed_over if other is not best)
    return Recommendation(role.value, why, replace(best, why=why), others)


def _best_quant(model: CatalogueModel, role: Role, here: PlanningContext, pace_tps: float) -> Recommended:
    """Return the model in its best quant for this machine, which may still not run."""
    outline = model.outline()
    quants = []
    for file_type in model.quants:
        quantized = outline.quantized(file_type)
        quants.append(Quant(file_type.name, quantized.n_bytes, here.fit(quantized)))
    quant = choose_quant(quants, outline.n_parameters, pace_tps) or min(quants, key=lambda quant: quant.n_bytes)
    return Recommended(
        role=role.value,
        why="",
        keeps_pace=False,
        name=model.name,
        title=model.title,
        reference=f"{model.repo}:{quant.name}",
        licence=model.licence,
        n_parameters=outline.n_parameters,
        n_ctx_train=outline.n_ctx_train,
        quant=quant,
    )


def _why(pace_tps: float, passed_over: Sequence[Recommended]) -> str:
    others = f"the {len(passed_over)} above it do not" if passed_over else "none ranks above it"
    pace = f" and reaches at least {format_speed(pace_tps)} tok/s" if pace_tps else ""
    return f"The best of its kind in the catalogue that fits{pace}: {others}."


def _why_nothing(here: PlanningContext) -> str:
    free = here.machine.host.free_bytes + sum(gpu.free_bytes for gpu in here.machine.gpus if not gpu.shares_host)
    return f"No model of this kind runs in the {format_memory(free)} that are free."
