"""Which quant of a repository runs best on this machine, asked of the planner before anything is fetched.

Owns what the planner is told of each: one header is read over HTTP, and the others are taken for the same model in
other types where their sizes bear that out. The rule is `choice`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from app.library.choice import Candidate
from app.library.choice import choose as best_of
from app.library.fit import Circumstances, circumstances_here
from app.library.hub_access import HubAccess, HubError, http_client
from app.library.remote_model import read_remote_model
from app.library.repository import RepoModel, Repository
from app.library.selection import Choice, Choose
from app.settings import Settings
from offload.model import PlannedModel
from offload.wording import speed
from quantizer.file_types import FILE_TYPES

__all__ = ["best_quant", "choose_here"]

_SIZE_TOLERANCE = 0.12  # between what we would make of a type and what others publish under its name


def choose_here(settings: Settings, access: HubAccess) -> Choose:
    """Return what chooses among the quants of a repository for this machine, which is measured when it is asked."""

    def choose(repository: Repository) -> Choice:
        here = circumstances_here(settings)
        with http_client() as http:
            return best_quant(
                repository,
                here,
                lambda model: read_remote_model(http, repository.remote(model.files[0], access).url, access),
            )

    return choose


def best_quant(repository: Repository, here: Circumstances, read: Callable[[RepoModel], PlannedModel]) -> Choice:
    """Return the best of a repository's quants for `here`; `read` gives the headers of one.

    Raises HubError where none runs, and what `read` raises.
    """
    models = {model.name: model for model in repository.models}
    best = best_of([_candidate(model, planned, here) for model, planned in _planned(repository, read)])
    if best is None:
        raise HubError(f"No quant of {repository.id} runs on this machine.", f"Name one: {repository.id}:QUANT.")
    pace = f", at about {speed(best.fit.decode_tps)} tokens a second" if best.fit.decode_tps else ""
    verdict = "the best that runs well here" if best.fit.runs_well else "none runs well here, this one runs best"
    return Choice(models[best.name], f"Of {len(models)} quants {verdict}{pace}.")


def _planned(
    repository: Repository, read: Callable[[RepoModel], PlannedModel]
) -> Iterator[tuple[RepoModel, PlannedModel]]:
    smallest, *others = repository.models
    known = read(smallest)
    yield smallest, known
    for model in others:
        planned = known.quantized(FILE_TYPES[model.quant]) if model.quant in FILE_TYPES else None
        is_same = planned is not None and abs(planned.n_bytes / model.n_bytes - 1) <= _SIZE_TOLERANCE
        yield model, planned if planned is not None and is_same else read(model)


def _candidate(model: RepoModel, planned: PlannedModel, here: Circumstances) -> Candidate:
    n_parameters = sum(math.prod(tensor.shape) for tensor in planned.tensors)
    return Candidate(model.name, model.n_bytes, 8 * model.n_bytes / n_parameters, here.fit(planned))
