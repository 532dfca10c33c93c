"""Recommendation of a model of the catalogue for this machine and a role, with the reason. Pure: no network.

Owns the choice and its reasons. Fits are computed as everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.library.hub.catalogue import CatalogueModel, Role
from app.library.machine_fit.planning import PlanningContext
from app.library.machine_fit.quant_rule import COMFORTABLE_TPS, NEARLY_AS_FAST, Candidate, choose_quant
from offload.format import format_memory, format_speed
from offload.placement.assessment import FitLevel

__all__ = ["Recommendation", "Suggestion", "recommend"]

# Tokens a second that a model should reach: completions must keep up with typing, a small model must gain speed.
_PACES_TPS = {
    Role.CHAT: COMFORTABLE_TPS,
    Role.MOE: COMFORTABLE_TPS,
    Role.CODE: 25.0,
    Role.SMALL: 25.0,
    Role.EMBEDDING: 0.0,
}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model of the catalogue in its best quant for this machine, which may still not run."""

    model: CatalogueModel
    candidate: Candidate
    n_ctx_train: int

    @property
    def ref(self) -> str:
        """The reference for `localllm pull`."""
        return f"{self.model.repo}:{self.candidate.name}"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The suggestion for a role (None if nothing runs) and why; `passed_over` are better models that do not fit.

    Without `keeps_pace` it is slower than the role needs: the best of the fastest.
    """

    role: Role
    suggestion: Suggestion | None
    why: str
    passed_over: tuple[Suggestion, ...]
    keeps_pace: bool = False


def recommend(models: Sequence[CatalogueModel], role: Role, here: PlanningContext) -> Recommendation:
    """Return the first of `models` (best first) that has the role, fits here and is fast enough for it.

    If none is, return the first that is nearly as fast as the fastest that runs.
    """
    pace_tps = _PACES_TPS[role]
    passed_over: list[Suggestion] = []
    for suggestion in (_suggestion(model, here, pace_tps) for model in models if role in model.roles):
        if suggestion.candidate.keeps_pace(pace_tps):
            return Recommendation(role, suggestion, _why(pace_tps, passed_over), tuple(passed_over), keeps_pace=True)
        passed_over.append(suggestion)
    running = [suggestion for suggestion in passed_over if suggestion.candidate.fit.verdict is not FitLevel.WONT_RUN]
    if not running:
        return Recommendation(role, None, _why_nothing(here), tuple(passed_over))
    enough_tps = NEARLY_AS_FAST * max(suggestion.candidate.decode_tps for suggestion in running)
    best = next(suggestion for suggestion in running if suggestion.candidate.decode_tps >= enough_tps)
    why = f"No model of this kind fits and reaches {format_speed(pace_tps)} tok/s; this is the best of the fastest."
    return Recommendation(role, best, why, tuple(other for other in passed_over if other is not best))


def _suggestion(model: CatalogueModel, here: PlanningContext, pace_tps: float) -> Suggestion:
    outline = model.outline()
    n_parameters = sum(tensor.n_elements for tensor in outline.tensors)
    candidates = []
    for file_type in model.quants:
        quantized = outline.quantized(file_type)
        candidates.append(Candidate(file_type.name, quantized.n_bytes, n_parameters, here.fit(quantized)))
    candidate = choose_quant(candidates, pace_tps) or min(candidates, key=lambda candidate: candidate.n_bytes)
    return Suggestion(model, candidate, outline.n_ctx_train)


def _why(pace_tps: float, passed_over: Sequence[Suggestion]) -> str:
    others = f"the {len(passed_over)} above it do not" if passed_over else "none ranks above it"
    pace = f" and reaches at least {format_speed(pace_tps)} tok/s" if pace_tps else ""
    return f"The best of its kind in the catalogue that fits{pace}: {others}."


def _why_nothing(here: PlanningContext) -> str:
    free = here.machine.host.free_bytes + sum(gpu.free_bytes for gpu in here.machine.gpus if not gpu.shares_host)
    return f"No model of this kind runs in the {format_memory(free)} that are free."
