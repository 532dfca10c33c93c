"""The staging folder of a pull, `<repo>/.fetching/`: files appear in the library together, complete and checked.

Files have their final names there, so that a split model can be validated; lists skip hidden folders. Owns the folder,
and the lock that lets one of several processes fetch a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.library.download.events import Report, Waiting
from app.library.download.partial_file import journal_of
from app.library.local.removal import FETCHING
from quantizer.errors import UserError
from quantizer.files import explained, remove_lock, sync_folder, try_lock

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["Staging", "staged"]

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Staging:
    """The files of one model, `names` in order, that are fetched for `folder`."""

    folder: Path
    names: tuple[str, ...]

    def path(self, name: str) -> Path:
        """Return where a file is fetched to."""
        return self.folder / FETCHING / name

    def prepared_path(self, name: str) -> Path:
        """Create the folder of `path(name)` and return that. Raises StorageError."""
        with _placing_in(self.folder):
            self.path(name).parent.mkdir(parents=True, exist_ok=True)
        return self.path(name)

    def target(self, name: str) -> Path:
        """Return the final path of a file."""
        return self.folder / name

    def publish(self, check: Callable[[Path], object]) -> None:
        """Call `check` with the path of the first file, then move all to their final paths, the first one last.

        Raises StorageError, and the errors of `check`, after which all files are deleted.
        """
        try:
            check(self.path(self.names[0]))
        except UserError:
            self.discard()
            raise
        with _placing_in(self.folder):
            for name in reversed(self.names):
                self.target(name).parent.mkdir(exist_ok=True)
                self.path(name).replace(self.target(name))
            sync_folder(self.folder)
        self.discard()

    def publish_file(self, name: str) -> None:
        """Move one complete file to its final path, before the others. Raises StorageError."""
        with _placing_in(self.folder):
            self.target(name).parent.mkdir(exist_ok=True)
            self.path(name).replace(self.target(name))
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
    has_reported = False
    while (lock := _locked(path)) is None:
        if not has_reported:
            report(Waiting(names[0]))
            has_reported = True
        await asyncio.sleep(_POLL_S)
    try:
        yield staging
    finally:
        remove_lock(lock)
        for empty in (path.parent, folder, folder.parent):  # a failed pull leaves no empty folders
            _remove_if_empty(empty)


def _locked(path: Path) -> BaseFileLock | None:
    with _placing_in(path.parent), suppress(FileNotFoundError):  # whoever has just finished removed the empty folder
        path.parent.mkdir(parents=True, exist_ok=True)
        return try_lock(path)
    return None


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # not empty, or removed already
        folder.rmdir()


def _placing_in(folder: Path) -> AbstractContextManager[None]:
    return explained(f"Models cannot be placed in {folder}", "Check its permissions and its disk.")
