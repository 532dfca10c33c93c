"""Selection of one model of a repository: by the reference, or the quant that runs best on this machine.

Owns how quants and files are matched, which files are one family (the same model in several types), the estimate of a
whole family from one header, which is read over HTTP, and where a model to plan for is looked up: a path, the library,
the catalogue, the hub. The rule among candidates is `machine_fit.planning`'s.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, urlsplit, urlunsplit

from app.library.download.http_session import HttpSession
from app.library.download.remote_file import RemoteFile
from app.library.hub.access import HubAccess, HubError, NotOnHubError, async_http_client, hub_access_from_environment
from app.library.hub.catalogue import resolve_reference
from app.library.hub.reference import FileReference, RepoReference, UrlReference
from app.library.hub.remote_model import QUICK_RETRIES, read_remote_model, read_remote_projector
from app.library.hub.repository import RepoModel, Repository, fetch_file_info, fetch_repository
from app.library.local.naming import listed
from app.library.local.resolve import UnknownModelError, resolve
from app.library.machine_fit.planning import PlanningContext, choose_quant
from app.protocol.library import Quant
from app.settings.settings import Settings
from offload.footprint.auxiliary_models import AuxiliaryModels
from offload.footprint.model import PlannedModel
from offload.format import format_speed
from quantizer.gguf.file_names import shard_index, shard_path
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.tensor_types import FILE_TYPES
from quantizer.gguf.validation import check_answers
from quantizer.system.errors import UsageError

_MAX_LISTED = 24
_DYNAMIC = "UD-"  # Unsloth's quants, whose types follow measured importance
_SEPARATORS = re.compile(r"[-._]+")
_SPELLINGS = {"F16": ("F16", "FP16"), "F32": ("F32", "FP32")}


@dataclass(frozen=True, slots=True)
class QuantChoice:
    """A model of a repository, and the reason as a sentence."""

    model: RepoModel
    reason: str


ChooseQuant: TypeAlias = Callable[[Repository], QuantChoice]


def select(repository: Repository, reference: RepoReference | FileReference, choose: ChooseQuant) -> QuantChoice:
    """Return the model of `reference`; `choose` decides among several. Raises NotOnHubError if there is none."""
    models = repository.models
    if isinstance(reference, FileReference):
        return QuantChoice(_with_file((*models, *repository.sidecars), reference), "It was named.")
    if not models:
        raise _no_model(repository)
    if reference.quant:
        return _with_quant(models, reference)
    return QuantChoice(models[0], "It is the only one.") if len(models) == 1 else choose(repository)


def _with_file(models: Sequence[RepoModel], reference: FileReference) -> RepoModel:
    for model in models:
        if any(file.path == reference.path for file in model.files):
            return model
    cause = f"{reference.repo} has no model {reference.path}, or not all parts of it."
    raise NotOnHubError(cause, f"It has {listed((model.name for model in models), _MAX_LISTED)}.")


def _with_quant(models: Sequence[RepoModel], reference: RepoReference) -> QuantChoice:
    """Return the model of the quant or of the name; of a quant that is there as a dynamic one only, that."""
    wanted = reference.quant.upper()
    found = [model for model in models if model.quant == wanted]
    found = found or [model for model in models if wanted in (model.name.upper(), model.name[:-5].upper())]
    reason = "It was named."
    if not found:
        found = [model for model in models if model.quant == _DYNAMIC + wanted]
        reason = f"There is no plain {wanted}; this is {_DYNAMIC}{wanted}, with more bits where they matter."
    if len(found) == 1:
        return QuantChoice(found[0], reason)
    if found:
        names = listed((model.name for model in found), _MAX_LISTED)
        raise NotOnHubError(f"{reference.repo} has {len(found)} models in {reference.quant}.", f"Name one of {names}.")
    quants = listed((model.quant or model.name for model in models), _MAX_LISTED)
    raise NotOnHubError(f"{reference.repo} has nothing in {reference.quant}.", f"It has {quants}.")


def _no_model(repository: Repository) -> NotOnHubError:
    if any(file.path.endswith(".safetensors") for file in repository.files):
        remedy = f"It is a checkpoint: make a GGUF of it with `localllm pull {repository.id} --quantize Q4_K_M`."
    else:
        remedy = "Look for a repository whose name ends in GGUF."
    return NotOnHubError(f"{repository.id} has no GGUF file.", remedy)


def families_of(models: Sequence[RepoModel]) -> tuple[tuple[RepoModel, ...], ...]:
    """Group the models that differ only in their quant, the largest family first."""
    families: dict[str, list[RepoModel]] = {}
    for model in models:
        families.setdefault(_family_name(model), []).append(model)
    return tuple(tuple(family) for family in sorted(families.values(), key=lambda family: -len(family)))


def quants_of(
    family: Sequence[RepoModel], read: RepoModel, planned: PlannedModel, here: PlanningContext
) -> list[Quant]:
    """Return the fit `here` of each model of `family`, estimated from `planned`, the headers of its member `read`.

    Raises UsageError for a cache type that the model does not support.
    """
    n_overhead = read.n_bytes - planned.n_bytes  # headers and padding, the same in all
    return [
        Quant(
            model.quant or model.name,
            model.n_bytes,
            here.fit(planned if model is read else _in_quant(planned, model.quant, model.n_bytes - n_overhead)),
        )
        for model in family
    ]


def _in_quant(planned: PlannedModel, quant: str, n_bytes: int) -> PlannedModel:
    """Estimate the model in another type: with our mix if we have the type, scaled to the size of its files."""
    known = FILE_TYPES.get(quant)
    return (planned.quantized(known) if known else planned).resized(max(1, n_bytes))


def _family_name(model: RepoModel) -> str:
    stem = model.name.upper().removesuffix(".GGUF")
    for spelling in _SPELLINGS.get(model.quant, (model.quant,)):
        stem = stem.replace(spelling, "") if spelling else stem
    return _SEPARATORS.sub("-", stem).strip("-")


def quant_chooser(access: HubAccess, here: Callable[[], PlanningContext]) -> ChooseQuant:
    """Return a function that chooses among quants for `here`. It runs its own event loop: call it in a thread."""

    async def read(repository: Repository, model: RepoModel) -> PlannedModel:
        async with async_http_client(QUICK_RETRIES.stall_s) as http:
            files = [repository.remote(file, access) for file in model.files]
            return await read_remote_model(HttpSession(http, access), files)

    def choose_now(repository: Repository) -> QuantChoice:
        smallest = families_of(repository.models)[0][0]
        planned = asyncio.run(read(repository, smallest))
        return best_quant(repository, smallest, planned, here())

    return choose_now


def best_quant(repository: Repository, read: RepoModel, planned: PlannedModel, here: PlanningContext) -> QuantChoice:
    """Return the best quant of the repository's largest family; `planned` has the headers of its member `read`.

    Raises HubError if none runs here.
    """
    family = families_of(repository.models)[0]
    quants = quants_of(family, read, planned, here)
    best = choose_quant(quants, planned.n_parameters)
    if best is None:
        raise HubError(f"No quant of {repository.id} runs on this machine.", f"Name one: {repository.id}:QUANT.")
    pace = f", at about {format_speed(best.fit.decode_tps)} tokens a second" if best.fit.decode_tps else ""
    rank = "the best that runs well here" if best.fit.runs_well else "none runs well here, this one runs best"
    return QuantChoice(family[quants.index(best)], f"Of {len(family)} quants {rank}{pace}.")


def find_model(name: str, settings: Settings, here: Callable[[], PlanningContext]) -> tuple[PlannedModel, str]:
    """Return the model called `name`, and a notice about where it was found: "" for one on this machine.

    One that is not here has the projector that a pull would fetch.
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
        model = await read_remote_model(session, files)
        return await _with_projector(session, repository, choice.model, model)


async def _with_projector(
    session: HttpSession, repository: Repository, chosen: RepoModel, model: PlannedModel
) -> PlannedModel:
    """Return `model` with the projector that a pull would fetch; without one that does not belong to it."""
    for file in repository.projectors_of(chosen)[:1]:
        with suppress(HubError, ModelFileError):
            projector = await read_remote_projector(session, repository.remote(file, session.access), model)
            return replace(model, auxiliary=AuxiliaryModels(projector=projector))
    return model


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
