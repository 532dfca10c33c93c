"""Where the files of one model are while they are fetched, and how they appear in the library: whole, checked, at once.

`<repo>/.fetching/` holds them under their own names, so that the gate sees a split model as it will be; no list shows
hidden folders. Owns that folder and the lock by which many processes that want a model fetch it once. What is sound
the caller knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.library.download.events import Report, Waiting
from app.library.download.partial_file import journal_of
from quantizer.errors import StorageError, UserError
from quantizer.files import remove_lock, sync_folder, try_lock

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["FETCHING", "Staging", "staged"]

FETCHING = ".fetching"
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Staging:
    """The files of one model, `names` in order, on their way into `folder`."""

    folder: Path
    names: tuple[str, ...]

    def path(self, name: str) -> Path:
        """Where a file is fetched to."""
        return self.folder / FETCHING / name

    def made(self, name: str) -> Path:
        """The same, in a folder that is there. Raises StorageError."""
        try:
            self.path(name).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_placed(self.folder, error) from error
        return self.path(name)

    def target(self, name: str) -> Path:
        """Where it will lie."""
        return self.folder / name

    def publish(self, check: Callable[[Path], object]) -> None:
        """Let the files pass `check`, which is given the first one's path, then name them all, the first one last.

        Raises StorageError, and what `check` does: after that nothing is left of them.
        """
        try:
            check(self.path(self.names[0]))
        except UserError:
            self.discard()
            raise
        try:
            for name in reversed(self.names):
                self.target(name).parent.mkdir(exist_ok=True)
                self.path(name).replace(self.target(name))
            sync_folder(self.folder)
        except OSError as error:
            raise _not_placed(self.folder, error) from error
        self.discard()

    def place(self, name: str) -> None:
        """Let one file that is whole and right stand under its name, before the others. Raises StorageError."""
        try:
            self.target(name).parent.mkdir(exist_ok=True)
            self.path(name).replace(self.target(name))
            journal_of(self.path(name)).unlink(missing_ok=True)
            sync_folder(self.target(name).parent)
        except OSError as error:
            raise _not_placed(self.folder, error) from error

    def discard(self) -> None:
        """Remove what is left of the fetching. Raises StorageError."""
        try:
            for name in self.names:
                self.path(name).unlink(missing_ok=True)
                journal_of(self.path(name)).unlink(missing_ok=True)
                _remove_if_empty(self.path(name).parent)
        except OSError as error:
            raise _not_placed(self.folder, error) from error


@asynccontextmanager
async def staged(folder: Path, names: Sequence[str], report: Report) -> AsyncIterator[Staging]:
    """Give the staging of a model to one process at a time; the others wait, and say so once. Raises StorageError."""
    staging = Staging(folder, tuple(names))
    path = staging.path(f"{names[0]}.lock")
    has_said = False
    while (lock := _locked(path)) is None:
        if not has_said:
            report(Waiting(names[0]))
            has_said = True
        await asyncio.sleep(_POLL_S)
    try:
        yield staging
    finally:
        remove_lock(lock)
        for empty in (path.parent, folder, folder.parent):  # a pull that came to nothing leaves no folders
            _remove_if_empty(empty)


def _locked(path: Path) -> BaseFileLock | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return try_lock(path)
    except FileNotFoundError:  # the process that has just finished removed the empty folder
        return None
    except OSError as error:
        raise _not_placed(path.parent, error) from error


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # something is in it, or it went already
        folder.rmdir()


def _not_placed(folder: Path, error: OSError) -> StorageError:
    reason = error.strerror or str(error)
    return StorageError(f"Models cannot be placed in {folder}: {reason}.", "Check its permissions and its disk.")
