"""The library's values as they cross processes: local models, hub repositories, recommendations, imports, removals.

Owns the conversion to `app.protocol.library`, for the service and for `--json`. Reads nothing.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from app.protocol.library import (
    HubModel,
    HubRepository,
    ImportWay,
    LocalModel,
    ModelFit,
    PlacementResult,
    Quant,
    Recommendation,
    Recommended,
    RemovalResult,
    TypeChoice,
)

if TYPE_CHECKING:
    from app.library.hub import recommend
    from app.library.hub.search import SearchHit
    from app.library.local.index import LibraryEntry
    from app.library.local.model_files import ModelRef
    from app.library.local.placement import ImportPlan
    from app.library.local.removal import Removal
    from app.library.machine_fit.planning import Fit
    from app.library.machine_fit.quant_rule import Candidate
    from app.library.machine_fit.type_table import TypeRow

__all__ = [
    "LIBRARY",
    "describe_fit",
    "describe_import",
    "describe_model",
    "describe_recommendation",
    "describe_removal",
    "describe_repository",
    "describe_type",
]

LIBRARY = "library"  # `where` of a model in the models folder


def describe_model(entry: LibraryEntry, fit: Fit | None = None) -> LocalModel:
    """Return a model of this machine; its facts are empty where the file is damaged or not read yet."""
    facts = asdict(entry.facts) if entry.facts else {}
    return LocalModel(
        id=entry.ref.id,
        where=entry.ref.place or LIBRARY,
        path=str(entry.ref.path),
        n_bytes=entry.disk.n_bytes,
        modified_s=round(entry.disk.modified_s),
        damaged=entry.fault,
        fit=describe_fit(fit) if fit else None,
        **facts,
    )


def describe_fit(fit: Fit) -> ModelFit:
    """Return the verdict, tokens a second, and the bytes of all that the model needs."""
    tps = fit.decode_tps
    return ModelFit(fit.verdict.value, None if tps is None else round(tps, 3), fit.total_bytes)


def describe_recommendation(found: recommend.Recommendation) -> Recommendation:
    """Return the model chosen for a role, and better ones that do not run well here."""
    return Recommendation(
        role=found.role.value,
        why=found.why,
        model=_recommended(found, found.suggestion) if found.suggestion else None,
        passed_over=tuple(_recommended(found, suggestion) for suggestion in found.passed_over),
    )


def _recommended(found: recommend.Recommendation, suggestion: recommend.Suggestion) -> Recommended:
    is_chosen = suggestion is found.suggestion
    return Recommended(
        role=found.role.value,
        why=found.why if is_chosen else "",
        keeps_pace=found.keeps_pace and is_chosen,
        name=suggestion.model.name,
        title=suggestion.model.title,
        reference=suggestion.ref,
        licence=suggestion.model.licence,
        n_parameters=suggestion.candidate.n_parameters,
        n_ctx_train=suggestion.n_ctx_train,
        quant=_quant(suggestion.candidate),
    )


def describe_repository(hit: SearchHit) -> HubRepository:
    """Return a repository of the hub with every inspected quant."""
    return HubRepository(
        repo=hit.listed.repo,
        is_checkpoint=hit.listed.is_checkpoint,
        n_downloads=hit.listed.n_downloads,
        licence=hit.listed.licence or "",
        is_gated=hit.listed.is_gated,
        models=tuple(
            HubModel(
                family.architecture,
                family.n_parameters,
                family.n_ctx_train or 0,
                tuple(_quant(candidate) for candidate in family.candidates),
            )
            for family in hit.families
        ),
        n_left_out=hit.n_left_out,
        problem=hit.problem,
    )


def _quant(candidate: Candidate) -> Quant:
    return Quant(candidate.name, candidate.n_bytes, describe_fit(candidate.fit))


def describe_type(row: TypeRow, fit: Fit) -> TypeChoice:
    """Return a type that a model could be quantized to, with its fit."""
    return TypeChoice(
        quant=Quant(row.type, row.bytes, describe_fit(fit)),
        bits_per_weight=row.bits_per_weight,
        perplexity_loss=row.perplexity_loss,
        max_tokens_per_s=row.max_tokens_per_s,
        needs_imatrix=row.needs_imatrix,
        description=row.description,
    )


def describe_import(placed: ModelRef, placement: ImportPlan, way: str) -> PlacementResult:
    """Return a model that was imported, and how."""
    return PlacementResult(placed.id, str(placed.path), placement.n_bytes, cast("ImportWay", way))


def describe_removal(removal: Removal) -> RemovalResult:
    """Return what a removal deletes, or deleted."""
    return RemovalResult(removal.ref.id, tuple(map(str, removal.paths)), removal.n_bytes_freed)
