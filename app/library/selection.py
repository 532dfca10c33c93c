"""Which model of a repository a reference means. Pure but for the choice among quants, which is the caller's.

Owns how quants and files are named. Knows nothing of machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from app.library.hub_access import NotOnHubError
from app.library.reference import FileReference, RepoReference
from app.library.repository import RepoModel, Repository

__all__ = ["Choice", "Choose", "select"]

_MAX_LISTED = 24


@dataclass(frozen=True, slots=True)
class Choice:
    """A model of a repository, and why this one: a sentence."""

    model: RepoModel
    reason: str


Choose: TypeAlias = Callable[[Repository], Choice]


def select(repository: Repository, reference: RepoReference | FileReference, choose: Choose) -> Choice:
    """Return the model that `reference` means; `choose` is asked where several would do.

    Raises NotOnHubError for none.
    """
    models = repository.models
    if isinstance(reference, FileReference):
        return Choice(_with_file(models, reference), "It was asked for by name.")
    if not models:
        raise _no_model(repository)
    if reference.quant:
        return Choice(_with_quant(models, reference), "It was asked for by name.")
    return Choice(models[0], "The repository has no other.") if len(models) == 1 else choose(repository)


def _with_file(models: Sequence[RepoModel], reference: FileReference) -> RepoModel:
    for model in models:
        if any(file.path == reference.path for file in model.files):
            return model
    cause = f"{reference.repo} has no model {reference.path}, or not all parts of it."
    raise NotOnHubError(cause, f"It has {_listed(model.name for model in models)}.")


def _with_quant(models: Sequence[RepoModel], reference: RepoReference) -> RepoModel:
    wanted = reference.quant.upper()
    found = [model for model in models if model.quant == wanted]
    found = found or [model for model in models if wanted in (model.name.upper(), model.name[:-5].upper())]
    if len(found) == 1:
        return found[0]
    if found:
        names = _listed(model.name for model in found)
        raise NotOnHubError(f"{reference.repo} has {len(found)} models in {reference.quant}.", f"Name one of {names}.")
    quants = _listed(model.quant or model.name for model in models)
    raise NotOnHubError(f"{reference.repo} has nothing in {reference.quant}.", f"It has {quants}.")


def _no_model(repository: Repository) -> NotOnHubError:
    if any(file.path.endswith(".safetensors") for file in repository.files):
        remedy = f"It is a checkpoint: make a GGUF of it with `localllm pull {repository.id} --quantize Q4_K_M`."
    else:
        remedy = "Look for a repository whose name ends in GGUF."
    return NotOnHubError(f"{repository.id} has no GGUF file.", remedy)


def _listed(names: Iterable[str]) -> str:
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    return (", ".join(known[:_MAX_LISTED]) or "none") + more
