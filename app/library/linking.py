"""A second name for a file without a second copy of its bytes. The platforms differ here only.

Owns the ways and their order: a hard link, which outlives the first name; a reflink, where the file system shares
blocks and another user's file may not be linked; a symbolic link, which is a reference and no more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from quantizer.errors import StorageError
from quantizer.output import partial_path

__all__ = ["REFERENCE", "NameTakenError", "link"]

REFERENCE = "symbolic link"
_FICLONE = 0x40049409  # source: linux/fs.h


class NameTakenError(StorageError):
    """Where a model was to lie something lies already."""


def link(source: Path, target: Path) -> str:
    """Make `target` a name of the file `source` and return which way worked. Nothing that is there is replaced.

    Raises NameTakenError when something is at `target`, StorageError when no way works.
    """
    real = source.resolve()
    reasons = []
    for way, make in _WAYS.items():
        try:
            make(real, target)
        except FileExistsError as error:
            raise NameTakenError(f"{target} exists already.", "Remove it first, or give another name.") from error
        except OSError as error:
            reasons.append(f"{way}: {error.strerror or error}")
        else:
            return way
    raise StorageError(f"{source} cannot be linked ({'; '.join(reasons)}).", "Copy it with `localllm import --copy`.")


def _reflink(source: Path, target: Path) -> None:
    if sys.platform != "linux":
        raise OSError(None, "not on this system")
    import fcntl

    partial = partial_path(target, 0)
    try:
        with source.open("rb") as original, partial.open("xb") as clone:
            fcntl.ioctl(clone, _FICLONE, original.fileno())
        os.link(partial, target)  # where renaming would replace
    finally:
        partial.unlink(missing_ok=True)


_WAYS: dict[str, Callable[[Path, Path], None]] = {
    "hard link": lambda source, target: os.link(source, target),
    "reflink": _reflink,
    REFERENCE: lambda source, target: target.symlink_to(source),
}
