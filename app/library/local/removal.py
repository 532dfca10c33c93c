"""Removal of models from the library.

Owns what may be removed: files of the models folder itself. A link is removed, its target stays; files behind a linked
folder, of other programs or at any other path are never touched.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from app.library.local.model_files import ModelRef, parts_of
from app.library.local.recipe import recipe_path
from app.library.local.resolve import BUILT_IN
from app.protocol.library import RemovalResult
from quantizer.errors import UsageError
from quantizer.files import explained

__all__ = ["plan_removal", "remove", "remove_empty_folders"]


def plan_removal(ref: ModelRef, models_dir: Path) -> RemovalResult:
    """Return what removing `ref` would remove. Raises UsageError for a model outside the library."""
    repo = ref.path.parent
    if ref.place:
        cause = f"{ref.id} is {ref.place}." if ref.place == BUILT_IN else f"{ref.id} belongs to {ref.place}."
        raise UsageError(cause, "Only models in the library can be removed.")
    if repo.parent.parent != models_dir or repo.resolve() != models_dir.resolve() / repo.parent.name / repo.name:
        raise UsageError(f"{ref.path} is not in the library itself.", "Delete the file where it is.")
    paths = tuple(path for path in (*parts_of(ref.path), recipe_path(ref.path)) if os.path.lexists(path))
    return RemovalResult(ref.id, tuple(map(str, paths)), sum(map(_n_bytes_freed, paths)))


def remove(removal: RemovalResult) -> None:
    """Remove the paths, and folders that become empty. Raises StorageError."""
    for path in map(Path, removal.paths):
        with explained(f"{path} cannot be removed", "Check its permissions, and that no program uses it."):
            path.unlink(missing_ok=True)
        remove_empty_folders(path.parent)


def remove_empty_folders(repo: Path) -> None:
    """Remove the folders of a repo and of its publisher if they are empty."""
    for folder in (repo, repo.parent):
        try:
            folder.rmdir()
        except OSError:  # not empty
            return


def _n_bytes_freed(path: Path) -> int:
    """Return the bytes that removing this name frees: none for a link or a file with other names."""
    status = path.lstat()
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0
