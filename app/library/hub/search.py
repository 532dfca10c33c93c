"""Search of the hub with a fit for every quant, computed from headers before any download.

Owns how many repositories are inspected at once, and how much of each. A repository that fails has its `problem`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.library.download.http_session import HttpSession
from app.library.hub.access import HubAccess, HubError, async_http_client
from app.library.hub.hub_requests import fetch_config, fetch_repository
from app.library.hub.remote_model import QUICK_RETRIES, read_remote_model
from app.library.hub.repo_list import ListedRepo
from app.library.hub.repository import Repository
from app.library.hub.selection import candidates_of, families_of
from app.library.machine_fit.planning import PlanningContext
from app.library.machine_fit.quant_rule import Candidate
from offload.footprint.model import PlannedModel
from quantizer.convert.config_header import config_header
from quantizer.errors import UserError
from quantizer.gguf.file_types import FILE_TYPES

__all__ = ["Family", "SearchHit", "inspect_repos"]

_N_TOGETHER = 6
_LONGEST_S = 90.0  # for one repository: a very slow hub counts as stalled
_MOST_FAMILIES = 3  # of which headers are read; some repositories hold dozens of models
_CONVERTED = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model of a repository in its quants. `n_ctx_train` is 0 if unknown."""

    architecture: str
    n_parameters: int
    n_ctx_train: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A repository: its families, or the `problem` of reading them; `n_left_out` models were not read."""

    listed: ListedRepo
    families: tuple[Family, ...] = ()
    problem: str = ""
    n_left_out: int = 0


async def inspect_repos(
    listed: Sequence[ListedRepo], access: HubAccess, here: PlanningContext, advance: Callable[[], None]
) -> list[SearchHit]:
    """Return a hit for each of `listed`, in order; several are read at once, and `advance` is called for each."""
    limit = asyncio.Semaphore(_N_TOGETHER)

    async def hit(each: ListedRepo) -> SearchHit:
        async with limit:
            found = await _hit(each, session, here)
        advance()
        return found

    async with async_http_client(QUICK_RETRIES.stall_s) as http:
        session = HttpSession(http, access)
        async with asyncio.TaskGroup() as group:
            readings = [group.create_task(hit(each)) for each in listed]
    return [reading.result() for reading in readings]


async def _hit(listed: ListedRepo, session: HttpSession, here: PlanningContext) -> SearchHit:
    try:
        async with asyncio.timeout(_LONGEST_S):
            if listed.is_checkpoint:
                return SearchHit(listed, (await _checkpoint(listed.repo, session, here),))
            repository = await fetch_repository(session, listed.repo, "", QUICK_RETRIES)
            return await _offered(listed, repository, session, here)
    except TimeoutError:
        return SearchHit(listed, problem="It takes too long.")
    except UserError as error:
        return SearchHit(listed, problem=error.cause)


async def _offered(
    listed: ListedRepo, repository: Repository, session: HttpSession, here: PlanningContext
) -> SearchHit:
    if not repository.models:
        raise HubError(f"{listed.repo} has no whole GGUF model.")
    families = families_of(repository.models)
    read = []
    for family in families[:_MOST_FAMILIES]:
        files = [repository.remote(file, session.access) for file in family[0].files]
        planned = await read_remote_model(session, files)
        read.append(_family(planned, candidates_of(family, family[0], planned, here)))
    return SearchHit(listed, tuple(read), n_left_out=sum(map(len, families[_MOST_FAMILIES:])))


async def _checkpoint(repo: str, session: HttpSession, here: PlanningContext) -> Family:
    """Return the family of a checkpoint in the usual types, from its config.json."""
    header = config_header(await fetch_config(session, repo, QUICK_RETRIES), repo.rpartition("/")[2])
    outline = PlannedModel(header, header.tensors)
    n_parameters = sum(tensor.n_elements for tensor in header.tensors)
    converted = [(name, outline.quantized(FILE_TYPES[name])) for name in _CONVERTED]
    return _family(
        outline, [Candidate(name, model.n_bytes, n_parameters, here.fit(model)) for name, model in converted]
    )


def _family(planned: PlannedModel, candidates: Sequence[Candidate]) -> Family:
    return Family(
        architecture=planned.header.architecture,
        n_parameters=candidates[0].n_parameters,
        n_ctx_train=planned.n_ctx_train,
        candidates=tuple(sorted(candidates, key=lambda candidate: -candidate.n_bytes)),
    )
