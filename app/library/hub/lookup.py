"""Lookup of a model to plan for: on this machine, or on the hub, of which only the headers are fetched.

Owns the order: a path, the library, the catalogue, the hub.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from app.library.download.http_session import HttpSession
from app.library.download.remote_file import RemoteFile
from app.library.hub.access import HubAccess, async_http_client, hub_access_from_environment
from app.library.hub.catalogue import resolve_reference
from app.library.hub.reference import FileReference, RepoReference, UrlReference
from app.library.hub.remote_model import QUICK_RETRIES, read_remote_model
from app.library.hub.repository import fetch_file_info, fetch_repository
from app.library.hub.selection import quant_chooser, select
from app.library.local.resolve import UnknownModelError, resolve
from app.library.machine_fit.planning import PlanningContext
from app.settings.settings import Settings
from offload.footprint.model import PlannedModel
from quantizer.errors import UsageError
from quantizer.gguf.shards import shard_index, shard_path
from quantizer.gguf.validation import check_answers

__all__ = ["find_model"]


def find_model(name: str, settings: Settings, here: Callable[[], PlanningContext]) -> tuple[PlannedModel, str]:
    """Return the model called `name`, and a notice about where it was found: "" for one on this machine.

    `here` is called for a repository with several quants. Raises UnknownModelError for an unknown name, HubError where
    the hub refuses, ModelFileError for a file that would crash llama.cpp.
    """
    try:
        model = PlannedModel.read(resolve(name, settings).path)
    except UnknownModelError as unknown:
        return _on_hub(name, unknown, here)
    check_answers(model.header, needs_tokenizer=False)  # a plan needs sizes only
    return model, ""


def _on_hub(name: str, unknown: UnknownModelError, here: Callable[[], PlanningContext]) -> tuple[PlannedModel, str]:
    access = hub_access_from_environment()
    try:
        reference = resolve_reference(name, access.endpoint)
    except UsageError as error:
        raise unknown from error
    model = asyncio.run(_fetch_model(reference, access, here))
    return model, f"It is not on this machine: only the header of {model.header.path.name} was read."


async def _fetch_model(
    reference: RepoReference | FileReference | UrlReference, access: HubAccess, here: Callable[[], PlanningContext]
) -> PlannedModel:
    async with async_http_client(QUICK_RETRIES.stall_s) as http:
        session = HttpSession(http, access)
        if isinstance(reference, UrlReference):
            return await read_remote_model(session, await _files_at(session, reference))
        revision = reference.revision if isinstance(reference, FileReference) else ""
        repository = await fetch_repository(session, reference.repo, revision, QUICK_RETRIES)
        choice = await asyncio.to_thread(select, repository, reference, quant_chooser(access, here))
        files = [repository.remote(file, access) for file in choice.model.files]
        return await read_remote_model(session, files)


async def _files_at(session: HttpSession, reference: UrlReference) -> list[RemoteFile]:
    """Return the file at a URL; of a split model all of them, which are in one folder."""
    shard = shard_index(reference.name)
    if shard is None or shard[0] != 0:
        return [await fetch_file_info(session, reference.url, reference.name, QUICK_RETRIES)]
    parts = urlsplit(reference.url)
    folder = parts.path.rpartition("/")[0]
    names = [shard_path(Path(reference.name), index, shard[1]).name for index in range(shard[1])]
    urls = [urlunsplit(parts._replace(path=f"{folder}/{quote(name)}")) for name in names]
    return [await fetch_file_info(session, url, name, QUICK_RETRIES) for name, url in zip(names, urls, strict=True)]
