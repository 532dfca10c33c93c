"""Model files on the disk: `<publisher>/<repo>/<file>.gguf`, large models in several files.

Owns which files are models, which belong together, and how a change is detected. Does not read their content.
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
    """The files of a model together: bytes, time of the last change, and a stamp that differs after any change."""

    n_bytes: int
    modified_s: float
    stamp: str


def model_paths(models_dir: Path) -> list[Path]:
    """Return the first or only file of every model, sorted. Hidden files and folders are skipped."""
    repos = (repo for publisher in _entries(models_dir) for repo in _entries(publisher))
    return sorted(path for repo in repos for path in _entries(repo) if is_model_file(path.name))


def is_model_file(name: str) -> bool:
    """Return whether `name` is that of a GGUF model, or of the first part of one."""
    return name.endswith(".gguf") and not name.startswith(".") and not _LATER_PART.search(name)


def parts_of(path: Path) -> tuple[Path, ...]:
    """Return all files of the model whose first or only file is `path`, whether they exist or not."""
    index, count = shard_index(path.name) or (0, 1)
    if index != 0 or count > MAX_SHARDS:
        return (path,)
    return tuple(shard_path(path, part, count) for part in range(count))


def repo_of(path: Path) -> str:
    """Return the publisher/repo of a file in the models folder."""
    return f"{path.parent.parent.name}/{path.parent.name}"


def added_at_ns(path: Path) -> int:
    """Return when the file at `path` was added, in nanoseconds since 1970: its change time.

    Moving or linking a file keeps its modification time but not its change time. A missing file sorts last.
    """
    try:
        return path.lstat().st_ctime_ns
    except OSError:
        return sys.maxsize


def stat_model(path: Path) -> ModelStat:
    """Return size, time and stamp of the model at `path`; missing files count no bytes."""
    n_bytes, modified_ns, stamps = 0, 0, []
    for part in parts_of(path):
        try:
            status = part.stat()
        except OSError:  # a broken link, or it was removed: validation reports that when it is read
            stamps.append("missing")
            continue
        n_bytes += status.st_size
        modified_ns = max(modified_ns, status.st_mtime_ns)
        # the change time also detects a modification time that was set back, as copying does
        stamps.append(f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}")
    return ModelStat(n_bytes, modified_ns / 1e9, " ".join(stamps))


def identity_of(path: Path) -> FileIdentity:
    """Return an identity that all names of the model at `path` share: each file's device and inode.

    A missing file is identified by its path, one on a file system without inodes by its resolved path.
    """
    return tuple(map(_file_identity, parts_of(path)))


def _file_identity(path: Path) -> tuple[int, int] | str:
    try:
        status = path.stat()
    except OSError:
        return str(path)
    return (status.st_dev, status.st_ino) if status.st_ino else str(path.resolve())


def _entries(folder: Path) -> list[Path]:
    """Return the visible entries of a folder; none where it cannot be read."""
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
    served_as: str = field(default="", compare=False)  # derived from the others
