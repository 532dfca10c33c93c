"""The models folder as it lies on the disk: `<publisher>/<repo>/<file>.gguf`, large models in several files.

Owns which files are models, which belong together, and what shows that one was changed. Knows nothing of what is in
them.

A model of this machine as people and programs name it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from quantizer.gguf.shards import MAX_SHARDS, shard_index, shard_path

__all__ = [
    "FileIdentity",
    "ModelRef",
    "ModelStat",
    "added_at_ns",
    "identity_of",
    "is_model_file",
    "model_paths",
    "parts_of",
    "repo_of",
    "stat_model",
]

FileIdentity: TypeAlias = tuple[tuple[int, int] | str, ...]

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True, slots=True)
class ModelStat:
    """All files of a model together: their bytes, when the last one changed, and a text that differs once one did."""

    n_bytes: int
    modified_s: float
    stamp: str


def model_paths(models_dir: Path) -> list[Path]:
    """Return the first or only file of every model, in order of name. Hidden files and folders are none."""
    repos = (repo for publisher in _entries(models_dir) for repo in _entries(publisher))
    return sorted(path for repo in repos for path in _entries(repo) if is_model_file(path.name))


def is_model_file(name: str) -> bool:
    """True for the name of a GGUF that is a model, or the first part of one."""
    return name.endswith(".gguf") and not name.startswith(".") and not _LATER_PART.search(name)


def parts_of(path: Path) -> tuple[Path, ...]:
    """Return all files of the model whose first or only file is at `path`, whether they are there or not."""
    index, count = shard_index(path.name) or (0, 1)
    if index != 0 or count > MAX_SHARDS:
        return (path,)
    return tuple(shard_path(path, part, count) for part in range(count))


def repo_of(path: Path) -> str:
    """Return the publisher/repo that a file of the models folder lies in."""
    return f"{path.parent.parent.name}/{path.parent.name}"


def added_at_ns(path: Path) -> int:
    """Return when the file at `path` came there, in nanoseconds since 1970, as nearly as the disk tells.

    A file that is moved or linked to its place keeps the time of its bytes, but not the time of this change. One that
    is gone meanwhile came last.
    """
    try:
        return path.lstat().st_ctime_ns
    except OSError:
        return sys.maxsize


def stat_model(path: Path) -> ModelStat:
    """Return what the disk says of the model at `path`; files that are missing have no bytes."""
    n_bytes, modified_ns, stamps = 0, 0, []
    for part in parts_of(path):
        try:
            status = part.stat()
        except OSError:  # a link to nowhere, or it went away: the gate says so when it is read
            stamps.append("missing")
            continue
        n_bytes += status.st_size
        modified_ns = max(modified_ns, status.st_mtime_ns)
        # the time of change tells files apart whose time of modification was set back, as copying does
        stamps.append(f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}")
    return ModelStat(n_bytes, modified_ns / 1e9, " ".join(stamps))


def identity_of(path: Path) -> FileIdentity:
    """Return what the model at `path` is under all its names, and no other model: each file's device and inode.

    A file that is missing is its path, and one on a file system without inodes its resolved path.
    """
    return tuple(map(_file_identity, parts_of(path)))


def _file_identity(path: Path) -> tuple[int, int] | str:
    try:
        status = path.stat()
    except OSError:
        return str(path)
    return (status.st_dev, status.st_ino) if status.st_ino else str(path.resolve())


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder and is not hidden; nothing where there is no folder that we may read."""
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model of this machine: the id that people use and its first or only file. `repo` is publisher/name or empty.

    `place` is the program whose file it is, empty for our own. `served_as` is what the service calls it, see `ids`.
    """

    id: str
    path: Path
    repo: str = ""
    place: str = ""
    served_as: str = field(default="", compare=False)  # worked out from the others
