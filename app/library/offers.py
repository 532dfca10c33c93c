"""The models that a repository offers as candidates for this machine, from the header of one of each family. Pure.

Owns which files hold the same model in other types, and what is then known of them: their sizes, and how types would
share those out. Knows nothing of HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.library.choice import Candidate
from app.library.fit import Circumstances
from app.library.repository import RepoModel
from offload.model import PlannedModel
from quantizer.file_types import FILE_TYPES

__all__ = ["candidates_of", "families_of"]

_SEPARATORS = re.compile(r"[-._]+")
_SPELLINGS = {"F16": ("F16", "FP16"), "F32": ("F32", "FP32")}


def families_of(models: Sequence[RepoModel]) -> tuple[tuple[RepoModel, ...], ...]:
    """Return the models that differ in nothing but their quant together, the largest family first."""
    families: dict[str, list[RepoModel]] = {}
    for model in models:
        families.setdefault(_family_name(model), []).append(model)
    return tuple(tuple(family) for family in sorted(families.values(), key=lambda family: -len(family)))


def candidates_of(
    family: Sequence[RepoModel], read: RepoModel, planned: PlannedModel, here: Circumstances
) -> list[Candidate]:
    """Return each model of `family` as it would run `here`, knowing `planned`, what the files of `read` say.

    Raises UsageError for a cache that the model cannot have.
    """
    n_parameters = sum(tensor.n_elements for tensor in planned.tensors)
    n_around = read.n_bytes - planned.n_bytes  # headers and padding, which others have too
    return [
        Candidate(
            model.quant or model.name,
            model.n_bytes,
            n_parameters,
            here.fit(planned if model is read else _in_quant(planned, model.quant, model.n_bytes - n_around)),
        )
        for model in family
    ]


def _in_quant(planned: PlannedModel, quant: str, n_bytes: int) -> PlannedModel:
    """The same model in another type: as we would make it where the type is ours, and always as large as it is."""
    known = FILE_TYPES.get(quant)
    return (planned.quantized(known) if known else planned).resized(max(1, n_bytes))


def _family_name(model: RepoModel) -> str:
    stem = model.name.upper().removesuffix(".GGUF")
    for spelling in _SPELLINGS.get(model.quant, (model.quant,)):
        stem = stem.replace(spelling, "") if spelling else stem
    return _SEPARATORS.sub("-", stem).strip("-")
