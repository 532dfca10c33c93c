"""What is in a folder and below: files and folders by name, no links followed, .gitignore honoured on request.

The patterns follow gitignore(5). A hostile pattern may take long to match: this runs in a process that can be killed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
    """Yield what is in `top` and below, folders before what is in them; both paths are resolved. The .gitignore files
    from `root`, a folder at or above `top`, count unless `has_ignored`. Folders .git are left out."""
    rules = IgnoreRules()
    if not has_ignored:
        parts = top.relative_to(root).parts
        for number in range(len(parts)):
            with open_folder(root.joinpath(*parts[:number])) as opened:
                rules = _with_rules_of(rules, opened, "/".join(parts[:number]))
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


def _with_rules_of(rules: IgnoreRules, opened: OpenFolder, path: str) -> IgnoreRules:
    try:
        content = opened.read(_IGNORE_FILE, _MAX_IGNORE_BYTES).content
    except (OSError, StorageError):  # no plain file that may be read: it excludes nothing
        return rules
    return rules.with_file(path, content.decode("utf-8", "replace")) if content else rules


_MAX_LINES, _MAX_CHARACTERS = 2_000, 500  # of one file


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern for paths below `folder`, the path of its .gitignore's folder with a final slash, "" for the first."""

    folder: str
    pattern: re.Pattern[str]
    is_negated: bool
    is_for_folders: bool


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules that hold in a folder: those of the folders above first. Paths have slashes and begin where the first
    rules were read."""

    rules: tuple[_Rule, ...] = ()

    def with_file(self, folder: str, text: str) -> IgnoreRules:
        """Return the rules below `folder` ("" for the first), whose .gitignore has `text`."""
        return IgnoreRules((*self.rules, *_rules(f"{folder}/" if folder else "", text)))

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Return whether the last rule that matches `path` excludes it."""
        for rule in reversed(self.rules):
            is_meant = (is_folder or not rule.is_for_folders) and path.startswith(rule.folder)
            if is_meant and rule.pattern.fullmatch(path[len(rule.folder) :]):
                return not rule.is_negated
        return False


def matches_glob(pattern: str, path: str) -> bool:
    """Return whether `path` has the form of `pattern`: of its name, or with a slash within of the whole."""
    return _compiled(pattern.removeprefix("/"), is_whole="/" in pattern.rstrip("/")).fullmatch(path) is not None


def _rules(folder: str, text: str) -> Iterator[_Rule]:
    for line in text.splitlines()[:_MAX_LINES]:
        line = re.sub(r"(?<!\\) +$", "", line)
        if not line or line.startswith("#") or len(line) > _MAX_CHARACTERS:
            continue
        is_negated = line.startswith("!")
        pattern = line.removeprefix("!")
        is_for_folders = pattern.endswith("/")
        pattern = pattern.removesuffix("/")  # one alone: "a//" matches nothing
        if pattern:
            compiled = _compiled(pattern.removeprefix("/"), is_whole="/" in pattern)
            yield _Rule(folder, compiled, is_negated, is_for_folders)


def _compiled(pattern: str, *, is_whole: bool) -> re.Pattern[str]:
    expression = "".join(_translated(pattern))
    return re.compile(expression if is_whole else f"(?:.*/)?{expression}", re.DOTALL)


def _translated(pattern: str) -> Iterator[str]:
    place = 0
    while place < len(pattern):
        rest = pattern[place:]
        if rest.startswith("**/") and (place == 0 or pattern[place - 1] == "/"):
            yield "(?:.*/)?"
            place += 3
        elif rest == "**" and (place == 0 or pattern[place - 1] == "/"):
            yield ".+"
            place += 2
        elif rest[0] == "*":
            yield "[^/]*"
            place += len(rest) - len(rest.lstrip("*"))
        elif rest[0] == "?":
            yield "[^/]"
            place += 1
        elif rest[0] == "[" and (found := _class(rest)) is not None:
            yield found[0]
            place += found[1]
        elif rest[0] == "\\" and len(rest) > 1:
            yield re.escape(rest[1])
            place += 2
        else:
            yield re.escape(rest[0])
            place += 1


def _class(text: str) -> tuple[str, int] | None:
    """Return the expression of the class that `text` begins with and its length, None for one that does not end."""
    end = text.find("]", 3 if text[1:2] in ("!", "^") else 2)
    if end < 0:
        return None
    members = text[1:end]
    negation = "^" if members[0] in "!^" else ""
    inner = members[1:] if negation else members
    escaped = re.sub(r"([\[\]\\^&~|])", r"\\\1", inner)
    try:
        re.compile(f"[{negation}{escaped}]")
    except re.error:  # such as a range that goes backwards
        return None
    return f"(?!/)[{negation}{escaped}]", end + 1
