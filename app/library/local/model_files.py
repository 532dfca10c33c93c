"""Model files on the disk (`<publisher>/<repo>/<file>.gguf`, or anywhere else in the folder), and their names and ids.

Owns which files are models, which belong together, how a change is detected, and which names are safe; reads no file's
content. A model has one id, for people and for clients, in Ollama's form, qwen2.5-coder:7b-instruct-q4_K_M: editors
derive the prompt format from the part before the colon. Ids come from file names alone, as reading a header takes up to
0.3 s. A name from a hub or a URL is untrusted: one that leaves its folder, or that any system treats specially, is
rejected on every system, so that a library can be moved.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from quantizer.gguf.file_names import MAX_SHARDS, is_sidecar, shard_index, shard_path, unsplit_name
from quantizer.system.errors import UsageError
from quantizer.system.files import explained

FileIdentity: TypeAlias = tuple[tuple[int, int] | str, ...]

MAX_FOLDERS = 3  # between the models folder and a file: publisher, repo, and a folder of its quant
_SETTLED_S = 10.0  # without a change, after which nobody is copying the file any more
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
_MAX_BYTES = 200  # file systems allow 255, and partial files have longer names
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"/\\|?*\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]')
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])\s*(\..*)?", re.IGNORECASE | re.DOTALL)
_QUANT = r"(?:ud-)?(?:i?q\d(?:_[a-z0-9]+)*|tq\d_\d|mxfp4(?:_moe)?|nvfp4|bf16|f16|f32)"
_ENDS_WITH_QUANT = re.compile(rf"[-._ ]({_QUANT})$", re.IGNORECASE)
_SIZE = re.compile(r"[-_ ]((?:\d+x)?e?\d+(?:\.\d+)?[bm](?:-a\d+(?:\.\d+)?b)?)(?=[-_. ]|$)", re.IGNORECASE)
_QUANT_HEAD = re.compile(r"^(?:ud-)?(?:i?q\d|tq\d|mxfp4|nvfp4|bf16|f16|f32)", re.IGNORECASE)
_GENERIC = re.compile(r"(?:ggml[-_])?(?:model|weights|gguf)", re.IGNORECASE)  # names that do not identify a model
_FORMAT = re.compile(r"[-_.](?:i1-)?gguf$", re.IGNORECASE)  # the suffix of a repository's name
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._]+")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_TAG_DIGITS = (6, 16, 64)
_LOCAL = "local"  # the publisher of models without one
_MAX_CHARACTERS = 96
_TAG_COLON = re.compile(r"(?<=[\w.-]{2}):(?=\w)")  # not that of a drive
_NOT_IN_A_FILE_NAME = re.compile(r"[^\w.+-]+")


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model of this machine: its id, and its first or only file. `repo` is publisher/name, the name of one folder, or
    empty. `place` is the program whose file it is, empty for ours. `manifest` is what Ollama has of a model beside its
    weights, which several of its models may share."""

    id: str
    path: Path
    repo: str = ""
    place: str = ""
    manifest: Path | None = None


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
    """Return the first or only file of every model, at most `MAX_FOLDERS` folders down, sorted. Hidden files and
    folders are skipped, and so are a link to a folder above itself, and a draft head or a projector beside a model.
    Raises StorageError for a folder that the system fails to list: models in it would seem to be gone."""
    return sorted(without_heads(_files_below(models_dir, MAX_FOLDERS, frozenset())))


def head_paths(models_dir: Path) -> list[Path]:
    """Return the draft heads and projectors that lie beside models, sorted. Raises StorageError as `model_paths`."""
    files = set(_files_below(models_dir, MAX_FOLDERS, frozenset()))
    return sorted(files.difference(without_heads(files)))


def without_heads(files: Iterable[Path]) -> list[Path]:
    """Return the models among the GGUF `files`: a draft head or a projector beside a model is none."""
    files = list(files)
    with_models = {file.parent for file in files if not is_sidecar(file.name)}
    return [file for file in files if file.parent not in with_models or not is_sidecar(file.name)]


def _files_below(folder: Path, n_folders: int, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    with explained(f"{folder} cannot be listed"):
        try:
            entries, status = _visible(folder), folder.stat()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
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
    while True:
        try:
            with os.scandir(folder) as found:
                return [entry for entry in found if not entry.name.startswith(".")]
        except InterruptedError:  # Python tries most calls again, not this one
            continue


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def folder_stamp(models_dir: Path) -> tuple[tuple[str, int], ...]:
    """Return a stamp of the folders that hold models, which differs once a file was added, renamed or removed. It takes
    a few calls of the system for each folder, and none for a file: cheap enough to be called every second."""
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
    """Return when the file at `path` was added, in nanoseconds since 1970: its change time. Moving or linking a file
    keeps its modification time but not its change time. A missing file sorts last."""
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
    """Return an identity that all names of the model at `path` share: each file's device and inode. A missing file is
    identified by its path, one on a file system without inodes by its resolved path."""
    found: list[tuple[int, int] | str] = []
    for part in parts_of(path):
        try:
            status = part.stat()
        except OSError:
            found.append(str(part))
        else:
            found.append((status.st_dev, status.st_ino) if status.st_ino else str(part.resolve()))
    return tuple(found)


def is_safe_name(name: str) -> bool:
    """Return whether `name` is one visible file of one folder, the same on Linux, macOS and Windows."""
    if not name or name.startswith((".", " ")) or name.endswith((".", " ")):
        return False
    return not _FORBIDDEN.search(name) and not _DEVICE.fullmatch(name) and len(name.encode()) <= _MAX_BYTES


def is_path(name: str) -> bool:
    """Return whether `name` can only be a path, on any system: publisher/repo has a separator too."""
    is_special = name == "~" or name.startswith(("~/", ".", "/", os.sep)) or "\\" in name
    return is_special or bool(_DRIVE.match(name)) or Path(name).is_absolute()


def listed(names: Iterable[str], n_most: int) -> str:
    """Return the first `n_most` different names as text, and how many more there are."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - n_most} more" if len(known) > n_most else ""
    return (", ".join(known[:n_most]) or "none") + more


def id_of(file_name: str, repo: str = "") -> str:
    """Return the id of the model in a file; a generic file name is replaced by that of its `repo`. A name without size
    and quantization was chosen by the user, and is the id as it is."""
    stem = unsplit_name(file_name.removesuffix(".gguf") + ".gguf").removesuffix(".gguf")
    found = _ENDS_WITH_QUANT.search(stem)
    name, quant = stem, ""
    if found and (head := _QUANT_HEAD.match(found[1])):  # as Ollama writes it: q4_K_M, iq4_XS, q8_0, f16
        name, quant = stem[: found.start()], head[0].lower() + found[1][head.end() :].upper()
    if _GENERIC.fullmatch(name) and repo:
        name = _FORMAT.sub("", repo.rpartition("/")[2]) or name
    size = _SIZE.search(name)
    if size is None:
        return f"{_cleaned(name).lower()}:{quant}" if quant else _cleaned(name)
    tag = [size[1].lower(), _cleaned(name[size.end() :], "").lower(), quant]
    return f"{_cleaned(name[: size.start()]).lower()}:{'-'.join(filter(None, tag))}"


def name_without_quant(name: str) -> str:
    """Return the name of a model in that of its file or repository, without the quantization and the format."""
    return _ENDS_WITH_QUANT.sub("", _FORMAT.sub("", name))


def ids_of(
    models: Iterable[tuple[Path, str]], since_ns: Callable[[Path], int], taken: Collection[str] = ()
) -> dict[Path, str]:
    """Return the id of each model, given its path and its repo, publisher/name; none of them is in `taken`. Of several
    with one id the oldest keeps it, and the others get their publisher in front: adding a model never changes another's
    id. `since_ns` is called only for those."""
    groups: dict[str, list[tuple[Path, str]]] = defaultdict(list)
    for path, repo in models:
        groups[id_of(path.name, repo).lower()].append((path, repo))
    ids: dict[Path, str] = {}
    for group in groups.values():
        used = set(taken)
        oldest_first = sorted(group, key=lambda item: (since_ns(item[0]), item[0])) if len(group) > 1 else group
        for path, repo in oldest_first:
            ids[path] = next(name for name in _possible_ids(path, repo) if name.lower() not in used)
            used.add(ids[path].lower())
    return ids


def _possible_ids(path: Path, repo: str) -> Iterator[str]:
    """Yield the id, the id with its publisher, and that with digits of a hash; no plain id has a double dash. Only
    files of one name in different folders of a repo, or with other parts, need a hash of the whole path."""
    plain = id_of(path.name, repo)
    with_publisher = f"{_cleaned(repo.partition('/')[0], _LOCAL)}/{plain}"
    digests = (
        hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest() for text in (f"{repo}/{path.name}", str(path))
    )
    tagged = (f"{with_publisher}--{digest[:n_digits]}" for digest in digests for n_digits in _TAG_DIGITS)
    return chain((plain, with_publisher), tagged)


def _cleaned(text: str, if_empty: str = "model") -> str:
    return _NOT_IN_AN_ID.sub("-", text).strip("-._") or if_empty


def model_output_path(source: ModelRef, wanted: str, models_dir: Path) -> Path:
    """Return the path for `source` under the name `wanted`: FILE, PUBLISHER/REPO or PUBLISHER/REPO/FILE. An empty name
    keeps the one it has at its source. A tag behind a colon, as Ollama's names have, becomes a part of the name, which
    is found with the colon too; `:latest` is none. Raises UsageError for an invalid name."""
    given, wanted = wanted, _TAG_COLON.sub("-", wanted.removesuffix(":latest"))
    file = _as_file_name(source.id if source.path.suffix != ".gguf" else unsplit_name(source.path.name))
    publisher, _, repo = source.repo.partition("/")
    names = [part.removesuffix(".gguf") for part in wanted.split("/")] if wanted else []
    if not names:
        names = [_as_file_name(publisher), _as_file_name(repo), file] if repo else [_LOCAL, file, file]
    elif len(names) < 3:
        names = [*names, file] if len(names) == 2 else [_LOCAL, *names, *names]
    if len(names) != 3 or not all(map(is_safe_name, names)):
        cause = f"{given!r} is not a valid name for a model."
        raise UsageError(cause, "Give NAME, PUBLISHER/REPO or PUBLISHER/REPO/NAME.")
    return models_dir / names[0] / names[1] / f"{names[2]}.gguf"


def _as_file_name(text: str) -> str:
    """Turn an untrusted name into a file name: its last part, other characters as dashes."""
    dashed = _NOT_IN_A_FILE_NAME.sub("-", text.rpartition("/")[2].removesuffix(".gguf"))
    name = dashed.strip(".-+")[:_MAX_CHARACTERS].rstrip(".")
    return name if is_safe_name(name) else "model"
