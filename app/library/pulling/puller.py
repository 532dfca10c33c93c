"""Pulls of models: a plan of what to fetch, then files in the library: complete, checked, with recorded hashes.

Owns what a reference resolves to on the hub, the steps of a pull, the staging folder `<repo>/.fetching/`, and the lock
that lets one of several processes fetch a model. Files have their final names in that folder, so that a split model can
be validated before its files appear in the library together; lists skip hidden folders.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from app.engine.load.projector_file import validate_projector
from app.library.download.downloader import Downloader, DownloadOptions
from app.library.download.events import (
    Chosen,
    Discarded,
    Done,
    HeadAdded,
    HeadLeftOut,
    ProjectorAdded,
    ProjectorLeftOut,
    Report,
    Waiting,
)
from app.library.download.http_session import HttpSession, RemoteChangedError
from app.library.download.partial_file import journal_of
from app.library.download.remote_file import RemoteFile, StreamingHash
from app.library.hub.access import HubAccess, HubError, async_http_client
from app.library.hub.ollama_registry import fetch_layers, fetch_recipe, layer_file
from app.library.hub.reference import FileReference, HubReference, OllamaReference, UrlReference
from app.library.hub.remote_model import QUICK_RETRIES
from app.library.hub.repository import (
    checkpoint_files,
    fetch_config,
    fetch_file_info,
    fetch_generation_config,
    fetch_repository,
    quant_of,
)
from app.library.hub.selection import ChooseQuant, select
from app.library.local.index import Index
from app.library.local.model_sampling import MAX_CONFIG_BYTES, parse_generation_config, write_generation_config
from app.library.local.recipe import NO_RECIPE, Recipe, replace_recipe
from app.library.local.removal import FETCHING
from offload.footprint.model import PlannedModel
from quantizer.checkpoint.safetensors import read_checkpoint
from quantizer.convert.checkpoint_source import config_header
from quantizer.gguf.file_names import NO_PROJECTOR, projector_name
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import FileType
from quantizer.gguf.validation import validate_gguf
from quantizer.system.errors import StorageError, UserError
from quantizer.system.files import Lock, explained, make_folder, remove_lock, replace_file, sync_folder, try_lock

_N_CHANGES = 3
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class PullPlan:
    """The `files` to fetch from `source` into `folder`; `reason` is a sentence. The first file appears last: it marks
    that all are complete. `check` receives its path, with the others beside it, and raises a UserError for an invalid
    model. `head` and `projector` are fetched once the model is complete. `recipe` replaces that of the
    model, unless None; its maker's `generation_config`, unless empty, is kept beside it, and a model's `origin` is
    recorded, unless empty."""

    source: str
    files: tuple[RemoteFile, ...]
    folder: Path
    reason: str
    check: Callable[[Path], object]
    head: PullPlan | None = None
    projector: PullPlan | None = None
    recipe: Recipe | None = None
    generation_config: bytes = b""
    origin: str = ""

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)


MakePlan: TypeAlias = Callable[[HttpSession], Awaitable[PullPlan]]
RunPlan: TypeAlias = Callable[[HttpSession, PullPlan], Awaitable[Path]]


async def plan_model_pull(
    session: HttpSession,
    reference: HubReference | OllamaReference,
    models_dir: Path,
    choose: ChooseQuant,
    *,
    with_head: bool = True,
    projector: str = "",
) -> PullPlan:
    """Return the plan to pull the model of `reference`, with its draft head and its projector; `choose` picks among
    quants, and `projector` is the type that is preferred, or none. Raises HubError."""
    if isinstance(reference, UrlReference):
        file = await fetch_file_info(session, reference.url, reference.name, QUICK_RETRIES)
        folder = models_dir / reference.host / reference.name.removesuffix(".gguf")
        return PullPlan(reference.url, (file,), folder, "It was named by its URL.", validate_gguf)
    if isinstance(reference, OllamaReference):
        return await _plan_ollama_pull(session, reference, models_dir, projector)
    revision = reference.revision if isinstance(reference, FileReference) else ""
    repository = await fetch_repository(session, reference.repo, revision, QUICK_RETRIES)
    choice = await asyncio.to_thread(select, repository, reference, choose)
    files = tuple(repository.remote(file, session.access) for file in choice.model.files)
    folder = models_dir / reference.repo
    model, source, access = folder / files[0].name, reference.repo, session.access

    def check_head(path: Path) -> None:
        from app.engine.load.head_file import validate_head  # imports numpy

        validate_head(path, read_header(model))

    head_plan = projector_plan = None
    if with_head and (head := repository.head_of(choice.model)):
        reason = f"By its name it drafts for {model.name}."
        head_plan = PullPlan(source, (repository.remote(head, access),), folder, reason, check_head)
    if projector != NO_PROJECTOR and (found := repository.projectors_of(choice.model, projector)):
        types = ", ".join(dict.fromkeys(filter(None, (quant_of(file.name) for file in found[1:]))))
        others = f" Also there, for --projector: {types}." if types else ""
        projector_plan = PullPlan(
            source,
            (repository.remote(found[0], access),),
            folder,
            f"With it {model.name} sees or hears.{others}",
            lambda path: validate_projector(path, read_header(model)),
        )
    config = await fetch_generation_config(session, repository, QUICK_RETRIES)
    is_kept = len(config) <= MAX_CONFIG_BYTES and bool(parse_generation_config(config).options)
    return PullPlan(
        source,
        files,
        folder,
        f"{choice.reason} The sampling that its makers recommend comes with it." if is_kept else choice.reason,
        validate_gguf,
        head_plan,
        projector_plan,
        generation_config=config if is_kept else b"",
    )


async def _plan_ollama_pull(
    session: HttpSession, reference: OllamaReference, models_dir: Path, projector: str
) -> PullPlan:
    layers = await fetch_layers(session, reference, QUICK_RETRIES)
    models = [layer for layer in layers if layer.kind == "model"]
    if len(models) != 1:
        cause = f"{reference.id} has no GGUF file." if not models else f"{reference.id} is in {len(models)} files."
        raise ModelFileError(cause, "Choose another tag, or look for the model on the hub.")
    if any(layer.kind == "adapter" for layer in layers):
        name = reference.id.partition(":")[2]
        cause = f"{reference.id} is a model with an adapter, which cannot be kept with it in the library."
        raise ModelFileError(cause, f"Let Ollama keep it: `ollama pull {name}`, then `localllm run {name}`.")
    recipe = await fetch_recipe(session, reference, layers, QUICK_RETRIES)
    file = layer_file(session, reference, models[0], f"{reference.stem}.gguf")
    folder, projector_plan = models_dir / reference.repo, None
    if projector != NO_PROJECTOR and (found := [layer for layer in layers if layer.kind == "projector"]):
        part = layer_file(session, reference, found[0], projector_name(file.name, ""))
        projector_plan = PullPlan(
            reference.id,
            (part,),
            folder,
            f"With it {file.name} sees or hears.",
            lambda path: validate_projector(path, read_header(folder / file.name)),
        )
    reason = "Its settings come with it." if recipe != NO_RECIPE else "It has no settings of its own."
    return PullPlan(
        reference.id,
        (file,),
        folder,
        reason,
        validate_gguf,
        projector=projector_plan,
        recipe=recipe,
        origin=reference.id,
    )


async def plan_checkpoint_pull(session: HttpSession, repo: str, folder: Path, file_type: FileType) -> PullPlan:
    """Return the plan to pull the checkpoint `repo` and convert it to `file_type`; the reason has the final size.
    Raises HubError, and CheckpointError for a checkpoint that cannot be converted."""
    repository = await fetch_repository(session, repo, "", QUICK_RETRIES)
    files = tuple(repository.remote(file, session.access, file.path) for file in checkpoint_files(repository))
    header = config_header(await fetch_config(session, repo, QUICK_RETRIES), repo)
    n_output_bytes = PlannedModel(header, header.tensors).quantized(file_type).n_bytes
    reason = f"It is converted to a {file_type.name} of about {n_output_bytes / 1e9:.2f} GB while it is fetched."
    return PullPlan(repo, files, folder, reason, lambda config: read_checkpoint(config.parent))


@dataclass(frozen=True, slots=True)
class Puller:
    """Fetches planned files into their folders, records their hashes in `index`, and reports events to `report`."""

    access: HubAccess
    index: Index
    options: DownloadOptions
    report: Report
    is_overwriting: bool = False

    async def pull(self, make_plan: MakePlan) -> Path:
        """Fetch the planned files and return the path of the first one. Raises HubError, StorageError for the disk, and
        the errors of the plan's check."""
        return await self.retry_on_change(make_plan, self._run)

    async def retry_on_change(self, make_plan: MakePlan, run_plan: RunPlan) -> Path:
        """Make a plan and run it, again with a new plan if the repository changes. Raises as `run_plan` does."""
        async with async_http_client(self.options.retry.stall_s) as http:
            session = HttpSession(http, self.access)
            for _ in range(_N_CHANGES):
                plan = await make_plan(session)
                try:
                    return await run_plan(session, plan)
                except RemoteChangedError:
                    self.report(Discarded(plan.files[0].name, "the hub has a newer one"))
        raise HubError("The repository changes faster than it can be fetched.", "Try again later.")

    async def _run(self, session: HttpSession, plan: PullPlan) -> Path:
        model, hashes, is_new = await self._fetch(session, plan)
        self.report(Done(str(model), plan.n_bytes, hashes, is_new))
        kinds: tuple[
            tuple[PullPlan | None, type[HeadAdded | ProjectorAdded], type[HeadLeftOut | ProjectorLeftOut]], ...
        ]
        kinds = ((plan.head, HeadAdded, HeadLeftOut), (plan.projector, ProjectorAdded, ProjectorLeftOut))
        for part, added, left_out in kinds:
            if part is None:
                continue
            try:
                path, hashes, is_new = await self._fetch(session, part)
            except (UserError, RemoteChangedError) as error:  # the model stays all the same
                why = str(error) or "it changes while it is fetched."
                self.report(left_out(part.files[0].name, model.name, why))
            else:
                self.report(added(str(path), model.name, part.n_bytes, hashes, is_new))
        return model

    async def _fetch(self, session: HttpSession, plan: PullPlan) -> tuple[Path, tuple[str, ...], bool]:
        """Return the path of the first file, the hashes of all, and whether they had to be fetched."""
        first = plan.files[0].name
        self.report(Chosen(plan.source, first, len(plan.files), plan.n_bytes, plan.reason))
        async with staged(plan.folder, [file.name for file in plan.files], self.report) as staging:
            hashes = await self.existing_hashes(staging, plan.files)
            is_new = hashes is None
            if hashes is None:
                downloader = Downloader(session, self.options, self.report)
                hashes = [await downloader.fetch(file, staging.prepared_path(file.name)) for file in plan.files]
                await asyncio.to_thread(staging.publish, partial(_check_and_write_beside, plan))
            else:
                await asyncio.to_thread(_write_beside, plan)
            for file, found in zip(plan.files, hashes, strict=True):
                if is_new:
                    self.record(staging.target(file.name), file, found)
                elif file.digest.kind == "sha256":
                    self.index.record_sha256(staging.target(file.name), found)
            if plan.origin:
                self.index.record_origin(staging.target(first), plan.origin)
            return staging.target(first), tuple(hashes), is_new

    def record(self, path: Path, file: RemoteFile, found: str) -> None:
        """Record the hash `found` and the origin of a new file. Raises StorageError."""
        if file.digest.kind == "sha256":
            self.index.record_sha256(path, found)
        if file.fingerprint:  # also beside a hash: a file of one's own may have one and the same name
            self.index.record_origin(path, file.fingerprint)

    async def existing_hashes(self, staging: Staging, files: Sequence[RemoteFile]) -> list[str] | None:
        """Return the hashes of the files if all exist in the folder already, None if they must be fetched. Raises
        StorageError if another file has the name of one of them."""
        hashes = []
        for file in files:
            path = staging.target(file.name)
            if not path.exists() or self.is_overwriting:
                return None
            known = self.index.sha256(path)
            found = known or await asyncio.to_thread(_hash_of, path, file)  # by the algorithm of the file's digest
            is_comparable = file.digest.hex or not file.mark or self.index.origin(path) == file.fingerprint
            if path.stat().st_size == file.n_bytes and file.digest.is_met_by(found) and is_comparable:
                hashes.append(found)
            elif (known if file.digest.hex else self.index.origin(path)) or file.digest.kind == "git":
                return None  # it was fetched from there, and there is a newer one
            else:
                how = "is another file" if is_comparable else "may be another file"
                raise StorageError(f"{path} exists already and {how}.", "Pass --overwrite to replace it.")
        return hashes


def _check_and_write_beside(plan: PullPlan, first: Path) -> None:
    """Check a model whose first file is at `first`, and write what belongs beside it before it appears in lists."""
    plan.check(first)
    _write_beside(plan)


def _write_beside(plan: PullPlan) -> None:
    model = plan.folder / plan.files[0].name
    if plan.recipe is not None:
        replace_recipe(model, plan.recipe)
    if plan.generation_config:
        write_generation_config(model, plan.generation_config)


def _hash_of(path: Path, file: RemoteFile) -> str:
    n_bytes = path.stat().st_size
    with StreamingHash(path, n_bytes, file.digest.hasher(n_bytes)) as streaming:
        streaming.advance(n_bytes)
        return streaming.digest()


@dataclass(frozen=True, slots=True)
class Staging:
    """The files of one model, `names` in order, that are fetched for `folder`."""

    folder: Path
    names: tuple[str, ...]

    def path(self, name: str) -> Path:
        return self.folder / FETCHING / name

    def prepared_path(self, name: str) -> Path:
        """Return where the file is fetched to, in a folder that exists. Raises StorageError."""
        with _placing_in(self.folder):
            make_folder(self.path(name).parent)
        return self.path(name)

    def target(self, name: str) -> Path:
        return self.folder / name

    def publish(self, check: Callable[[Path], object]) -> None:
        """Call `check` with the path of the first file, then move all to their final paths, the first one last. Raises
        StorageError, and the errors of `check`, after which all files are deleted."""
        try:
            check(self.path(self.names[0]))
        except UserError:
            self.discard()
            raise
        with _placing_in(self.folder):
            for name in reversed(self.names):
                make_folder(self.target(name).parent)
                replace_file(self.path(name), self.target(name))
            for folder in {self.target(name).parent for name in self.names}:
                sync_folder(folder)
        self.discard()

    def publish_file(self, name: str) -> None:
        """Move one complete file to its final path, before the others. Raises StorageError."""
        with _placing_in(self.folder):
            make_folder(self.target(name).parent)
            replace_file(self.path(name), self.target(name))
            journal_of(self.path(name)).unlink(missing_ok=True)
            sync_folder(self.target(name).parent)

    def discard(self) -> None:
        """Delete everything in the staging folder. Raises StorageError."""
        with _placing_in(self.folder):
            for name in self.names:
                self.path(name).unlink(missing_ok=True)
                journal_of(self.path(name)).unlink(missing_ok=True)
                _remove_if_empty(self.path(name).parent)


@asynccontextmanager
async def staged(folder: Path, names: Sequence[str], report: Report) -> AsyncIterator[Staging]:
    """Lock and yield the staging of a model; others wait, and report that once. Raises StorageError."""
    staging = Staging(folder, tuple(names))
    path = staging.path(f"{names[0]}.lock")
    lock = _locked(path)
    if lock is None:
        report(Waiting(names[0]))
    while lock is None:
        await asyncio.sleep(_POLL_S)
        lock = _locked(path)
    try:
        yield staging
    finally:
        remove_lock(lock)
        for empty in (path.parent, folder, folder.parent):  # a failed pull leaves no empty folders
            _remove_if_empty(empty)


def _locked(path: Path) -> Lock | None:
    with _placing_in(path.parent), suppress(FileNotFoundError):  # whoever has just finished removed the empty folder
        make_folder(path.parent)
        return try_lock(path)
    return None


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # not empty, or removed already
        folder.rmdir()


def _placing_in(folder: Path) -> AbstractContextManager[None]:
    return explained(f"Models cannot be placed in {folder}", "Check its permissions and its disk.")
