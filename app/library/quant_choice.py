"""Which quant of a repository runs best on this machine, asked of the planner before anything is fetched.

Owns the question: one header of the repository's largest family is read over HTTP. The rule is `choice`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.library.choice import choose
from app.library.download.connection import Connection
from app.library.fit import Circumstances, circumstances_here
from app.library.hub_access import HubAccess, HubError, async_http_client
from app.library.offers import candidates_of, families_of
from app.library.remote_model import QUICK_RETRIES, read_remote_model
from app.library.repository import RepoModel, Repository
from app.library.selection import Choice, Choose
from app.settings import Settings
from offload.model import PlannedModel
from offload.wording import speed

__all__ = ["best_quant", "choose_here", "chooser"]


def choose_here(settings: Settings, access: HubAccess) -> Choose:
    """Return what chooses among the quants of a repository for this machine, which is measured when it is asked."""
    return chooser(access, lambda: circumstances_here(settings))


def chooser(access: HubAccess, here: Callable[[], Circumstances]) -> Choose:
    """Return what chooses for `here`.

    It runs an event loop of its own, so it is for threads that have none.
    """

    async def read(repository: Repository, model: RepoModel) -> PlannedModel:
        async with async_http_client(QUICK_RETRIES.stall_s) as http:
            files = [repository.remote(file, access) for file in model.files]
            return await read_remote_model(Connection(http, access), files)

    def choose_now(repository: Repository) -> Choice:
        smallest = families_of(repository.models)[0][0]
        planned = asyncio.run(read(repository, smallest))
        return best_quant(repository, smallest, planned, here())

    return choose_now


def best_quant(repository: Repository, read: RepoModel, planned: PlannedModel, here: Circumstances) -> Choice:
    """Return the best quant of the repository's largest family, of which `planned` is what the files of `read` say.

    Raises HubError where none runs here.
    """
    family = families_of(repository.models)[0]
    candidates = candidates_of(family, read, planned, here)
    best = choose(candidates)
    if best is None:
        raise HubError(f"No quant of {repository.id} runs on this machine.", f"Name one: {repository.id}:QUANT.")
    pace = f", at about {speed(best.fit.decode_tps)} tokens a second" if best.fit.decode_tps else ""
    verdict = "the best that runs well here" if best.fit.runs_well else "none runs well here, this one runs best"
    return Choice(family[candidates.index(best)], f"Of {len(family)} quants {verdict}{pace}.")
