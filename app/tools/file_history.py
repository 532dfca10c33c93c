"""What files held before tools changed them: contents by SHA-256 in `<data>/file-history`, and taking changes back.

A content is on the disk before the file that held it is replaced, so no kill loses one. Owns writing files, so that
there is no other way; undoing changes, which is a change like any other; and how much is kept: the newest contents, by
age and bytes, but at least those of the newest changes. Between processes a lock keeps the store consistent. Which
changes there were is stored with the chats.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from app.common.event_log import log_event
from app.tools.file_access import MAX_FILE_BYTES, FileState, file_state, is_partial_file, open_folder
from app.tools.tool import FileChange
from quantizer.figures import format_number
from quantizer.system.errors import StorageError
from quantizer.system.files import (
    PRIVATE_FILE,
    explained,
    private_folder,
    read_regular,
    sync_folder,
    try_lock,
    write_atomically,
    writer_of,
)
from quantizer.system.process import is_process_alive

FOLDER_NAME = "file-history"
_DAY_S = 24 * 3600.0
_LOCK_TIMEOUT_S = 10.0
_REMEDY = "Check the disk, or set LOCALLLM_DATA_DIR to a folder of your own."
_NOTHING_DONE = "Nothing was undone."
_WRITING = "writing"  # the folder of marks of files that are being written
_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """How much is kept: contents used within `max_age_s`, up to `max_bytes` the newest, but never fewer than
    `n_newest`. Each has at most 16 MiB, so that those always fit."""

    max_age_s: float = 30 * _DAY_S
    max_bytes: int = 1 << 30
    n_newest: int = 64  # of 32 changes: what was before and what came after


DEFAULT_LIMITS = HistoryLimits()
assert DEFAULT_LIMITS.n_newest * MAX_FILE_BYTES <= DEFAULT_LIMITS.max_bytes


_Step: TypeAlias = tuple[FileChange, FileState, bytes | None]  # to undo, what the file is now, and held (None: no file)


class FileHistory:
    """The contents below `folder`, for any number of threads and processes. Raises StorageError if the disk fails."""

    def __init__(self, folder: Path, limits: HistoryLimits = DEFAULT_LIMITS) -> None:
        self._folder = folder
        self._limits = limits

    def prepare(self, path: Path, state: FileState, content: bytes) -> FileChange:
        """Store what a file at the resolved `path` holds and what it will hold, and return the change to record. The
        next step is `write`. A file too large to keep is not stored; its change says so."""
        assert len(content) <= MAX_FILE_BYTES
        is_kept = not state.exists or state.content is not None
        with self._locked():
            if state.content is not None:
                self._keep(state.content)
            after = self._keep(content)
            self._prune()
        n_missing = sum(not parent.exists() for parent in path.parents)
        return FileChange(str(path), state.sha256, after, state.mode, n_missing, is_kept)

    def write(self, change: FileChange, state: FileState, content: bytes) -> None:
        """Make a change that was prepared and recorded. Raises StorageError, having changed nothing, if the file is no
        longer as `state`."""
        self._replace(Path(change.path), content, state.mode, state)

    def read(self, sha256: str) -> bytes:
        """Return a content. Raises StorageError if it is not kept, or damaged."""
        path = self._path(sha256)
        try:
            content = read_regular(path, MAX_FILE_BYTES)
        except FileNotFoundError:
            cause = "The former content of a file is no longer kept."
            raise StorageError(
                cause, f"Contents are kept for {format_number(self._limits.max_age_s / _DAY_S)} days."
            ) from None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}.", _REMEDY) from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise StorageError(f"{path} is damaged.", "Restore it from a backup.")
        return content

    def undo(self, changes: Sequence[FileChange]) -> tuple[FileChange, ...]:
        """Restore files as they were before `changes`, the last one first, and return what that changed. Changes that
        never came to pass or are undone already are left out, so that an undo which was killed can be repeated. Raises
        StorageError: having changed nothing, for a file that was changed since, for one that was too large to keep and
        where a content is no longer kept; and where the disk fails in the middle."""
        with self._locked():
            steps = self._planned(changes)
            for _, state, _ in steps:
                if state.content is not None:  # a file that was already there keeps it
                    self._keep(state.content)
        return tuple(self._take(*step) for step in steps)

    def sweep(self) -> int:
        """Remove the partial files that killed processes left, and what is beyond the limits; return how many contents
        were removed."""
        if not self._folder.is_dir():
            return 0
        for mark in sorted((self._folder / _WRITING).glob("*")):  # these name files elsewhere
            if is_process_alive(mark.name.partition(".")[0] or writer_of(mark)):
                continue
            try:
                _remove_marked(mark)
            except (OSError, ValueError, RecursionError, StorageError) as error:
                # Of a file that the next sweep cannot remove either.
                log_event("tools", f"{mark} names a partial file that cannot be removed: {error}")
            mark.unlink(missing_ok=True)
        for partial in self._folder.glob("[0-9a-f][0-9a-f]/.*"):
            if (writer := writer_of(partial)) and not is_process_alive(writer):
                partial.unlink(missing_ok=True)
        with self._locked():
            return self._prune()

    def unused(self, used: Collection[str]) -> tuple[tuple[Path, ...], int]:
        """Return the files of contents that `remove_unused` would remove, and their size in bytes."""
        doomed = self._unused(used)
        return tuple(path for path, _ in doomed), sum(n_bytes for _, n_bytes in doomed)

    def remove_unused(self, used: Collection[str]) -> int:
        """Remove the contents that are not `used`, but for those of the last day, which a chat that is not stored may
        need; return how many."""
        if not self._folder.is_dir():
            return 0
        with self._locked():
            return self._remove(path for path, _ in self._unused(used))

    def _unused(self, used: Collection[str]) -> list[tuple[Path, int]]:
        old_s = time.time() - _DAY_S
        old = [(path, size) for path, kept_s, size in self._contents() if kept_s < old_s]
        return [(path, size) for path, size in old if path.parent.name + path.name not in used]

    def _planned(self, changes: Sequence[FileChange]) -> list[_Step]:
        """Return the steps that undo `changes`, each file once: the one that was changed first comes last, for the
        folders that were made for it must be empty by then. Raises as `undo`."""
        states: dict[str, FileState] = {}
        targets: dict[str, FileChange] = {}
        for number in reversed(range(len(changes))):
            change = changes[number]
            state = states.setdefault(change.path, _state_of(Path(change.path)))
            last = targets.get(change.path)
            sha256 = state.sha256 if last is None else last.before
            if sha256 == change.after:
                if not change.is_kept:
                    cause = f"What {change.path} held before was too large to keep."
                    raise StorageError(cause, _NOTHING_DONE)
                targets.pop(change.path, None)
                targets[change.path] = change
            elif sha256 != change.before:
                earlier = [each for each in changes[:number] if each.path == change.path]
                if not any(sha256 in (each.before, each.after) for each in earlier):
                    raise StorageError(f"{change.path} was changed since.", _NOTHING_DONE)
        undone = [change for path, change in targets.items() if change.before != states[path].sha256]
        return [(each, states[each.path], self.read(each.before) if each.before else None) for each in undone]

    def _take(self, undone: FileChange, state: FileState, content: bytes | None) -> FileChange:
        path, is_kept = Path(undone.path), not state.exists or state.content is not None
        if content is None:
            # and the folders that were made for it, if they are empty
            with _explained(path), open_folder(path.parent) as folder:
                folder.remove(path.name, state)
            n_folders, after = _remove_empty(path.parents[: undone.n_new_folders]), ""
        else:
            n_folders = self._replace(path, content, undone.mode, state)
            after = hashlib.sha256(content).hexdigest()
        return FileChange(str(path), state.sha256, after, state.mode, n_folders, is_kept)

    def _replace(self, path: Path, content: bytes, mode: int, state: FileState) -> int:
        """Write a file, and return how many folders were made for it."""
        mark = self._folder / _WRITING / f"{os.getpid()}.{next(_counter)}"
        private_folder(mark.parent)

        def note(partial: Path) -> None:
            write_atomically(mark, json.dumps(str(partial)), sync=False, mode=PRIVATE_FILE)

        n_made = 0
        try:
            with _explained(path), open_folder(path.parent, make=not state.exists) as folder:
                n_made = folder.n_made
                folder.replace(path.name, content, mode, state, note)
        except BaseException:
            _remove_empty(path.parents[:n_made])
            raise
        finally:
            mark.unlink(missing_ok=True)
        return n_made

    def _keep(self, content: bytes) -> str:
        """Store a content, which is on the disk on return, and return its SHA-256. The lock is held."""
        sha256 = hashlib.sha256(content).hexdigest()
        path = self._path(sha256)
        with explained(f"Former contents of files cannot be stored in {self._folder}", _REMEDY):
            if path.is_file() and path.stat().st_size == len(content):
                os.utime(path)
                return sha256
            private_folder(path.parent)
            write_atomically(path, content, sync=True, mode=PRIVATE_FILE)
            sync_folder(path.parent.parent)
        return sha256

    def _prune(self) -> int:
        """Remove the contents beyond the limits, the oldest first; return how many. The lock is held."""
        newest_first = sorted(self._contents(), key=lambda item: item[1], reverse=True)
        doomed, n_bytes, limits = [], 0, self._limits
        for number, (path, kept_s, size) in enumerate(newest_first):
            n_bytes += size
            is_old = time.time() - kept_s > limits.max_age_s
            if number >= limits.n_newest and (n_bytes > limits.max_bytes or is_old):
                doomed.append(path)
        if doomed:
            log_event("tools", f"{len(doomed)} former contents of files are beyond the limits and were removed")
        return self._remove(doomed)

    def _contents(self) -> Iterator[tuple[Path, float, int]]:
        """Yield each content with the time when it was last kept and its size."""
        for path in self._folder.glob("[0-9a-f][0-9a-f]/" + "[0-9a-f]" * 62):
            status = path.stat()
            yield path, status.st_mtime, status.st_size

    def _remove(self, paths: Iterable[Path]) -> int:
        n_removed = 0
        for path in paths:
            with explained(f"{path} cannot be removed", "Check its permissions."):
                path.unlink(missing_ok=True)
            n_removed += 1
        return n_removed

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with explained(f"Former contents of files cannot be stored in {self._folder}", _REMEDY):
            private_folder(self._folder)
            lock = try_lock(self._folder / "lock", _LOCK_TIMEOUT_S)
        if lock is None:
            raise StorageError("Another process of localllm keeps the history of files locked.", "Try again.")
        try:
            yield
        finally:
            lock.release()

    def _path(self, sha256: str) -> Path:
        if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
            raise StorageError("A change of a file names no content.", _NOTHING_DONE)
        return self._folder / sha256[:2] / sha256[2:]


def _state_of(path: Path) -> FileState:
    """Return the state of the file at a recorded path, which has no link on its way. Raises StorageError."""
    if not path.is_absolute() or ".." in path.parts:
        raise StorageError(f"{path} is not the path of a change.", _NOTHING_DONE)
    with _explained(path):
        return file_state(path)


def _remove_marked(mark: Path) -> None:
    """Remove the partial file that `mark` names; one that is not whole names none yet."""
    text = read_regular(mark).decode("utf-8")
    if not text or writer_of(mark):
        return
    partial = Path(json.loads(text))
    if not is_partial_file(partial) or not partial.is_absolute():
        raise ValueError("it names another file")
    with contextlib.suppress(FileNotFoundError), open_folder(partial.parent) as folder:
        if (state := folder.read(partial.name)).exists:
            folder.remove(partial.name, state)


def _remove_empty(folders: Sequence[Path]) -> int:
    """Remove `folders`, the innermost first, up to one in which something is; return how many."""
    for n_removed, folder in enumerate(folders):
        try:
            with open_folder(folder.parent) as above:
                above.remove_folder(folder.name)
        except (OSError, StorageError):  # it is not empty, or no longer this folder
            return n_removed
    return len(folders)


def _explained(path: Path) -> contextlib.AbstractContextManager[None]:
    return explained(f"{path} cannot be read or written", "Check its permissions and the disk.")
