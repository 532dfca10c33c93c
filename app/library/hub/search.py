"""Search of the hub with a fit for every quant, computed from headers before any download.

Owns how many repositories are inspected at once, and how much of each. A repository that fails has its `problem`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from app.library.download.http_session import HttpSession
from app.library.hub.access import HubAccess, HubError, async_http_client
from app.library.hub.hub_requests import fetch_config, fetch_repository
from app.library.hub.remote_model import QUICK_RETRIES, read_remote_model
from app.library.hub.repository import Repository
from app.library.hub.selection import families_of, quants_of
from app.library.machine_fit.planning import PlanningContext
from app.protocol.library import HubModel, HubRepository, Quant
from offload.footprint.model import PlannedModel
from quantizer.convert.checkpoint_source import config_header
from quantizer.errors import UserError
from quantizer.gguf.file_types import FILE_TYPES

__all__ = ["inspect_repos"]

_N_TOGETHER = 6
_LONGEST_S = 90.0  # for one repository: a very slow hub counts as stalled
_MOST_FAMILIES = 3  # of which headers are read; some repositories hold dozens of models
_CONVERTED = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M")


async def inspect_repos(
    listed: Sequence[HubRepository], access: HubAccess, here: PlanningContext, advance: Callable[[], None]
) -> list[HubRepository]:
    """Return `listed` with the models of each, in order; several are read at once, and `advance` is called for each."""
    limit = asyncio.Semaphore(_N_TOGETHER)

    async def inspect(each: HubRepository) -> HubRepository:
        async with limit:
            found = await _inspect(each, session, here)
        advance()
        return found

    async with async_http_client(QUICK_RETRIES.stall_s) as http:
        session = HttpSession(http, access)
        async with asyncio.TaskGroup() as group:
            readings = [group.create_task(inspect(each)) for each in listed]
    return [reading.result() for reading in readings]


async def _inspect(listed: HubRepository, session: HttpSession, here: PlanningContext) -> HubRepository:
    try:
        async with asyncio.timeout(_LONGEST_S):
            if listed.is_checkpoint:
                return replace(listed, models=(await _checkpoint(listed.repo, session, here),))
            repository = await fetch_repository(session, listed.repo, "", QUICK_RETRIES)
            return await _with_models(listed, repository, session, here)
    except TimeoutError:
        return replace(listed, problem="It takes too long.")
    except UserError as error:
        return replace(listed, problem=error.cause)


async def _with_models(
    listed: HubRepository, repository: Repository, session: HttpSession, here: PlanningContext
) -> HubRepository:
    if not repository.models:
        raise HubError(f"{listed.repo} has no whole GGUF model.")
    families = families_of(repository.models)
    read = []
    for family in families[:_MOST_FAMILIES]:
        files = [repository.remote(file, session.access) for file in family[0].files]
        planned = await read_remote_model(session, files)
        read.append(_model(planned, quants_of(family, family[0], planned, here)))
    return replace(listed, models=tuple(read), n_left_out=sum(map(len, families[_MOST_FAMILIES:])))


async def _checkpoint(repo: str, session: HttpSession, here: PlanningContext) -> HubModel:
    """Return a checkpoint in the usual types, from its config.json."""
    header = config_header(await fetch_config(session, repo, QUICK_RETRIES), repo.rpartition("/")[2])
    outline = PlannedModel(header, header.tensors)
    converted = [(name, outline.quantized(FILE_TYPES[name])) for name in _CONVERTED]
    return _model(outline, [Quant(name, model.n_bytes, here.fit(model)) for name, model in converted])


def _model(planned: PlannedModel, quants: Sequence[Quant]) -> HubModel:
    largest_first = tuple(sorted(quants, key=lambda quant: -quant.n_bytes))
    return HubModel(planned.header.architecture, planned.n_parameters, planned.n_ctx_train, largest_first)
