"""Removal of models from the library, and of stale files: leftovers of killed runs, and the oldest saved KV caches.

Owns what may be removed: files of the models folder itself. A link is removed, its target stays; files behind a linked
folder, of other programs or at any other path are never touched. A file that a running process has locked is not stale.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.engine.load.draft_copy import FOLDER as COPIES
from app.engine.load.draft_copy import draft_copies_of, source_of
from app.engine.load.machine_file import fingerprint
from app.library.local.model_files import MAX_FOLDERS, ModelRef, is_model_file, parts_of
from app.library.local.model_sampling import generation_config_path
from app.library.local.recipe import recipe_path
from app.library.local.resolve import BUILT_IN, available
from app.protocol.library import RemovalResult
from app.settings.private_files import CONVERSATION_FOLDERS
from app.settings.settings import Settings
from quantizer.gguf.file_names import (
    head_rank,
    is_projector,
    is_sidecar,
    names_model,
    projector_owner,
    shard_index,
    shard_path,
)
from quantizer.system.errors import UsageError
from quantizer.system.files import explained, is_file, is_folder, last_use_s, sorted_glob, try_lock, writer_of
from quantizer.system.process import is_process_alive
from quantizer.system.temporary_folder import abandoned_folders
from quantizer.write.partial_output import lock_path

FETCHING = ".fetching"  # a repo's folder of incomplete downloads
_PARTIAL = re.compile(r"\.(?P<output>.+)\.(journal|lock|\d+\.partial)")
_DAY_S = 24 * 3600.0
_CHECKPOINT_IDLE_S = 7 * _DAY_S  # the same command resumes it, and fetching may have taken a night


def plan_removal(
    ref: ModelRef, models_dir: Path, leaving: Collection[Path] = (), cache_dir: Path | None = None
) -> RemovalResult:
    """Return what removing `ref` after the models `leaving` would remove: with the last of a folder its draft heads and
    projectors, always a projector that is named after it alone, and of a file without other names the low-bit copies
    that draft for it, which are in `cache_dir`. Raises UsageError for a model outside the library."""
    folder = ref.path.parent
    if ref.place:
        cause = f"{ref.id} is {ref.place}." if ref.place == BUILT_IN else f"{ref.id} belongs to {ref.place}."
        raise UsageError(cause, "Only models in the library can be removed.")
    is_below = folder.is_relative_to(models_dir) and len(folder.relative_to(models_dir).parts) <= MAX_FOLDERS
    if not is_below or folder.resolve() != models_dir.resolve() / folder.relative_to(models_dir):
        raise UsageError(f"{ref.path} is not in the library itself.", "Delete the file where it is.")
    beside = (recipe_path(ref.path), generation_config_path(ref.path))
    files = (*parts_of(ref.path), *beside, *_heads_without(ref.path, leaving))
    if cache_dir is not None and not ref.path.is_symlink() and ref.path.exists() and ref.path.stat().st_nlink == 1:
        files += tuple(draft_copies_of(ref.path, cache_dir))
    paths = tuple(path for path in files if os.path.lexists(path))
    # A link, and a file that has other names, frees nothing.
    statuses = [path.lstat() for path in paths]
    freed = [each.st_size for each in statuses if stat.S_ISREG(each.st_mode) and each.st_nlink == 1]
    return RemovalResult(ref.id, tuple(map(str, paths)), sum(freed))


def _heads_without(model: Path, leaving: Collection[Path]) -> list[Path]:
    """Return what in the folder of `model` goes with it: all draft heads and projectors if it holds no other model but
    those `leaving`, else the projectors that name it and no other."""
    if is_sidecar(model.name):
        return []
    others = [path for path in sorted(model.parent.glob("*.gguf")) if is_model_file(path.name) and path not in leaving]
    staying = [path.stem for path in others if path != model and not is_sidecar(path.name)]
    if not staying:
        return [path for path in others if head_rank(path.name) is not None or is_projector(path.name)]
    owners = {path: projector_owner(path.name) for path in others if is_projector(path.name)}
    named = [path for path, owner in owners.items() if names_model(owner, model.stem)]
    return [path for path in named if not any(names_model(owners[path], stem) for stem in staying)]


def remove(removal: RemovalResult, models_dir: Path) -> None:
    """Remove the paths, and folders below `models_dir` that become empty. Raises StorageError."""
    for path in map(Path, removal.paths):
        with explained(f"{path} cannot be removed", "Check its permissions, and that no program uses it."):
            path.unlink(missing_ok=True)
        folder = path.parent
        with contextlib.suppress(OSError):  # not empty
            while models_dir in folder.parents:
                folder.rmdir()
                folder = folder.parent


def remove_empty_folders(repo: Path) -> None:
    """Remove the folders of a repo and of its publisher if they are empty."""
    for folder in (repo, repo.parent):
        try:
            folder.rmdir()
        except OSError:  # not empty
            return


@dataclass(frozen=True, slots=True)
class StaleFiles:
    """Files or folders to delete together, `what` they are, and their bytes; `detail` identifies one of its kind. While
    a process holds `lock`, or a lock inside it if it is a folder, they are in use."""

    what: str
    paths: tuple[Path, ...]
    n_bytes: int
    lock: Path | None = None
    detail: str = ""


def find_stale_files(
    settings: Settings, max_prefix_bytes: int, is_fetched: Callable[[Path], bool]
) -> tuple[StaleFiles, ...]:
    """Return everything that is stale; of saved conversations, the least recently used beyond `max_prefix_bytes`: their
    prefixes, the embeddings of their pictures and sounds, and the texts of their files. `is_fetched` returns whether a
    file was downloaded by localllm."""
    cache = settings.cache_dir
    return (
        *_interrupted_outputs(settings.models_dir, *("*/" * n + ".*" for n in range(MAX_FOLDERS + 1))),
        *_interrupted_outputs(cache / COPIES, ".*"),
        *_copies_without_model(settings),
        *_interrupted_downloads(settings.models_dir),
        *_interrupted_checkpoints(settings.data_dir / "checkpoints", is_fetched),
        *_abandoned_models(cache / "run"),
        *_abandoned_folders(),
        *_unfinished_files(cache),
        *_old_conversations(cache, max_prefix_bytes),
    )


def delete_stale_files(stale: StaleFiles) -> bool:
    """Delete the files, and return False if a process has locked them again. Missing files are no error. Raises
    StorageError."""
    if stale.lock is not None and _is_locked(stale.lock):
        return False
    for path in stale.paths:
        with explained(f"{path} cannot be removed", "Check its permissions."):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    if stale.lock is not None:
        folder = stale.lock.parent
        if folder.name == FETCHING:
            with contextlib.suppress(OSError):  # another download uses it
                folder.rmdir()
            folder = folder.parent
        remove_empty_folders(folder)
    return True


def _copies_without_model(settings: Settings) -> Iterator[StaleFiles]:
    """Yield low-bit copies that draft for no model that is where it was copied from, or in the library, and damaged
    ones."""
    copies = sorted_glob(settings.cache_dir / COPIES, "*.gguf")
    here = {fingerprint(ref.path) for ref in available(settings) if is_file(ref.path)} if copies else set()
    for path in copies:
        key, made_from = source_of(path)
        is_there = made_from is not None and is_file(made_from) and fingerprint(made_from) == key
        if not (key and (is_there or key in here)):
            model = made_from.name if made_from else "a damaged file"
            yield StaleFiles("draft copy without model", (path,), _n_bytes(path), detail=model)


def _interrupted_outputs(folder: Path, *patterns: str) -> Iterator[StaleFiles]:
    """Yield partial outputs whose runs have ended."""
    outputs: dict[Path, list[Path]] = {}
    for path in sorted_glob(folder, *patterns):
        if match := _PARTIAL.fullmatch(path.name):
            outputs.setdefault(lock_path(path.with_name(match["output"])), []).append(path)
    yield from _unlocked("interrupted writing", outputs)


def _interrupted_downloads(models_dir: Path) -> Iterator[StaleFiles]:
    models: dict[Path, list[Path]] = {}
    for path in sorted_glob(models_dir, f"*/*/{FETCHING}/*"):
        file = path.with_name(path.name.removesuffix(".lock").removesuffix(".journal"))
        _, count = shard_index(file.name) or (0, 1)
        first = shard_path(file, 0, count)
        models.setdefault(first.with_name(f"{first.name}.lock"), []).append(path)
    yield from _unlocked("interrupted download", models)


def _unlocked(what: str, paths_by_lock: Mapping[Path, Sequence[Path]]) -> Iterator[StaleFiles]:
    for lock, paths in paths_by_lock.items():
        if not _is_locked(lock):
            yield StaleFiles(what, tuple(paths), sum(map(_n_bytes, paths)), lock)


def _interrupted_checkpoints(folder: Path, is_fetched: Callable[[Path], bool]) -> Iterator[StaleFiles]:
    """Yield the fetched files of checkpoints whose conversion was interrupted and not resumed for a week. A complete
    checkpoint was kept on purpose, and files that the user put beside it stay."""
    for fetching in sorted_glob(folder, f"*/*/{FETCHING}"):
        repo = fetching.parent
        files = [path for path in sorted(repo.rglob("*")) if not is_folder(path)]
        idle_s = time.time() - max(map(last_use_s, (fetching, *files)))
        if idle_s > _CHECKPOINT_IDLE_S and not _is_locked(fetching):
            parts = [path for path in files if fetching in path.parents]
            shards = [path for path in files if fetching not in path.parents and is_fetched(path)]
            name = repo.relative_to(folder).as_posix()
            detail = f"{name}, untouched for {idle_s / _DAY_S:.0f} days"
            n_bytes = sum(map(_n_bytes, (*parts, *shards)))
            yield StaleFiles("interrupted checkpoint", (*shards, fetching), n_bytes, fetching, detail)


def _abandoned_models(folder: Path) -> Iterator[StaleFiles]:
    """Yield temporary models of killed runs, unused for a day."""
    for path in sorted_glob(folder, "*"):
        files = [path, *path.rglob("*")]
        if max(map(last_use_s, files)) < time.time() - _DAY_S:
            yield StaleFiles("temporary model", (path,), sum(map(_n_bytes, files)))


def _abandoned_folders() -> Iterator[StaleFiles]:
    for path in abandoned_folders():
        yield StaleFiles("temporary folder", (path,), sum(map(_n_bytes, path.rglob("*"))))


def _unfinished_files(cache: Path) -> Iterator[StaleFiles]:
    """Yield files of the cache that are named after a process that has ended."""
    for path in sorted_glob(cache, ".*.tmp", *(f"{name}/*/.*.tmp" for name in CONVERSATION_FOLDERS)):
        if (writer := writer_of(path)) and not is_process_alive(writer):
            yield StaleFiles("unfinished file", (path,), _n_bytes(path))


def _old_conversations(cache: Path, max_bytes: int) -> Iterator[StaleFiles]:
    n_bytes = 0
    files = sorted_glob(cache, *(f"{name}/*/*" for name in CONVERSATION_FOLDERS))
    for path in sorted(files, key=last_use_s, reverse=True):
        n_bytes += 0 if path.suffix == ".tmp" else _n_bytes(path)
        if n_bytes > max_bytes and path.suffix != ".tmp":
            yield StaleFiles("saved conversation", (path,), _n_bytes(path))


def _is_locked(path: Path) -> bool:
    if is_folder(path):
        return any(map(_is_locked, path.rglob("*.lock")))
    if not is_file(path):
        return False
    try:
        lock = try_lock(path)
    except OSError:  # another user's file
        return True
    if lock is not None:
        lock.release()
    return lock is None


def _n_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size if not is_folder(path) else 0
    except OSError:
        return 0
