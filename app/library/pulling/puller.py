"""What is to be fetched, once it is known: the files of a model or of a checkpoint, where they go, and who checks them.

Owns what a reference comes to when the hub was asked. Knows nothing of fetching.

`pull`: from an order to files that stand in their folder, whole, checked, and with their hashes recorded.

Owns the order of things; each of them is somebody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from app.library.download.downloader import Downloader, DownloadOptions
from app.library.download.events import Chosen, Discarded, Done, Report
from app.library.download.http_session import HttpSession, RemoteChangedError
from app.library.download.remote_file import RemoteFile
from app.library.download.streaming_hash import StreamingHash
from app.library.hub.access import HubAccess, HubError, async_http_client
from app.library.hub.hub_requests import fetch_config, fetch_file_info, fetch_repository
from app.library.hub.reference import FileReference, RepoReference, UrlReference
from app.library.hub.remote_model import QUICK_RETRIES
from app.library.hub.repository import checkpoint_files
from app.library.hub.selection import ChooseQuant, select
from app.library.pulling.staging import Staging, staged
from offload.footprint.model import PlannedModel
from quantizer.checkpoint.safetensors import read_checkpoint
from quantizer.convert.config_header import config_header
from quantizer.errors import StorageError
from quantizer.gguf.file_types import FileType
from quantizer.gguf.validation import validate_gguf

__all__ = ["MakePlan", "PullPlan", "Puller", "Records", "RunPlan", "plan_checkpoint_pull", "plan_model_pull"]


@dataclass(frozen=True, slots=True)
class PullPlan:
    """`files`, of which the first one tells that all are there, from `source` into `folder`; `reason` is a sentence.

    `check` is given the path of the first file, with the others beside it, and raises a UserError for what is unsound.
    """

    source: str
    files: tuple[RemoteFile, ...]
    folder: Path
    reason: str
    check: Callable[[Path], object]

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)


async def plan_model_pull(
    connection: HttpSession,
    reference: RepoReference | FileReference | UrlReference,
    models_dir: Path,
    choose: ChooseQuant,
) -> PullPlan:
    """Return what `reference` means now; `choose` picks among quants. Raises HubError for what cannot be had."""
    if isinstance(reference, UrlReference):
        file = await fetch_file_info(connection, reference.url, reference.name, QUICK_RETRIES)
        folder = models_dir / reference.host / reference.name.removesuffix(".gguf")
        return PullPlan(reference.url, (file,), folder, "It was asked for by its URL.", validate_gguf)
    revision = reference.revision if isinstance(reference, FileReference) else ""
    repository = await fetch_repository(connection, reference.repo, revision, QUICK_RETRIES)
    choice = await asyncio.to_thread(select, repository, reference, choose)
    files = tuple(repository.remote(file, connection.access) for file in choice.model.files)
    return PullPlan(reference.repo, files, models_dir / reference.repo, choice.reason, validate_gguf)


async def plan_checkpoint_pull(connection: HttpSession, repo: str, folder: Path, file_type: FileType) -> PullPlan:
    """Return the checkpoint `repo`, to be made a GGUF of `file_type`; the reason says how large that will be.

    Raises HubError for what cannot be had, CheckpointError for what cannot be converted.
    """
    repository = await fetch_repository(connection, repo, "", QUICK_RETRIES)
    files = tuple(repository.remote(file, connection.access, file.path) for file in checkpoint_files(repository))
    outline = config_header(await fetch_config(connection, repo, QUICK_RETRIES), repo)
    n_made = PlannedModel(outline, outline.tensors).quantized(file_type).n_bytes
    reason = f"A {file_type.name} of about {n_made / 1e9:.2f} GB is made of it while it comes."
    return PullPlan(repo, files, folder, reason, lambda config: read_checkpoint(config.parent))


MakePlan: TypeAlias = Callable[[HttpSession], Awaitable[PullPlan]]
RunPlan: TypeAlias = Callable[[HttpSession, PullPlan], Awaitable[Path]]

_N_CHANGES = 3


class Records(Protocol):
    """Where it is kept what a file that was fetched hashes to and as what it came, as `app.library.local.index` does."""

    def sha256(self, path: Path) -> str: ...

    def record_sha256(self, path: Path, sha256: str) -> None: ...

    def origin(self, path: Path) -> str: ...

    def record_origin(self, path: Path, fingerprint: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Puller:
    """Brings orders into their folders; `report` hears what goes on."""

    access: HubAccess
    records: Records
    options: DownloadOptions
    report: Report
    is_overwriting: bool = False

    async def pull(self, place: MakePlan) -> Path:
        """Fetch what `place` orders and return the path of its first file.

        Raises HubError for what cannot be had, StorageError for the disk, and what the order's check does.
        """
        return await self.retry_on_change(place, self._filled)

    async def retry_on_change(self, place: MakePlan, fill: RunPlan) -> Path:
        """Let `fill` bring what `place` orders, which is asked again when that changes. Raises as `fill` does."""
        async with async_http_client(self.options.retry.stall_s) as http:
            connection = HttpSession(http, self.access)
            for _ in range(_N_CHANGES):
                order = await place(connection)
                try:
                    return await fill(connection, order)
                except RemoteChangedError:
                    self.report(Discarded(order.files[0].name, "the hub has another one now"))
        raise HubError("The repository changes faster than it can be fetched.", "Try again later.")

    async def _filled(self, connection: HttpSession, order: PullPlan) -> Path:
        first = order.files[0].name
        self.report(Chosen(order.source, first, len(order.files), order.n_bytes, order.reason))
        async with staged(order.folder, [file.name for file in order.files], self.report) as staging:
            hashes = await self.existing_hashes(staging, order.files)
            is_new = hashes is None
            if hashes is None:
                downloader = Downloader(connection, self.options, self.report)
                hashes = [await downloader.fetch(file, staging.made(file.name)) for file in order.files]
                await asyncio.to_thread(staging.publish, order.check)
            for file, found in zip(order.files, hashes, strict=True):
                if is_new:
                    self.keep_record(staging.target(file.name), file, found)
                elif file.digest.kind == "sha256":
                    self.records.record_sha256(staging.target(file.name), found)
            self.report(Done(str(staging.target(first)), order.n_bytes, tuple(hashes), is_new))
            return staging.target(first)

    def keep_record(self, path: Path, file: RemoteFile, found: str) -> None:
        """Record what a file that was just placed hashes to, and as what it came. Raises StorageError."""
        if file.digest.kind == "sha256":
            self.records.record_sha256(path, found)
        if not file.digest.hex:
            self.records.record_origin(path, file.fingerprint)

    async def existing_hashes(self, staging: Staging, files: Sequence[RemoteFile]) -> list[str] | None:
        """Return the hashes of the files where they stand in the folder, None where they must be fetched.

        Raises StorageError for another file in their place that did not come from there.
        """
        hashes = []
        for file in files:
            path = staging.target(file.name)
            if not path.exists() or self.is_overwriting:
                return None
            known = self.records.sha256(path)
            found = known or await asyncio.to_thread(_hash_of, path, file)
            is_told = file.digest.hex or not file.mark or self.records.origin(path) == file.fingerprint
            if path.stat().st_size == file.n_bytes and file.digest.is_met_by(found) and is_told:
                hashes.append(found)
            elif (known if file.digest.hex else self.records.origin(path)) or file.digest.kind == "git":
                return None  # it came from there, and there is a newer one
            else:
                how = "is another file" if is_told else "may be another file"
                raise StorageError(f"{path} exists already and {how}.", "Pass --overwrite to replace it.")
        return hashes


def _hash_of(path: Path, file: RemoteFile) -> str:
    """What the file at `path` hashes to, in the way that `file` is named by."""
    n_bytes = path.stat().st_size
    with StreamingHash(path, n_bytes, file.digest.hasher(n_bytes)) as follower:
        follower.advance(n_bytes)
        return follower.digest()
