"""Model files on the disk: `<publisher>/<repo>/<file>.gguf`, or anywhere else in the folder; large models in several.

Owns which files are models, which belong together, and how a change is detected. Does not read their content.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from quantizer.gguf.file_names import MAX_SHARDS, is_sidecar, shard_index, shard_path

FileIdentity: TypeAlias = tuple[tuple[int, int] | str, ...]

MAX_FOLDERS = 3  # between the models folder and a file: publisher, repo, and a folder of its quant
_SETTLED_S = 10.0  # without a change, after which nobody is copying the file any more
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True, slots=True)
class ModelStat:
    """The files of a model together: bytes, time of the last change of their content, a stamp that differs after any
    change, and the system's own time of the last change, which copying cannot set back."""

    n_bytes: int
    modified_s: float
    stamp: str
    changed_s: float = 0.0

    def is_changing(self, now_s: float) -> bool:
        """Return whether somebody may still be copying the files, by the seconds since 1970."""
        return 0 <= now_s - self.changed_s < _SETTLED_S


def model_paths(models_dir: Path) -> list[Path]:
    """Return the first or only file of every model, at most `MAX_FOLDERS` folders down, sorted.

    Hidden files and folders are skipped, and so are a link to a folder above itself, and a draft head or a projector
    beside a model.
    """
    return sorted(without_heads(_files_below(models_dir, MAX_FOLDERS, frozenset())))


def head_paths(models_dir: Path) -> list[Path]:
    """Return the draft heads and projectors that lie beside models, sorted."""
    files = set(_files_below(models_dir, MAX_FOLDERS, frozenset()))
    return sorted(files.difference(without_heads(files)))


def without_heads(files: Iterable[Path]) -> list[Path]:
    """Return the models among the GGUF `files`: a draft head or a projector beside a model is none."""
    files = list(files)
    with_models = {file.parent for file in files if not is_sidecar(file.name)}
    return [file for file in files if not (is_sidecar(file.name) and file.parent in with_models)]


def _files_below(folder: Path, n_folders: int, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    try:
        entries, status = _visible(folder), folder.stat()
    except OSError:  # missing, or it cannot be read
        return
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in entries:
        if not _is_folder(entry):
            if is_model_file(entry.name):
                yield folder / entry.name
        elif n_folders:
            yield from _files_below(folder / entry.name, n_folders - 1, above | ({here} if status.st_ino else set()))


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return [entry for entry in found if not entry.name.startswith(".")]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def folder_stamp(models_dir: Path) -> tuple[tuple[str, int], ...]:
    """Return a stamp of the folders that hold models, which differs once a file was added, renamed or removed.

    It takes a few calls of the system for each folder, and none for a file: cheap enough to be called every second.
    """
    folders, stamps = [(models_dir, MAX_FOLDERS)], []
    while folders:
        folder, n_folders = folders.pop()
        try:
            stamps.append((str(folder), folder.stat().st_mtime_ns))
            if n_folders:
                folders += [(folder / each.name, n_folders - 1) for each in _visible(folder) if _is_folder(each)]
        except OSError:
            stamps.append((str(folder), 0))
    return tuple(sorted(stamps))


def is_model_file(name: str) -> bool:
    """Return whether `name` is that of a GGUF model, or of the first part of one."""
    return name.endswith(".gguf") and not name.startswith(".") and not _LATER_PART.search(name)


def parts_of(path: Path) -> tuple[Path, ...]:
    """Return all files of the model whose first or only file is `path`, whether they exist or not."""
    index, count = shard_index(path.name) or (0, 1)
    if index != 0 or count > MAX_SHARDS:
        return (path,)
    return tuple(shard_path(path, part, count) for part in range(count))


def repo_of(path: Path, models_dir: Path) -> str:
    """Return the publisher/repo of a file below `models_dir`; of a file in one folder its name, of a loose file ""."""
    return "/".join(path.relative_to(models_dir).parts[:-1][:2])


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
    n_bytes, modified_ns, changed_ns, stamps = 0, 0, 0, []
    for part in parts_of(path):
        try:
            status = part.stat()
        except OSError:  # a broken link, or it was removed: validation reports that when it is read
            stamps.append("missing")
            continue
        n_bytes += status.st_size
        modified_ns, changed_ns = max(modified_ns, status.st_mtime_ns), max(changed_ns, status.st_ctime_ns)
        # the change time also detects a modification time that was set back, as copying does
        stamps.append(f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}")
    return ModelStat(n_bytes, modified_ns / 1e9, " ".join(stamps), changed_ns / 1e9)


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


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model of this machine: its id, see `naming`, and its first or only file. `repo` is publisher/name,
    the name of one folder, or empty. `place` is the program whose file it is, empty for our own."""

    id: str
    path: Path
    repo: str = ""
    place: str = ""
