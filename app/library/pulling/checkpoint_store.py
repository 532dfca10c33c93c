"""The files of a checkpoint that is pulled: each stands under its name, or is fetched and then placed there.

Owns what is here and what goes, and the mark by which a run that was killed while it cleared up is known. Knows nothing
of what is made of the files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from app.library.download.downloader import Downloader
from app.library.download.remote_file import RemoteFile
from app.library.local.removal import remove_empty_folders
from app.library.pulling.puller import Puller, PullPlan
from app.library.pulling.staging import FETCHING, Staging
from quantizer.errors import StorageError

__all__ = ["CheckpointStore", "was_made"]

_WEIGHTS = ".safetensors"


@dataclass(slots=True)
class CheckpointStore:
    """The files of `order`; `found` says what those hash to that were here or came."""

    puller: Puller
    downloader: Downloader
    staging: Staging
    order: PullPlan
    is_new: bool = False
    found: dict[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> list[RemoteFile]:
        return [file for file in self.order.files if file.name.endswith(_WEIGHTS)]

    async def is_here(self, file: RemoteFile) -> bool:
        """Whether the file stands. Raises StorageError where another one is in its place."""
        hashes = await self.puller.existing_hashes(self.staging, [file])
        if hashes is not None:
            self.found[file.name] = hashes[0]
        return hashes is not None

    async def bring(self, name: str) -> None:
        """Have the file stand, whole and with the right hash. Raises as `Downloader.fetch` does."""
        file = next(file for file in self.order.files if file.name == name)
        if await self.is_here(file):
            return
        self.found[name] = await self.downloader.fetch(file, self.staging.made(name))
        await asyncio.to_thread(self.staging.place, name)
        self.puller.keep_record(self.staging.target(name), file, self.found[name])
        self.is_new = True

    def remove(self, name: str) -> None:
        """Raises StorageError."""
        with _refusals(self.staging.target(name)) as path:
            path.unlink(missing_ok=True)

    def hashes(self) -> tuple[str, ...]:
        """What each file hashes to; for one that a run before was through with, what the hub says."""
        return tuple(self.found.get(file.name, file.digest.hex) for file in self.order.files)

    def begin(self, output: Path) -> None:
        """Mark that `output` is being made, where no run did so. Raises StorageError."""
        with _refusals(_mark(self.order.folder, output)) as mark:
            if not mark.exists():
                mark.write_text(_stamp(output), encoding="utf-8")

    def clear(self, output: Path, *, is_removing: bool) -> None:
        """Remove what is needed only until `output` is made, the mark last. Raises StorageError."""
        for file in self.order.files if is_removing else ():
            self.remove(file.name)
            remove_empty_folders(self.staging.target(file.name).parent)
        self.staging.discard()
        with _refusals(_mark(self.order.folder, output)) as mark:
            for path in (*mark.parent.glob("*.head"), mark):
                path.unlink(missing_ok=True)


def was_made(folder: Path, output: Path) -> bool:
    """Whether a run that was killed made `output` of what lies in `folder`, and had only to clear up."""
    try:
        return _stamp(output) not in ("", _mark(folder, output).read_text(encoding="utf-8"))
    except OSError:
        return False


def _mark(folder: Path, output: Path) -> Path:
    """The file that tells what stood in the place of `output` when it was begun."""
    return folder / FETCHING / f"{output.name}.begun"


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_ino} {status.st_mtime_ns}"


@contextmanager
def _refusals(path: Path) -> Iterator[Path]:
    """Raise what the disk refuses as StorageError."""
    try:
        yield path
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"{path} cannot be written or removed: {reason}.", "Check its permissions.") from error
