"""The library's values as they cross processes: local models, types, imports and removals.

Owns the conversion to `app.protocol.library`, for the service and for `--json`. Reads nothing.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from app.protocol.library import (
    ImportWay,
    LocalModel,
    ModelFit,
    PlacementResult,
    Quant,
    TypeChoice,
)

if TYPE_CHECKING:
    from app.library.local.index import LibraryEntry
    from app.library.local.model_files import ModelRef
    from app.library.local.placement import ImportPlan
    from app.library.machine_fit.type_table import TypeRow

__all__ = [
    "LIBRARY",
    "describe_import",
    "describe_model",
    "describe_type",
]

LIBRARY = "library"  # `where` of a model in the models folder


def describe_model(entry: LibraryEntry, fit: ModelFit | None = None) -> LocalModel:
    """Return a model of this machine; its facts are empty where the file is damaged or not read yet."""
    facts = asdict(entry.facts) if entry.facts else {}
    return LocalModel(
        id=entry.ref.id,
        where=entry.ref.place or LIBRARY,
        path=str(entry.ref.path),
        n_bytes=entry.disk.n_bytes,
        modified_s=round(entry.disk.modified_s),
        damaged=entry.fault,
        fit=fit,
        **facts,
    )


def describe_type(row: TypeRow, fit: ModelFit) -> TypeChoice:
    """Return a type that a model could be quantized to, with its fit."""
    return TypeChoice(
        quant=Quant(row.type, row.bytes, fit),
        bits_per_weight=row.bits_per_weight,
        perplexity_loss=row.perplexity_loss,
        max_tokens_per_s=row.max_tokens_per_s,
        needs_imatrix=row.needs_imatrix,
        description=row.description,
    )


def describe_import(placed: ModelRef, placement: ImportPlan, way: str) -> PlacementResult:
    """Return a model that was imported, and how."""
    return PlacementResult(placed.id, str(placed.path), placement.n_bytes, cast("ImportWay", way))
