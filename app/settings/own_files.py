"""All that localllm keeps in its folders, by kind and with its size, and its removal.

Owns which names count. A folder that holds files of others too is left alone, for `models` or `jobs` in it may be
theirs; links are removed and never followed, so that models of other programs stay.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.settings.private_files import foreign_name, is_own_name
from app.settings.settings import Settings, settings_file
from quantizer.system.files import explained, is_folder, sorted_glob

# beside the settings file, whatever that is called
_SETTINGS = ("config.toml", "mcp.json", "mcp.lock", "mcp-logins", "trusted.json", "trusted.lock")
_KINDS = {"models": "models", "checkpoints": "checkpoints to convert"}  # by the name in the data folder
MODELS = frozenset(_KINDS.values())


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """Files and folders of one kind, `what` they are, and the bytes that removing them frees."""

    what: str
    folder: Path
    paths: tuple[Path, ...]
    n_bytes: int


def find_own_files(settings: Settings) -> tuple[tuple[OwnFiles, ...], tuple[str, ...]]:
    """Return all that localllm keeps, by kind, and a sentence about each folder that it shares with other files."""
    found: dict[tuple[str, Path], list[Path]] = {}
    shared = []
    for what, folder in (("chats, keys and jobs", settings.data_dir), ("caches and logs", settings.cache_dir)):
        if not is_folder(folder):
            continue
        if foreign := foreign_name(folder):
            shared.append(f"{folder} holds other files too, such as {foreign}. Remove what is localllm's by hand.")
            continue
        for path in sorted_glob(folder, "*"):
            if is_own_name(path.name):
                kind = _KINDS.get(path.name, what) if folder == settings.data_dir else what
                found.setdefault((kind, folder), []).append(path)
    config = settings_file().absolute()
    for path in dict.fromkeys((config, *(config.parent / name for name in _SETTINGS[1:]))):
        if os.path.lexists(path) and not any(path in paths for paths in found.values()):
            found.setdefault(("settings", config.parent), []).append(path)
    return tuple(
        OwnFiles(what, folder, tuple(dict.fromkeys(paths)), sum(map(_freed_bytes, paths)))
        for (what, folder), paths in found.items()
    ), tuple(shared)


def remove_own_files(files: OwnFiles) -> None:
    """Remove the files, and their folder once it is empty. Raises StorageError."""
    for path in files.paths:
        with explained(f"{path} cannot be removed", "Check its rights, and that no program uses it."):
            if is_folder(path) and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    with os.scandir(files.folder) as left:
        is_empty = not any(left)
    if is_empty and not files.folder.is_symlink():
        with explained(f"{files.folder} cannot be removed", "Check the rights of the folder above it."):
            files.folder.rmdir()


def _freed_bytes(path: Path) -> int:
    """Return the bytes of files that have no other name; a link frees none."""
    return sum(status.st_size for status in _statuses(path) if status.st_nlink == 1 and stat.S_ISREG(status.st_mode))


def _statuses(path: Path) -> Iterator[os.stat_result]:
    if not is_folder(path) or path.is_symlink():
        yield path.lstat()
        return
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                yield Path(folder, name).lstat()
            except FileNotFoundError:  # it was removed meanwhile
                continue
