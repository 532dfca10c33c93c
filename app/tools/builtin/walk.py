"""What is in a folder and below: files and folders by name, no links followed, what Git ignores left out on request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.tools.builtin.ignore import IgnoreRules
from app.tools.file_access import OpenFolder, open_folder
from quantizer.system.errors import StorageError

_IGNORE_FILE, _GIT = ".gitignore", ".git"
_MAX_IGNORE_BYTES = 256 << 10
_MAX_DEPTH = 60


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in a folder: its path from where the walk began, with slashes. `problem` says why a folder was not
    read; `n_bytes` is 0 for what is no file."""

    path: str
    kind: Literal["file", "folder", "link", "other"]
    n_bytes: int = 0
    problem: str = ""


def walk(top: Path, root: Path, *, max_depth: int = _MAX_DEPTH, has_ignored: bool = False) -> Iterator[Entry]:
    """Yield what is in `top` and below, folders before what is in them; both paths are resolved.

    The .gitignore files from `root`, a folder at or above `top`, count unless `has_ignored`. Folders .git are left out.
    """
    rules = IgnoreRules()
    if not has_ignored:
        parts = top.relative_to(root).parts
        for number in range(len(parts)):
            rules = _with_rules(rules, root.joinpath(*parts[:number]), "/".join(parts[:number]))
    prefix = "" if top == root else f"{top.relative_to(root).as_posix()}/"
    yield from _walked(top, "", prefix, rules, (max_depth, has_ignored))


def _walked(folder: Path, below: str, prefix: str, rules: IgnoreRules, options: tuple[int, bool]) -> Iterator[Entry]:
    """Yield what is in `folder`, the one `below` where the walk began; `prefix` is where that is from the root."""
    max_depth, has_ignored = options
    with open_folder(folder) as opened:
        if not has_ignored:
            rules = _with_rules_of(rules, opened, f"{prefix}{below}".rstrip("/"))
        entries = [
            entry
            for entry in map(_entry_of, opened.entries())
            if entry.path != _GIT
            and not rules.ignores(f"{prefix}{below}{entry.path}", is_folder=entry.kind == "folder")
        ]  # fmt: skip
    for entry in entries:
        path = f"{below}{entry.path}"
        if entry.kind != "folder" or max_depth <= 1:
            yield Entry(path, entry.kind, entry.n_bytes)
            continue
        inside = _walked(folder / entry.path, f"{path}/", prefix, rules, (max_depth - 1, has_ignored))
        try:
            first = next(inside, None)
        except (OSError, StorageError) as error:
            yield Entry(path, "folder", problem=getattr(error, "strerror", None) or "it cannot be read")
            continue
        yield Entry(path, "folder")
        if first is not None:
            yield first
            yield from inside


def _entry_of(entry: os.DirEntry[str]) -> Entry:
    if entry.is_symlink():
        return Entry(entry.name, "link")
    if entry.is_dir(follow_symlinks=False):
        return Entry(entry.name, "folder")
    if not entry.is_file(follow_symlinks=False):
        return Entry(entry.name, "other")
    return Entry(entry.name, "file", entry.stat(follow_symlinks=False).st_size)


def _with_rules(rules: IgnoreRules, folder: Path, path: str) -> IgnoreRules:
    with open_folder(folder) as opened:
        return _with_rules_of(rules, opened, path)


def _with_rules_of(rules: IgnoreRules, opened: OpenFolder, path: str) -> IgnoreRules:
    try:
        content = opened.read(_IGNORE_FILE, _MAX_IGNORE_BYTES).content
    except (OSError, StorageError):  # no plain file that may be read: it excludes nothing
        return rules
    return rules.with_file(path, content.decode("utf-8", "replace")) if content else rules
