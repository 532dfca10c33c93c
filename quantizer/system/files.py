"""Files that are whole or not there: atomic writes, syncing, locks between processes, and the errors of disks.

Owns the rights of what only its owner may read: files 0600 in folders 0700. Windows has no such modes; there the
folders of the user's profile are private already. Knows no format. `filelock` is imported at the first lock only: it
takes a tenth of a second.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, cast, overload

from quantizer.system.errors import StorageError, UserError
from quantizer.system.faults import UnsuitableFileError, remedy_for

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from io import BufferedReader, FileIO

    from filelock import BaseFileLock


PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700  # their modes
_OTHERS = 0o077

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
_SYNC_BYTES = 128 << 20
_PIECE_BYTES = 1 << 20
_MAX_BYTES = 1 << 30  # more than any file that is read whole has, but a sparse one
_REPLACE_TIMEOUT_S, _REPLACE_POLL_S = 1.0, 0.02
_PROBE_BYTES = 16 << 10  # more than a file system puts beside its name
_SUFFIX = ".tmp"
_counter = itertools.count()
_LOGGER = logging.getLogger("localllm")  # of `app.common.event_log`


@contextlib.contextmanager
def explained(what: str, remedy: str = "", kind: type[UserError] = StorageError) -> Iterator[None]:
    """Turn an OSError of the block into a `kind` of error: `what` failed, such as "a.gguf cannot be read", and why. The
    `remedy` gives way to that of a fault of the whole system, such as too many open files."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}.", remedy_for(error, remedy)) from error


def write_atomically(
    path: Path, data: bytes | str | Iterable[bytes | bytearray | memoryview | str], *, sync: bool, mode: int = 0o666
) -> None:
    """Replace the file at `path` by one with `data` (text in UTF-8): readers see the old content or the new one. With
    `sync`, the new content survives a power failure once this returns, and what killed processes left of it is removed.
    `mode` are permissions before the umask. Raises OSError, and whatever iterating over `data` raises; then `path` is
    unchanged."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{next(_counter)}{_SUFFIX}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in (data,) if isinstance(data, bytes | str) else data:
                file.write(piece.encode() if isinstance(piece, str) else piece)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        replace_file(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    if sync:
        remove_abandoned(path.parent, f"{path.name}.")
        sync_folder(path.parent)


def write_cache(path: Path, data: bytes | str | Iterable[bytes | bytearray | memoryview | str]) -> bool:
    """Replace the file at `path`, for its owner only, with its folder; return whether that was done. It is of a cache:
    where it cannot be written, whoever made `data` goes on with that, and the log says so once."""
    try:
        private_folder(path.parent)
        write_atomically(path, data, sync=False, mode=PRIVATE_FILE)
    except OSError as error:
        _log_unkept(path.parent, error.strerror or str(error))
        return False
    return True


@cache
def _log_unkept(folder: Path, why: str) -> None:
    _LOGGER.info("Nothing is kept in %s: %s.", folder, why, extra={"source": "cache"})


def replace_file(source: Path, target: Path) -> None:
    """Move `source` to `target`, in the place of what is there. Windows refuses while another program has the target
    open, such as a virus scanner or a reader of ours: it is tried again for a second. Raises OSError."""
    deadline_s = time.monotonic() + _REPLACE_TIMEOUT_S
    while True:
        try:
            source.replace(target)
        except PermissionError as error:
            if sys.platform != "win32" or time.monotonic() >= deadline_s:
                if sys.platform == "win32":
                    error.strerror = f"another program has {target.name} open, or its folder may not be written"
                raise
            time.sleep(_REPLACE_POLL_S)
        else:
            return


def remove_abandoned(folder: Path, name: str = "") -> None:
    """Remove what killed processes left of `write_atomically` in a folder, of the file `name` if one is given: nobody
    else would, and it may be large, or hold a key."""
    with contextlib.suppress(OSError):
        for partial in folder.iterdir():
            if partial.name.startswith(f".{name}") and (writer := writer_of(partial)):
                from quantizer.system.process import is_process_alive  # slow, and hardly ever needed

                if not is_process_alive(writer):
                    partial.unlink(missing_ok=True)


def read_at_most(file: BinaryIO, max_bytes: int) -> bytes:
    """Return the rest of `file`, or its first `max_bytes`: in pieces, for `read` makes room for all of them at once.
    Raises OSError."""
    pieces: list[bytes] = []
    while max_bytes > 0 and (piece := file.read(min(max_bytes, _PIECE_BYTES))):
        pieces.append(piece)
        max_bytes -= len(piece)
    return b"".join(pieces)


def private_folder(path: Path) -> Path:
    """Create the folder at `path` with those above it that are missing, for their owner only, and return it.
    One that exists stays as it is; see `make_private`. Raises OSError."""
    return make_folder(path, _PRIVATE_FOLDER)


def make_folder(path: Path, mode: int = 0o777) -> Path:
    """Create the folder at `path` with those above it that are missing, and return it. Their names are synced: what is
    synced in a folder survives a power failure only if the folder does. One that exists stays as it is. `mode` are
    permissions before the umask. Raises OSError."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=mode, exist_ok=True)
            with contextlib.suppress(PermissionError):  # a folder may be made where none may be listed
                sync_folder(folder.parent)
    return path


def is_file(path: Path) -> bool:
    """Return whether there is a file at `path` that this process may know of. Path's method raises where a folder above
    may not be entered, before Python 3.14; ValueError for a name with a NUL never escapes here."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Return whether there is a folder at `path` that this process may know of; see `is_file`."""
    return os.path.isdir(path)  # noqa: PTH112


def sorted_glob(folder: Path, *patterns: str) -> list[Path]:
    """Return the files in `folder` that match, sorted; none where it is missing, or may not be entered or listed."""
    while is_folder(folder):
        try:
            return sorted(path for pattern in patterns for path in folder.glob(pattern))
        except InterruptedError:  # a signal, on a network's file system: Python tries most calls again, not this one
            continue
    return []


def unnamed_file() -> BinaryIO:
    """Return a file without a name, for what another process prints; where none can be made it holds nothing."""
    from tempfile import TemporaryFile  # which user interfaces may not need

    try:
        return cast("BinaryIO", TemporaryFile())
    except OSError:  # no folder for temporary files can be written, or the process may write no file
        return open(os.devnull, "a+b")  # noqa: PTH123 - its owner closes it


def why_unwritable(folder: Path) -> str:
    """Return why no file can be written in `folder`, "" where one can. Only writing tells: rights, read-only mounts,
    quotas, limits of the process and full disks each show elsewhere. It leaves nothing, nor a folder that is new."""
    probe = folder / f".probe.{os.getpid()}.{next(_counter)}{_SUFFIX}"
    made = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
    try:
        private_folder(folder)
        with open_private(probe, is_new=True) as file:
            file.write(bytes(_PROBE_BYTES))
        remove_abandoned(folder, "probe.")
    except FileExistsError as error:
        return f"{error.filename} is a file"
    except OSError as error:
        if error.errno == errno.EFBIG:
            return "this process may not write files: see `ulimit -f`"
        return error.strerror or str(error)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
            for each in made:
                each.rmdir()
    return ""


def open_private(path: Path, *, is_new: bool = False) -> BinaryIO:
    """Open the file at `path` for appending and reading, created for its owner only; `is_new` requires that there is
    none. Raises OSError."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | (os.O_EXCL if is_new else 0) | getattr(os, "O_BINARY", 0)
    return open(path, "a+b", opener=lambda name, _flags: os.open(name, flags, PRIVATE_FILE))


@overload
def open_regular(path: Path, buffering: Literal[-1] = -1) -> BufferedReader: ...
@overload
def open_regular(path: Path, buffering: Literal[0]) -> FileIO: ...
def open_regular(path: Path, buffering: int = -1) -> BufferedReader | FileIO:
    """Open a file for reading that somebody may have named or put there. Raises UnsuitableFileError for anything but a
    regular file, which is not opened: a FIFO would wait for a writer without end, a device may do anything. Raises
    OSError. Only this opens such files: see tests/quantizer/system/test_foreign_files.py."""
    check_regular(path)
    number = _opened_regular(path, os.O_RDONLY)
    return cast("BufferedReader | FileIO", os.fdopen(number, "rb", buffering))


def open_partial(path: Path, *, appends: bool = False) -> BinaryIO:
    """Open what a job writes until it is whole, made where it is missing, for reading and writing without a buffer. Its
    folder may be others' too, as /tmp is: no link is followed. Raises UnsuitableFileError for anything but a regular
    file, OSError."""
    flags = os.O_RDWR | os.O_CREAT | (os.O_APPEND if appends else 0)
    return os.fdopen(_opened_regular(path, flags | getattr(os, "O_NOFOLLOW", 0)), "r+b", 0)


def _opened_regular(path: Path, flags: int) -> int:
    # Without O_NONBLOCK a FIFO that came after a look would wait for its other end.
    number = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0), 0o666)
    try:
        _check_regular(path, os.fstat(number).st_mode)
    except BaseException:
        os.close(number)
        raise
    return number


def check_regular(path: Path) -> None:
    """Raise UnsuitableFileError where anything but a regular file is at `path`, OSError where nothing is."""
    _check_regular(path, path.stat().st_mode)


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise UnsuitableFileError(path, f"It is {kind}, not a regular file", "Name a file on a disk.")


def read_regular(path: Path, max_bytes: int = _MAX_BYTES) -> bytes:
    """Return the whole of a file as `open_regular` opens it. Raises UnsuitableFileError for one of more than
    `max_bytes`, OSError."""
    with open_regular(path) as file:
        data = read_at_most(file, max_bytes + 1)
    if len(data) > max_bytes:
        size = f"{max_bytes >> 20} MiB" if max_bytes >= 1 << 20 else f"{max_bytes >> 10} KiB"
        raise UnsuitableFileError(path, f"It has more than {size}", "Shorten it, or name another file.")
    return data


def make_private(path: Path) -> bool:
    """Take the rights of others from a file or folder of this user; return whether they had any. Links, missing files
    and those of other users stay as they are. The file is not opened: closing it would release SQLite's locks. Raises
    OSError."""
    if sys.platform == "win32":
        return False
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    if not is_plain or status.st_uid != os.geteuid() or not status.st_mode & _OTHERS:
        return False
    path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
    return True


def writer_of(path: Path) -> str:
    """Return the number of the process whose `write_atomically` left the partial file `path`, "" for any other file."""
    parts = path.name.split(".")
    return parts[-3] if path.suffix == _SUFFIX and path.name.startswith(".") and len(parts) > 4 else ""


def last_use_s(path: Path) -> float:
    """Return when the file itself was changed or touched, in seconds since 1970; 0 once another process removed it."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk. Raises OSError."""
    if os.name == "nt":
        return  # Windows cannot sync a folder
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class BackgroundSync:
    """Syncs one file at a time in a thread, each time that 128 MiB were written, so that the last sync is short.
    Left alone, a system with much memory starts to write only when gigabytes wait."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None
        self._n_waiting = 0

    def wrote(self, file: BinaryIO, n_bytes: int) -> None:
        """Note that `n_bytes` more were written to `file`. Raises OSError when a sync before failed."""
        self._n_waiting += n_bytes
        if self._n_waiting < _SYNC_BYTES or (self._running is not None and not self._running.done()):
            return
        self.finish()
        self._running = self._pool.submit(os.fsync, file.fileno())
        self._n_waiting = 0

    def finish(self) -> None:
        """Wait for the running sync; its file may be closed then. Raises OSError when it failed."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Wait for the running sync and ignore its outcome: this follows another error."""
        self._pool.shutdown()


class Lock:
    """A lock that this process holds on the file at `path`."""

    def __init__(self, path: Path, held: BaseFileLock) -> None:
        self.path = path
        self._held = held

    def release(self) -> None:
        self._held.release()


def try_lock(path: Path, timeout_s: float = 0.0) -> Lock | None:
    """Lock the file at `path`, which is created if need be; None where another holder keeps it for `timeout_s`.
    The lock ends with `release` (a `with` block would hold it twice), `remove_lock` or the process. Raises OSError.

    On a file system without locks, as some network and FUSE mounts are, it excludes the processes of this machine only:
    a file that stands for it is locked on the local disk."""
    from filelock import FileLock, Timeout

    try:
        lock = FileLock(path, timeout=timeout_s, thread_local=False, fallback_to_soft=False)
        lock.acquire()
    except Timeout:
        return None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        open_private(path).close()  # whoever looks for the file finds it
        lock = FileLock(_local_lock_path(path), timeout=timeout_s, thread_local=False, fallback_to_soft=False)
        try:
            lock.acquire()
        except Timeout:
            return None
    return Lock(path, lock)


@contextlib.contextmanager
def changing_alone(path: Path, timeout_s: float, busy: str = "", refused: str = "") -> Iterator[None]:
    """Keep other processes from changing the file at `path`, whose folder is made private, inside the context. Raises
    StorageError, with `busy` for its cause, where another one does for `timeout_s`. What the system refuses is told by
    `refused` as `explained` does, without it an OSError."""
    with explained(refused) if refused else contextlib.nullcontext():
        private_folder(path.parent)
        lock = try_lock(path.with_suffix(".lock"), timeout_s)
    if lock is None:
        raise StorageError(busy or f"Another process is changing {path}.", "Try again.")
    try:
        yield
    finally:
        lock.release()


def _local_lock_path(path: Path) -> Path:
    """Return the file on the local disk that stands for the one at `path`. Raises OSError."""
    import hashlib
    import tempfile

    user = f"-{os.getuid()}" if sys.platform != "win32" else ""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(), f"localllm-locks{user}")
    private_folder(folder)
    if sys.platform != "win32" and folder.lstat().st_uid != os.getuid():  # anybody may make it in /tmp
        raise PermissionError(errno.EACCES, "Another user owns the folder of locks", str(folder))
    return folder / f"{hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()}.lock"


def remove_lock(lock: Lock) -> None:
    """Release `lock` and remove its file, before the release where the system can: another holder must not lose it."""
    if os.name == "nt":
        lock.release()
    with contextlib.suppress(OSError):
        lock.path.unlink(missing_ok=True)
    lock.release()


def has_record_locks(folder: Path) -> bool:
    """Return whether parts of files in `folder` can be locked, as SQLite does; True where it cannot be tried."""
    if sys.platform == "win32":
        return True
    import tempfile  # slow, and user interfaces import this module

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:  # nobody else can hold a lock of this file
                return error.errno not in _NO_LOCKS
    except OSError:
        pass
    return True
