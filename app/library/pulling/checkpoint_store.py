"""The files of a checkpoint during its pull: which exist, which are fetched, which are removed.

Owns the mark that identifies a run killed during its clean-up. Does not convert anything.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from app.library.download.downloader import Downloader
from app.library.download.remote_file import RemoteFile
from app.library.local.removal import FETCHING, remove_empty_folders
from app.library.pulling.puller import Puller, PullPlan
from app.library.pulling.staging import Staging
from quantizer.files import explained

__all__ = ["CheckpointStore", "was_converted"]

_WEIGHTS = ".safetensors"


@dataclass(slots=True)
class CheckpointStore:
    """The files of `plan`; `found` has the hashes of those that exist, and `is_new` whether any was fetched."""

    puller: Puller
    downloader: Downloader
    staging: Staging
    plan: PullPlan
    is_new: bool = False
    found: dict[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> list[RemoteFile]:
        return [file for file in self.plan.files if file.name.endswith(_WEIGHTS)]

    async def exists(self, file: RemoteFile) -> bool:
        """Return whether the file exists and is right. Raises StorageError if another file has its name."""
        hashes = await self.puller.existing_hashes(self.staging, [file])
        if hashes is not None:
            self.found[file.name] = hashes[0]
        return hashes is not None

    async def fetch(self, name: str) -> None:
        """Fetch a file unless it exists, complete and with the right hash. Raises as `Downloader.fetch` does."""
        file = next(file for file in self.plan.files if file.name == name)
        if await self.exists(file):
            return
        self.found[name] = await self.downloader.fetch(file, self.staging.prepared_path(name))
        await asyncio.to_thread(self.staging.publish_file, name)
        self.puller.record(self.staging.target(name), file, self.found[name])
        self.is_new = True

    def remove(self, name: str) -> None:
        """Remove a file. Raises StorageError."""
        path = self.staging.target(name)
        with _changing(path):
            path.unlink(missing_ok=True)

    def hashes(self) -> tuple[str, ...]:
        """Return the hash of each file; for one that an earlier run has removed, the hub's."""
        return tuple(self.found.get(file.name, file.digest.hex) for file in self.plan.files)

    def begin(self, output: Path) -> None:
        """Write the mark of the conversion to `output`, unless an earlier run did. Raises StorageError."""
        mark = _mark(self.plan.folder, output)
        with _changing(mark):
            if not mark.exists():
                mark.write_text(_stamp(output), encoding="utf-8")

    def clear(self, output: Path, *, is_removing: bool) -> None:
        """Remove the temporary files of the conversion to `output`, the mark last. Raises StorageError."""
        for file in self.plan.files if is_removing else ():
            self.remove(file.name)
            remove_empty_folders(self.staging.target(file.name).parent)
        self.staging.discard()
        mark = _mark(self.plan.folder, output)
        with _changing(mark):
            for path in (*mark.parent.glob("*.head"), mark):
                path.unlink(missing_ok=True)


def was_converted(folder: Path, output: Path) -> bool:
    """Return whether an earlier run completed `output` from `folder` and was killed during its clean-up."""
    try:
        return _stamp(output) not in ("", _mark(folder, output).read_text(encoding="utf-8"))
    except OSError:
        return False


def _mark(folder: Path, output: Path) -> Path:
    """Return the path of the mark, which has the stamp of `output` before the conversion."""
    return folder / FETCHING / f"{output.name}.begun"


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_ino} {status.st_mtime_ns}"


def _changing(path: Path) -> AbstractContextManager[None]:
    return explained(f"{path} cannot be written or removed", "Check its permissions.")
