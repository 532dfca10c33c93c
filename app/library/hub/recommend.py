"""Recommendation of a model of the catalogue for this machine and a role, with the reason. Pure: no network.

Owns the choice and its reasons. Fits are computed as everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache

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

# Tokens a second that a model should reach: completions must keep up with typing, a small model must gain speed, and
# texts are embedded and ranked by the hundred.
_PACES_TPS = {
    Role.CHAT: COMFORTABLE_TPS,
    Role.MOE: COMFORTABLE_TPS,
    Role.CODE: 25.0,
    Role.SMALL: 25.0,
    Role.THINKING: COMFORTABLE_TPS,
    Role.TOOLS: COMFORTABLE_TPS,
    Role.VISION: COMFORTABLE_TPS,
    Role.EMBEDDING: 50.0,
    Role.RERANKING: 50.0,
}
_SAME_SIZE = 1.4  # models are of one size class when neither has more times the parameters of the other


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A model of the catalogue and its quants with their fits on a machine."""

    model: CatalogueModel
    n_parameters: int
    n_ctx_train: int
    quants: tuple[Quant, ...]


def recommend_each(
    models: Sequence[CatalogueModel], roles: Iterable[Role], here: PlanningContext
) -> tuple[Recommendation, ...]:
    """Return `recommend` of each role; the fits of a model, which take time, are computed once."""
    fitted = cache(lambda i: _fitted(models[i], here))
    return tuple(_recommend(models, role, fitted, here) for role in roles)


def recommend(models: Sequence[CatalogueModel], role: Role, here: PlanningContext) -> Recommendation:
    """Recommend the first of `models` (best first) that has the role, fits here and is fast enough for it.

    If none is, recommend the first that is nearly as fast as the fastest that runs. A newer one of the same size and
    speed goes before either.
    """
    return recommend_each(models, (role,), here)[0]


def _recommend(
    models: Sequence[CatalogueModel], role: Role, fitted: Callable[[int], _Fitted], here: PlanningContext
) -> Recommendation:
    pace_tps = _PACES_TPS[role]
    able = [i for i, model in enumerate(models) if role in model.roles]
    passed_over: list[Recommended] = []
    for i in able:
        found = _best_quant(fitted(i), role, pace_tps)
        if keeps_pace(found.quant, pace_tps):
            newer = (k for k in able if k > i and _is_newer_of_its_size(models[k], models[i]))
            others = [_best_quant(fitted(k), role, pace_tps) for k in newer]
            best = _newest(found, (other for other in others if keeps_pace(other.quant, pace_tps)))
            why = _why(best, found, pace_tps, len(passed_over))
            return Recommendation(role.value, why, replace(best, why=why, keeps_pace=True), tuple(passed_over))
        passed_over.append(found)
    running = [model for model in passed_over if model.quant.fit.verdict != "wont_run"]
    if not running:
        return Recommendation(role.value, _why_nothing(here), None, tuple(passed_over))
    enough_tps = NEARLY_AS_FAST * max(speed_of(model.quant) for model in running)
    first = next(model for model in running if speed_of(model.quant) >= enough_tps)
    best = _newest(first, (model for model in running if _is_same_size(model.n_parameters, first.n_parameters)))
    kind = "the best" if best is first else "the newest"
    why = f"No model of this kind fits and reaches {format_speed(pace_tps)} tok/s; this is {kind} of the fastest."
    others = [other for other in passed_over if other is not best]
    return Recommendation(role.value, why, replace(best, why=why), tuple(others))


def _is_same_size(n_parameters: int, others: int) -> bool:
    return max(n_parameters, others) <= _SAME_SIZE * min(n_parameters, others)


def _is_newer_of_its_size(model: CatalogueModel, than: CatalogueModel) -> bool:
    return model.published > than.published and _is_same_size(model.parameters, than.parameters)


def _newest(first: Recommended, others: Iterable[Recommended]) -> Recommended:
    """Return the newest of `first` and those of `others` that are nearly as fast, the earlier of equals."""
    as_fast = (other for other in others if speed_of(other.quant) >= NEARLY_AS_FAST * speed_of(first.quant))
    return max((first, *as_fast), key=lambda model: model.published)


def _fitted(model: CatalogueModel, here: PlanningContext) -> _Fitted:
    outline = model.outline()
    quantized = ((file_type.name, outline.quantized(file_type)) for file_type in model.quants)
    quants = tuple(Quant(name, planned.n_bytes, here.fit(planned)) for name, planned in quantized)
    return _Fitted(model, outline.n_parameters, outline.n_ctx_train, quants)


def _best_quant(fitted: _Fitted, role: Role, pace_tps: float) -> Recommended:
    """Return the model in its best quant for this machine, which may still not run."""
    model, quants = fitted.model, fitted.quants
    quant = choose_quant(quants, fitted.n_parameters, pace_tps) or min(quants, key=lambda quant: quant.n_bytes)
    return Recommended(
        role=role.value,
        why="",
        keeps_pace=False,
        name=model.name,
        title=model.title,
        reference=f"{model.repo}:{quant.name}",
        licence=model.licence,
        published=model.published,
        n_parameters=fitted.n_parameters,
        n_ctx_train=fitted.n_ctx_train,
        quant=quant,
    )


def _why(best: Recommended, first: Recommended, pace_tps: float, n_passed_over: int) -> str:
    """Return the reason for `best`, which may be newer than `first`, the first of the catalogue that would do."""
    pace = f" and reaches at least {format_speed(pace_tps)} tok/s" if pace_tps else ""
    others = {0: "none ranks above it", 1: "the one above it does not"}.get(
        n_passed_over, f"the {n_passed_over} above it do not"
    )
    if best is first:
        return f"The best of its kind in the catalogue that fits{pace}: {others}."
    newer = f"It came out in {_month(best.published)}, after {first.title} of the same size and speed"
    return f"{newer}, and fits{pace}."


def _month(published: str) -> str:
    return f"{date.fromisoformat(f'{published}-01'):%B %Y}"


def _why_nothing(here: PlanningContext) -> str:
    free = here.machine.host.free_bytes + sum(gpu.free_bytes for gpu in here.machine.gpus if not gpu.shares_host)
    return f"No model of this kind runs in the {format_memory(free)} that are free."
