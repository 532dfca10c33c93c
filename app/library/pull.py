"""`pull`: from an order to files that stand in their folder, whole, checked, and with their hashes recorded.

Owns the order of things; each of them is somebody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from app.library.download.connection import Connection
from app.library.download.downloader import Downloader, DownloadOptions
from app.library.download.events import Chosen, Discarded, Done, Report
from app.library.download.follower import Follower
from app.library.download.source import RemoteChangedError
from app.library.hub_access import HubAccess, HubError, async_http_client
from app.library.order import Order
from app.library.remote_file import RemoteFile
from app.library.staging import Staging, staged
from quantizer.errors import StorageError

__all__ = ["Fill", "Place", "Puller", "Records"]

Place: TypeAlias = Callable[[Connection], Awaitable[Order]]
Fill: TypeAlias = Callable[[Connection, Order], Awaitable[Path]]

_N_CHANGES = 3


class Records(Protocol):
    """Where it is kept what a file that was fetched hashes to and as what it came, as `app.library.index` does."""

    def sha256(self, path: Path) -> str: ...

    def record(self, path: Path, sha256: str) -> None: ...

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

    async def pull(self, place: Place) -> Path:
        """Fetch what `place` orders and return the path of its first file.

        Raises HubError for what cannot be had, StorageError for the disk, and what the order's check does.
        """
        return await self.attempt(place, self._filled)

    async def attempt(self, place: Place, fill: Fill) -> Path:
        """Let `fill` bring what `place` orders, which is asked again when that changes. Raises as `fill` does."""
        async with async_http_client(self.options.retry.stall_s) as http:
            connection = Connection(http, self.access)
            for _ in range(_N_CHANGES):
                order = await place(connection)
                try:
                    return await fill(connection, order)
                except RemoteChangedError:
                    self.report(Discarded(order.files[0].name, "the hub has another one now"))
        raise HubError("The repository changes faster than it can be fetched.", "Try again later.")

    async def _filled(self, connection: Connection, order: Order) -> Path:
        first = order.files[0].name
        self.report(Chosen(order.source, first, len(order.files), order.n_bytes, order.reason))
        async with staged(order.folder, [file.name for file in order.files], self.report) as staging:
            hashes = await self.standing(staging, order.files)
            is_new = hashes is None
            if hashes is None:
                downloader = Downloader(connection, self.options, self.report)
                hashes = [await downloader.fetch(file, staging.made(file.name)) for file in order.files]
                await asyncio.to_thread(staging.publish, order.check)
            for file, found in zip(order.files, hashes, strict=True):
                if is_new:
                    self.keep_record(staging.target(file.name), file, found)
                elif file.digest.kind == "sha256":
                    self.records.record(staging.target(file.name), found)
            self.report(Done(str(staging.target(first)), order.n_bytes, tuple(hashes), is_new))
            return staging.target(first)

    def keep_record(self, path: Path, file: RemoteFile, found: str) -> None:
        """Record what a file that was just placed hashes to, and as what it came. Raises StorageError."""
        if file.digest.kind == "sha256":
            self.records.record(path, found)
        if not file.digest.hex:
            self.records.record_origin(path, file.fingerprint)

    async def standing(self, staging: Staging, files: Sequence[RemoteFile]) -> list[str] | None:
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
    with Follower(path, n_bytes, file.digest.hasher(n_bytes)) as follower:
        follower.advance(n_bytes)
        return follower.digest()
