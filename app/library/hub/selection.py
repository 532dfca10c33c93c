"""Selection of one model: of a repository, by the reference or as the quant that runs best here, or of the catalogue.

Owns how quants and files are matched, which files are one family (the same model in several types), the estimate of a
whole family from one header, which is read over HTTP, and where a model to plan for is looked up: a path, the library,
the catalogue, the hub. The rule among candidates is `machine_fit.planning`'s.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, urlsplit, urlunsplit

from app.library.download.http_session import HttpSession
from app.library.download.remote_file import RemoteFile
from app.library.hub.access import HubAccess, HubError, NotOnHubError, async_http_client, hub_access_from_environment
from app.library.hub.catalogue import CatalogueModel, Role, resolve_reference
from app.library.hub.reference import (
    FileReference,
    HubReference,
    OllamaReference,
    PackageReference,
    RepoReference,
    UrlReference,
)
from app.library.hub.remote_model import QUICK_RETRIES, read_remote_model, read_remote_projector
from app.library.hub.repository import RepoModel, Repository, fetch_file_info, fetch_repository
from app.library.local.model_files import listed
from app.library.local.resolve import UnknownModelError, resolve
from app.library.machine_fit.planning import (
    COMFORTABLE_TPS,
    NEARLY_AS_FAST,
    PlanningContext,
    choose_quant,
    keeps_pace,
    speed_of,
    without_system,
)
from app.protocol.library import PlanDraft, Quant, Recommendation, Recommended
from app.settings.settings import Settings
from offload.footprint.auxiliary_models import AuxiliaryModels
from offload.footprint.model import PlannedModel
from offload.format import format_memory
from quantizer.figures import format_speed
from quantizer.gguf.file_names import shard_index, shard_path
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.tensor_types import FILE_TYPES
from quantizer.gguf.validation import check_answers
from quantizer.system.errors import UsageError

_MAX_LISTED = 24
_DYNAMIC = "UD-"  # Unsloth's quants, whose types follow measured importance
_SEPARATORS = re.compile(r"[-._]+")
_SPELLINGS = {"F16": ("F16", "FP16"), "F32": ("F32", "FP32")}
# Tokens a second that a model should reach: completions must keep up with typing, a small model must gain speed, and
# texts are embedded and ranked by the hundred. A chat has small models to fall back on, so its pace is what a reader
# still puts up with: just above it, a model of 35B serves better than one of 2B that is comfortable.
_PACES_TPS = {
    Role.CHAT: 10.0,
    Role.CODE: 25.0,
    Role.SMALL: 25.0,
    Role.EMBEDDING: 50.0,
    Role.RERANKING: 50.0,
}  # others are comfortable
_WITHOUT_ANSWERS = (Role.EMBEDDING, Role.RERANKING)
_SAME_SIZE = 1.4  # models are of one size class when neither has more times the parameters of the other


@dataclass(frozen=True, slots=True)
class QuantChoice:
    model: RepoModel
    reason: str


ChooseQuant: TypeAlias = Callable[[Repository], QuantChoice]


def select(repository: Repository, reference: RepoReference | FileReference, choose: ChooseQuant) -> QuantChoice:
    """Return the model of `reference`; `choose` decides among several. Raises NotOnHubError if there is none."""
    if isinstance(reference, FileReference):
        return _named_file(repository, reference)
    models = repository.models or repository.sidecars
    if not models:
        remedy = "Look for a repository whose name ends in GGUF."
        if any(file.path.endswith(".safetensors") for file in repository.files):
            remedy = f"It is a checkpoint: make a GGUF of it with `localllm pull {repository.id} --quantize Q4_K_M`."
        raise NotOnHubError(f"{repository.id} has no GGUF file.", remedy)
    if not reference.quant:
        if len(models) == 1:
            return QuantChoice(models[0], "It is the only one.")
        if not repository.models:  # how fast they are depends on the model that they draft for
            names = listed((model.name for model in models), _MAX_LISTED)
            raise NotOnHubError(f"{repository.id} has only draft heads and projectors.", f"Name one of {names}.")
        return choose(repository)
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


def _named_file(repository: Repository, reference: FileReference) -> QuantChoice:
    known = (*repository.models, *repository.sidecars)
    for model in known:
        if any(file.path == reference.path for file in model.files):
            return QuantChoice(model, "It was named.")
    cause = f"{reference.repo} has no model {reference.path}, or not all parts of it."
    raise NotOnHubError(cause, f"It has {listed((model.name for model in known), _MAX_LISTED)}.")


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
    Raises UsageError for a cache type that the model does not support."""
    n_overhead = read.n_bytes - planned.n_bytes  # headers and padding, the same in all
    found = []
    for model in family:
        estimate = planned
        if model is not read:  # our own mix of types where we have the quant, scaled to the size of its files
            known = FILE_TYPES.get(model.quant)
            estimate = (planned.quantized(known) if known else planned).resized(max(1, model.n_bytes - n_overhead))
        found.append(Quant(model.quant or model.name, model.n_bytes, here.fit(estimate)))
    return found


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
    """Return the best quant of the repository's largest family; `planned` has the headers of its member `read`. Raises
    HubError if none runs here."""
    family = families_of(repository.models)[0]
    quants = quants_of(family, read, planned, here)
    chosen = choose_quant(quants, planned.n_parameters)
    if chosen is None:
        raise HubError(f"No quant of {repository.id} runs on this machine.", f"Name one: {repository.id}:QUANT.")
    best = chosen.quant
    pace = f", at about {format_speed(best.fit.decode_tps)} tokens a second" if best.fit.decode_tps else ""
    rank = "the best that runs well here" if best.fit.runs_well else "none runs well here, this one runs best"
    reason = f"Of {len(family)} quants {rank}{pace}. {chosen.reason}".rstrip()
    return QuantChoice(family[quants.index(best)], reason)


def find_model(name: str, settings: Settings, here: Callable[[], PlanningContext]) -> tuple[PlannedModel, str]:
    """Return the model called `name`, and a notice about where it was found: "" for one on this machine. One that is
    not here has the projector that a pull would fetch. `here` is called for a repository with several quants. Raises
    UnknownModelError for an unknown name, HubError where the hub refuses, ModelFileError for a file that would crash
    llama.cpp."""
    try:
        model = PlannedModel.read(resolve(name, settings).path)
    except UnknownModelError as unknown:
        access = hub_access_from_environment()
        try:
            reference = resolve_reference(name, access.endpoint)
        except UsageError as error:
            raise unknown from error
        if isinstance(reference, OllamaReference | PackageReference):
            cause = f"{name} is not on this machine, and only headers on the hub are read without a pull."
            raise UnknownModelError(cause, f"Pull it first: localllm pull {name}.") from unknown
        model = asyncio.run(_fetch_model(reference, access, here))
        return model, f"It is not on this machine: only the header of {model.header.path.name} was read."
    check_answers(model.header, needs_tokenizer=False)  # a plan needs sizes only
    return model, ""


async def _fetch_model(reference: HubReference, access: HubAccess, here: Callable[[], PlanningContext]) -> PlannedModel:
    async with async_http_client(QUICK_RETRIES.stall_s) as http:
        session = HttpSession(http, access)
        if isinstance(reference, UrlReference):
            return await read_remote_model(session, await _files_at(session, reference))
        revision = reference.revision if isinstance(reference, FileReference) else ""
        repository = await fetch_repository(session, reference.repo, revision, QUICK_RETRIES)
        choice = await asyncio.to_thread(select, repository, reference, quant_chooser(access, here))
        files = [repository.remote(file, access) for file in choice.model.files]
        model = await read_remote_model(session, files)
        for file in repository.projectors_of(choice.model)[:1]:  # the one that a pull would fetch
            with suppress(HubError, ModelFileError):  # it does not belong to the model
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


_Fitted: TypeAlias = tuple[PlannedModel, tuple[Quant, ...]]  # a model in F16, and its quants with their fits here


def recommend_each(
    models: Sequence[CatalogueModel], roles: Iterable[Role], here: PlanningContext
) -> tuple[Recommendation, ...]:
    """Recommend for each role the first of `models` (best first) that has it, fits here and is fast enough for it. If
    none is, recommend the first that is nearly as fast as the fastest that runs. A newer one of the same size and speed
    goes before either. Memory for the system and other programs is left free. The fits of a model, which take time, are
    computed once, and so is what draft models would do beside one that is recommended to write."""
    here = replace(here, machine=without_system(here.machine))

    @cache
    def fitted(index: int) -> _Fitted:
        outline = models[index].outline()
        quantized = ((file_type.name, outline.quantized(file_type)) for file_type in models[index].quants)
        return outline, tuple(Quant(name, planned.n_bytes, here.fit(planned)) for name, planned in quantized)

    @cache
    def drafts(name: str, quant: str) -> tuple[PlanDraft, ...]:
        outline = next(model for model in models if model.name == name).outline()
        return here.drafts(outline.quantized(FILE_TYPES[quant]))

    found = []
    for role in roles:
        each = _recommend(models, role, fitted, here)
        if each.model is not None and role not in _WITHOUT_ANSWERS:
            each = replace(each, model=replace(each.model, drafts=drafts(each.model.name, each.model.quant.name)))
        found.append(each)
    return tuple(found)


def _recommend(
    models: Sequence[CatalogueModel], role: Role, fitted: Callable[[int], _Fitted], here: PlanningContext
) -> Recommendation:
    pace_tps = _PACES_TPS.get(role, COMFORTABLE_TPS)
    able = [i for i, model in enumerate(models) if role in model.roles]
    passed_over: list[Recommended] = []
    for i in able:
        found = _best_quant(models[i], fitted(i), role, pace_tps)
        if keeps_pace(found.quant, pace_tps):
            newer = [k for k in able if k > i and models[k].published > models[i].published]
            alike = [k for k in newer if _is_same_size(models[k].parameters, models[i].parameters)]
            others = [_best_quant(models[k], fitted(k), role, pace_tps) for k in alike]
            best = _newest(found, (other for other in others if keeps_pace(other.quant, pace_tps)))
            why = _why(best, found, pace_tps, len(passed_over))
            why = f"{why} {best.why}".rstrip()
            return Recommendation(role.value, why, replace(best, why=why, keeps_pace=True), tuple(passed_over))
        passed_over.append(found)
    running = [model for model in passed_over if model.quant.fit.verdict != "wont_run"]
    if not running:
        free = here.machine.host.free_bytes + sum(gpu.free_bytes for gpu in here.machine.gpus if not gpu.shares_host)
        why = f"No model of this kind runs in the {format_memory(free)} that are free."
        return Recommendation(role.value, why, None, tuple(passed_over))
    enough_tps = NEARLY_AS_FAST * max(speed_of(model.quant) for model in running)
    first = next(model for model in running if speed_of(model.quant) >= enough_tps)
    best = _newest(first, (model for model in running if _is_same_size(model.n_parameters, first.n_parameters)))
    kind = "the best" if best is first else "the newest"
    why = f"No model of this kind fits and reaches {format_speed(pace_tps)} tok/s; this is {kind} of the fastest."
    why = f"{why} {best.why}".rstrip()
    others = [other for other in passed_over if other is not best]
    return Recommendation(role.value, why, replace(best, why=why), tuple(others))


def _is_same_size(n_parameters: int, others: int) -> bool:
    return max(n_parameters, others) <= _SAME_SIZE * min(n_parameters, others)


def _newest(first: Recommended, others: Iterable[Recommended]) -> Recommended:
    """Return the newest of `first` and those of `others` that are nearly as fast, the earlier of equals."""
    as_fast = (other for other in others if speed_of(other.quant) >= NEARLY_AS_FAST * speed_of(first.quant))
    return max((first, *as_fast), key=lambda model: model.published)


def _best_quant(model: CatalogueModel, fitted: _Fitted, role: Role, pace_tps: float) -> Recommended:
    """Return the model in its best quant for this machine, which may still not run."""
    outline, quants = fitted
    chosen = choose_quant(quants, outline.n_parameters, pace_tps)
    quant = chosen.quant if chosen else min(quants, key=lambda quant: quant.n_bytes)
    return Recommended(
        role=role.value,
        why=chosen.reason if chosen else "",
        keeps_pace=False,
        name=model.name,
        title=model.title,
        reference=f"{model.repo}:{quant.name}",
        licence=model.licence,
        published=model.published,
        n_parameters=outline.n_parameters,
        n_ctx_train=outline.n_ctx_train,
        quant=quant,
    )


def _why(best: Recommended, first: Recommended, pace_tps: float, n_passed_over: int) -> str:
    """Return the reason for `best`, which may be newer than `first`, the first of the catalogue that would do."""
    pace = f" and reaches at least {format_speed(pace_tps)} tok/s" if pace_tps else ""
    few = {0: "none ranks above it", 1: "the one above it does not"}
    others = few.get(n_passed_over, f"the {n_passed_over} above it do not")
    if best is first:
        return f"The best of its kind in the catalogue that fits{pace}: {others}."
    month = f"{date.fromisoformat(f'{best.published}-01'):%B %Y}"
    return f"It came out in {month}, after {first.title} of the same size and speed, and fits{pace}."
