"""Files at paths without links: read, replaced and removed so that no link that is put there meanwhile leads elsewhere.

Owns how a file is opened: from the root down, each folder by its descriptor and none through a link, so that a folder
which is swapped for a link between a check and the use is refused. Only plain files are opened, never devices, pipes or
sockets. Windows has no such descriptors: there the path is compared before and after, and a swap in between that is
swapped back is not noticed. Owns replacing a file: its new content is written beside it, synced, and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from quantizer.system.errors import StorageError
from quantizer.system.files import read_at_most

MAX_FILE_BYTES = 16 << 20  # of content that is held in memory
_MAX_HASHED_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20
_HAS_DESCRIPTORS = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW") and hasattr(os, "O_DIRECTORY")
_NOFOLLOW, _DIRECTORY = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_DIRECTORY", 0)
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY)  # of folders above, which may not be readable
_NONBLOCK, _BINARY = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_BINARY", 0)
_PREFIX, _SUFFIX = ".localllm.", ".tmp"  # of partial files; a name of its own, as that of the file may be long
_counter = itertools.count()
_CHANGED = "Read it again, and decide anew."


@dataclass(frozen=True, slots=True)
class FileState:
    """A file as it was when it was read: the SHA-256 and size of its content, and its permission bits. `content` is
    None for more than `MAX_FILE_BYTES`. `stamp` tells it from a later version: device, inode, size and time of change.
    Where there is no file, `sha256` is "" and `mode` -1."""

    sha256: str = ""
    content: bytes | None = None
    n_bytes: int = 0
    mode: int = -1
    n_links: int = 0
    stamp: tuple[int, ...] = ()

    @property
    def exists(self) -> bool:
        return bool(self.sha256)


NO_FILE = FileState()


class OpenFolder:
    """A folder that is held open; `n_made` of the last folders of its path were made. Names have no separators. Methods
    raise OSError where the system refuses, and StorageError where said."""

    def __init__(self, path: Path, descriptor: int | None, n_made: int = 0) -> None:
        self.path = path
        self.n_made = n_made
        self._descriptor = descriptor

    def read(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> FileState:
        """Return the state of a file, `NO_FILE` where there is none. Raises StorageError for what is no plain file, and
        for one of more than 1 GiB."""
        descriptor = self._opened(name)
        if descriptor is None:
            return NO_FILE
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            self._check_plain(name, status)
            if status.st_size > _MAX_HASHED_BYTES:
                raise StorageError(f"{name} has more than {_MAX_HASHED_BYTES >> 30} GiB.", "Choose a smaller file.")
            content = read_at_most(file, max_bytes + 1)
            digest, n_bytes = hashlib.sha256(content), len(content)
            while n_bytes > max_bytes and (piece := file.read(_PIECE_BYTES)):
                digest.update(piece)
                n_bytes += len(piece)
                if n_bytes > _MAX_HASHED_BYTES:
                    raise StorageError(f"{name} does not end.", "Choose another file.")
        return FileState(
            digest.hexdigest(),
            content if n_bytes <= max_bytes else None,
            n_bytes,
            stat.S_IMODE(status.st_mode),
            status.st_nlink,
            _stamp(status),
        )

    def entries(self) -> list[os.DirEntry[str]]:
        with os.scandir(self.path if self._descriptor is None else self._descriptor) as found:
            return sorted(found, key=lambda entry: entry.name)

    def replace(
        self, name: str, content: bytes, mode: int, expected: FileState, on_partial: Callable[[Path], None]
    ) -> None:
        """Give a file new content: readers see the old or the new, which survives a power failure on return. `mode` are
        its permission bits, -1 those of a new file. `on_partial` gets the path of the partial file before it is made.
        Raises StorageError, having changed nothing, if the file is no longer as `expected`."""
        partial = f"{_PREFIX}{os.getpid()}.{next(_counter)}{_SUFFIX}"
        on_partial(self.path / partial)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _BINARY
        descriptor = os.open(self._at(partial), flags, 0o666, dir_fd=self._descriptor)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if mode >= 0 and hasattr(os, "fchmod"):
                    os.fchmod(file.fileno(), mode)
                elif mode >= 0:
                    Path(self._at(partial)).chmod(mode)
                os.fsync(file.fileno())
            self._check_unchanged(name, expected)
            if expected.exists:
                self._keep_owner(name, partial, mode)
            os.replace(self._at(partial), self._at(name), src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(self._at(partial), dir_fd=self._descriptor)
            raise
        self.sync()

    def remove(self, name: str, expected: FileState) -> None:
        """Remove a file. Raises StorageError, having changed nothing, if it is no longer as `expected`."""
        self._check_unchanged(name, expected)
        os.unlink(self._at(name), dir_fd=self._descriptor)
        self.sync()

    def remove_folder(self, name: str) -> None:
        os.rmdir(self._at(name), dir_fd=self._descriptor)
        self.sync()

    def sync(self) -> None:
        """Write the names in the folder to the disk."""
        if self._descriptor is not None:
            os.fsync(self._descriptor)

    def _at(self, name: str) -> str:
        assert name not in ("", ".", "..")
        assert "/" not in name
        return name if self._descriptor is not None else str(self.path / name)

    def _opened(self, name: str) -> int | None:
        """Return a descriptor of what is there, None for nothing; it is looked at first, so that nothing but a plain
        file is opened, and opened without waiting should it have been swapped."""
        try:
            status = os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False)
            self._check_plain(name, status)
            flags = os.O_RDONLY | _NOFOLLOW | _NONBLOCK | _BINARY
            return os.open(self._at(name), flags, dir_fd=self._descriptor)
        except FileNotFoundError:
            return None

    def _check_plain(self, name: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"{name} is {_kind_of(status.st_mode)}, not a plain file.", "Choose a file.")

    def _check_unchanged(self, name: str, expected: FileState) -> None:
        found: tuple[int, ...] = ()
        with contextlib.suppress(FileNotFoundError):
            found = _stamp(os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False))
        if found != expected.stamp:
            raise StorageError(f"{self.path / name} was changed meanwhile.", _CHANGED)

    def _keep_owner(self, name: str, partial: str, mode: int) -> None:
        """Give the new file the owner of the old one. Raises StorageError where this user may not."""
        if not hasattr(os, "chown"):
            return
        old = os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False)
        new = os.stat(self._at(partial), dir_fd=self._descriptor, follow_symlinks=False)
        if (old.st_uid, old.st_gid) == (new.st_uid, new.st_gid):
            return
        try:
            os.chown(self._at(partial), old.st_uid, old.st_gid, dir_fd=self._descriptor, follow_symlinks=False)
            kept_mode = mode if mode >= 0 else stat.S_IMODE(old.st_mode)
            os.chmod(self._at(partial), kept_mode, dir_fd=self._descriptor)  # chown took some
        except PermissionError:
            cause = f"{name} belongs to another user or group, which replacing it would change."
            raise StorageError(cause, "Write another file.") from None


@contextlib.contextmanager
def open_folder(path: Path, *, make: bool = False) -> Iterator[OpenFolder]:
    """Hold the folder at the absolute `path` open; with `make` missing ones are made. Raises OSError, and StorageError
    where a link is on the way: `path` must have been resolved."""
    assert path.is_absolute()
    if not _HAS_DESCRIPTORS:
        yield _checked_folder(path, make)
        return
    descriptor, n_made = _descended(path, make)
    try:
        yield OpenFolder(path, descriptor, n_made)
    finally:
        os.close(descriptor)


def is_as_named(folder: Path) -> bool:
    """Return whether no link is on the way to `folder`, which was resolved when the person named it: one that has been
    put there since, as by a checkout, leads elsewhere."""
    return os.path.realpath(folder) == str(folder)


def file_state(path: Path) -> FileState:
    """Return the state of the file at the absolute, resolved `path`. Raises OSError and StorageError as `read` does."""
    try:
        with open_folder(path.parent) as folder:
            return folder.read(path.name)
    except FileNotFoundError:
        return NO_FILE


def is_partial_file(path: Path) -> bool:
    """Return whether `path` has the name of a file that `replace` had not yet finished."""
    return path.name.startswith(_PREFIX) and path.name.endswith(_SUFFIX)


def _descended(path: Path, make: bool) -> tuple[int, int]:
    """Return a descriptor of the folder at `path`, reached without a link, and how many of its last were made."""
    *above, last = (path.anchor, *path.parts[1:])
    steps = [*((name, _SEARCH) for name in above), (last, os.O_RDONLY)]
    descriptor, n_made = None, 0
    for name, access in steps:
        above_it = descriptor
        flags = access | _DIRECTORY | _NOFOLLOW
        try:
            if make and above_it is not None:
                n_made += _made(name, above_it)
            descriptor = os.open(name, flags, dir_fd=above_it)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST):
                raise
            raise _no_folder(path) from error
        finally:
            if above_it is not None:
                os.close(above_it)
    assert descriptor is not None
    return descriptor, n_made


def _made(name: str, above: int) -> int:
    """Make the folder `name` if it is missing; return how many were made."""
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=above, follow_symlinks=False)
        return 0
    os.mkdir(name, dir_fd=above)
    descriptor = os.open(".", os.O_RDONLY, dir_fd=above)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return 1


def _checked_folder(path: Path, make: bool) -> OpenFolder:
    n_made = 0
    has_link = os.path.realpath(path) != str(path)
    try:
        for folder in (*reversed(path.parents), path) if make and not has_link else ():
            if not folder.is_dir():
                folder.mkdir()
                n_made += 1
        is_folder = not has_link and stat.S_ISDIR(path.lstat().st_mode)
    except (NotADirectoryError, FileExistsError):
        is_folder = False
    if not is_folder:
        raise _no_folder(path)
    return OpenFolder(path, None, n_made)


def _no_folder(path: Path) -> StorageError:
    return StorageError(f"{path} is not a folder, or a link is on the way to it.", "Name another path.")


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _kind_of(mode: int) -> str:
    kinds = {
        stat.S_ISDIR: "a folder",
        stat.S_ISLNK: "a link",
        stat.S_ISFIFO: "a pipe",
        stat.S_ISSOCK: "a socket",
        stat.S_ISCHR: "a device",
        stat.S_ISBLK: "a device",
    }
    return next((words for is_kind, words in kinds.items() if is_kind(mode)), "of another kind")
