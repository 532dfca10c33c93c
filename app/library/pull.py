"""`pull`: from what a person asks for to a model that stands in the library.

Owns the order of things: ask what there is, choose, fetch, hold it to the gate, place it, record its hash. Each of
these is somebody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from app.library.digest import Digest
from app.library.download.connection import Connection
from app.library.download.downloader import Downloader, DownloadOptions
from app.library.download.events import Chosen, Discarded, Done, Report
from app.library.download.follower import Follower
from app.library.download.source import RemoteChangedError
from app.library.hub_access import HubAccess, HubError, async_http_client
from app.library.inquiry import ask_file, ask_repository
from app.library.reference import FileReference, RepoReference, UrlReference
from app.library.remote_file import RemoteFile
from app.library.remote_model import QUICK_RETRIES
from app.library.selection import Choose, select
from app.library.staging import Staging, staged
from quantizer.errors import StorageError

__all__ = ["Puller", "Records"]

_N_CHANGES = 3


class Records(Protocol):
    """Where the hash of a file that was fetched is kept, as `app.library.index` does."""

    def sha256(self, path: Path) -> str: ...

    def record(self, path: Path, sha256: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A model that was chosen: its files in order, and the folder that they go to."""

    source: str
    files: tuple[RemoteFile, ...]
    folder: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Puller:
    """Pulls models into `models_dir`. `choose` picks among quants, `report` hears what goes on."""

    models_dir: Path
    access: HubAccess
    records: Records
    options: DownloadOptions
    choose: Choose
    report: Report
    is_overwriting: bool = False

    async def pull(self, reference: RepoReference | FileReference | UrlReference) -> Path:
        """Bring the model that `reference` means into the library and return the path of its first file.

        Raises HubError for what cannot be had, ModelFileError for what the gate refuses, StorageError for the disk.
        """
        async with async_http_client(self.options.retry.stall_s) as http:
            connection = Connection(http, self.access)
            for _ in range(_N_CHANGES):
                wanted = await self._wanted(connection, reference)
                try:
                    return await self._placed(connection, wanted)
                except RemoteChangedError:
                    self.report(Discarded(wanted.files[0].name, "the hub has another one now"))
        raise HubError("The repository changes faster than it can be fetched.", "Try again later.")

    async def _wanted(self, connection: Connection, reference: RepoReference | FileReference | UrlReference) -> _Wanted:
        if isinstance(reference, UrlReference):
            file = await ask_file(connection, reference.url, reference.name, QUICK_RETRIES)
            folder = self.models_dir / reference.host / reference.name.removesuffix(".gguf")
            return _Wanted(reference.url, (file,), folder, "It was asked for by its URL.")
        revision = reference.revision if isinstance(reference, FileReference) else ""
        repository = await ask_repository(connection, reference.repo, revision, QUICK_RETRIES)
        choice = await asyncio.to_thread(select, repository, reference, self.choose)
        files = tuple(repository.remote(file, self.access) for file in choice.model.files)
        return _Wanted(reference.repo, files, self.models_dir / reference.repo, choice.reason)

    async def _placed(self, connection: Connection, wanted: _Wanted) -> Path:
        n_bytes = sum(file.n_bytes for file in wanted.files)
        first = wanted.files[0].name
        self.report(Chosen(wanted.source, first, len(wanted.files), n_bytes, wanted.reason))
        async with staged(wanted.folder, [file.name for file in wanted.files], self.report) as staging:
            hashes = await self._here_already(staging, wanted.files)
            is_new = hashes is None
            if hashes is None:
                downloader = Downloader(connection, self.options, self.report)
                hashes = [await downloader.fetch(file, staging.path(file.name)) for file in wanted.files]
                await asyncio.to_thread(staging.publish)
            for file, sha256 in zip(wanted.files, hashes, strict=True):
                self.records.record(staging.target(file.name), sha256)
            self.report(Done(str(staging.target(first)), n_bytes, tuple(hashes), is_new))
            return staging.target(first)

    async def _here_already(self, staging: Staging, files: Sequence[RemoteFile]) -> list[str] | None:
        """Return the hashes of the files where they stand in the library, None where they must be fetched.

        Raises StorageError for another file in their place that did not come from there.
        """
        hashes = []
        for file in files:
            path = staging.target(file.name)
            if not path.exists() or self.is_overwriting:
                return None
            known = self.records.sha256(path)
            found = known or await asyncio.to_thread(_sha256, path)
            if path.stat().st_size == file.n_bytes and file.digest.is_met_by(found):
                hashes.append(found)
            elif known:
                return None  # it came from there, and there is a newer one
            else:
                raise StorageError(f"{path} exists already and is another file.", "Pass --overwrite to replace it.")
        return hashes


def _sha256(path: Path) -> str:
    n_bytes = path.stat().st_size
    with Follower(path, n_bytes, Digest().hasher(n_bytes)) as follower:
        follower.advance(n_bytes)
        return follower.digest()
