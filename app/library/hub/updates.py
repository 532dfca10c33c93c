"""Which models of this machine have a newer revision on the hub. It is asked when a person asks, never by itself.

A model is known by the names and the recorded hashes of its files: the folder of a model is named after its repository.
What is not comparable (no hash on record, converted here, of another source) is said to be so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from app.library.download.http_session import HttpSession
from app.library.hub.access import HubAccess, NotOnHubError, async_http_client
from app.library.hub.remote_model import QUICK_RETRIES
from app.library.hub.repository import REPO_NAME, Repository, fetch_repository
from app.library.local.index import Index, expected_sha256, verified_files
from app.library.local.model_files import ModelRef
from app.protocol.library import ModelUpdate
from quantizer.system.errors import UserError

_N_TOGETHER = 6
_LONGEST_S = 90.0  # for one repository: a very slow hub counts as stalled
_OWN = (
    "{repo} has another file {name}, but this one was not downloaded by localllm: it may be your own. "
    "`localllm pull` with --overwrite replaces it."
)
_NO_HASH = "Its hash is not on record: verify it, then ask again."


@dataclass(frozen=True, slots=True)
class HashedModel:
    """A model with the names of its files and their recorded SHA-256, "" where there is none; whether all files were
    downloaded, or some may be the person's own."""

    ref: ModelRef
    files: tuple[tuple[str, str], ...]
    is_downloaded: bool


def hashed_models(refs: Iterable[ModelRef], index: Index) -> list[HashedModel]:
    """Return the models of `refs` that lie in a folder of a repository and may come from the hub. Reads the disk."""
    found = []
    for ref in refs:
        is_elsewhere = ":" in index.origin(ref.path).partition(" ")[0]  # ollama:NAME, pypi:PACKAGE
        if REPO_NAME.fullmatch(ref.repo) and not is_elsewhere:
            paths = verified_files(ref.path)
            files = tuple((path.name, expected_sha256(path, index)) for path in paths)
            found.append(HashedModel(ref, files, all(index.origin(path) for path in paths)))
    return found


async def find_updates(models: Sequence[HashedModel], access: HubAccess) -> list[ModelUpdate]:
    """Return for each model whether the hub has a newer revision, each repository asked once. Raises HubError if the
    hub cannot be reached for any."""
    limit = asyncio.Semaphore(_N_TOGETHER)

    async def fetch(repo: str) -> Repository | UserError:
        try:
            async with limit, asyncio.timeout(_LONGEST_S):
                return await fetch_repository(session, repo, "", QUICK_RETRIES)
        except TimeoutError:
            return UserError(f"{repo} takes too long.", "Try again later.")
        except UserError as error:  # it may be no repository of the hub
            return error

    repos = list(dict.fromkeys(model.ref.repo for model in models))
    async with async_http_client(QUICK_RETRIES.stall_s) as http:
        session = HttpSession(http, access)
        answers = dict(zip(repos, await asyncio.gather(*map(fetch, repos)), strict=True))
    refused = [answer for answer in answers.values() if isinstance(answer, UserError)]
    lost = [error for error in refused if not isinstance(error, NotOnHubError)]  # a folder may be of the person's own
    if lost and len(refused) == len(repos):
        raise lost[0]
    return [compared(model, answers[model.ref.repo]) for model in models]


def compared(model: HashedModel, answer: Repository | UserError) -> ModelUpdate:
    """Return what the answer of the hub about its repository means for a model."""
    found = ModelUpdate(id=model.ref.id, path=str(model.ref.path), repo=model.ref.repo)
    if isinstance(answer, UserError):
        return replace(found, reason=answer.cause)
    newer = []
    for name, sha256 in model.files:
        there = [file for file in answer.files if file.name == name and file.digest.kind == "sha256"]
        if not there:
            return replace(found, reason=f"{answer.id} has no file {name}: it was made here, or is gone there.")
        if not sha256:
            return replace(found, reason=_NO_HASH)
        if all(file.digest.hex != sha256 for file in there):
            newer.append(there[0])
    if not newer:
        return replace(found, state="current")
    if not model.is_downloaded:
        return replace(found, reason=_OWN.format(repo=answer.id, name=newer[0].name))
    first = next(file for file in answer.files if file.name == model.files[0][0])
    n_bytes, reference = sum(file.n_bytes for file in newer), f"{answer.id}/{first.path}"
    return replace(found, state="newer", reference=reference, n_bytes=n_bytes, commit=answer.commit)
