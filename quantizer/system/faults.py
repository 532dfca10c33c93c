"""What the operating system refuses, as an error of ours: a full or failing disk, too many files, memory, processes.

Any call may be refused so, in any room. Where a room knows what it was about to do, `quantizer.system.files.explained`
says so; what no room expects becomes an error here, at the edge of each process, by its kind and not by its place.
Errors of paths and connections are none of these: those that nobody expects are bugs, and keep their traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from quantizer.system.errors import EngineError, StorageError, UserError
from quantizer.system.memory_limit import out_of_memory

_SPACE = "Free some space, or write elsewhere."
_FILES = "End other programs, or raise the limit on open files (`ulimit -n`)."
_MEMORY = "End other programs, or use a smaller model or context."
_PROCESSES = "End other programs, or raise the limit on processes (`ulimit -u`)."
_DISK = "The disk or its connection may be failing: check it, and keep a copy of what is on it."

# By error, what helps wherever it comes from.
_REMEDIES: Mapping[int, str] = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "Raise the limit on the size of files (`ulimit -f`), or write elsewhere.",
    errno.EROFS: "Write elsewhere, or mount the file system for writing.",
    errno.EIO: _DISK,
    errno.ESTALE: "Connect the network folder again.",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: _MEMORY,
    errno.ENOBUFS: _MEMORY,
    errno.EAGAIN: _PROCESSES,
    errno.EINTR: "Try again.",  # of what Python does not try again by itself: listing a folder
}
# What a room advises about one path, such as its rights, does not help against these.
_OF_NO_PATH = frozenset({errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EINTR})
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE})


class UnsuitableFileError(OSError):
    """Something else than a regular file, or one that is too large; `remedy` is what helps wherever it is met."""

    def __init__(self, path: Path, why: str, remedy: str) -> None:
        super().__init__(errno.EINVAL, why, str(path))
        self.remedy = remedy


def remedy_for(error: OSError, advised: str) -> str:
    """Return what helps against `error`: what is `advised` for its path, unless it is of the whole system, or the path
    leads to no file of use."""
    if isinstance(error, UnsuitableFileError):
        return error.remedy
    code = error.errno or 0
    return _REMEDIES[code] if code in _OF_NO_PATH or (not advised and code in _REMEDIES) else advised


def system_fault(name: str, error: BaseException) -> UserError | None:
    """Return the error for what the operating system refused to the process called `name`; None for any other, which
    is a bug."""
    if shortage := out_of_memory(name, [repr(error)]):
        return shortage
    if isinstance(error, MemoryError):
        return EngineError(f"The {name} has not enough memory.", _MEMORY)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return EngineError(f"The system lets the {name} start no more threads.", _PROCESSES)
    if not isinstance(error, OSError) or not (remedy := remedy_for(error, "")):
        return None
    if error.errno in _OF_THE_DISK or isinstance(error, UnsuitableFileError):
        place = f"{error.filename} cannot be read or written" if error.filename else f"The {name} failed"
        return StorageError(f"{place}: {error.strerror}.", remedy)
    return EngineError(f"The {name} failed: {error.strerror}.", remedy)


@contextmanager
def reported_faults(name: str) -> Iterator[None]:
    """Raise the error for what the operating system refuses to the process called `name` inside the context."""
    try:
        yield
    except (MemoryError, RuntimeError, ImportError, OSError) as error:
        if fault := system_fault(name, error):
            raise fault from error
        raise
