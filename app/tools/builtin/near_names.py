"""What a path may have meant at which nothing is: the names that are most like it, or what is in its folder.

A small model that is told only that there is no such file tries the next name it makes up. Reads names alone, follows
no link and no pattern of a .gitignore, and stops after some thousand entries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from heapq import nlargest
from itertools import islice
from pathlib import Path

from app.tools.builtin.folders import Folders
from app.tools.builtin.walk import Entry, walk
from quantizer.system.errors import StorageError

_MAX_DEPTH, _MAX_ENTRIES = 4, 3_000
_MAX_COMPARED_CHARACTERS = 200
_MOST_COMPARED = 50
_LEAST_RATIO = 0.6
_MOST_MEANT, _MOST_LISTED = 3, 10
_SEPARATORS = re.compile(r"[\s/\\_.-]+")


def what_is_there(folders: Folders, path: Path, *, is_folder: bool = False) -> str:
    """Return a sentence about a path that `folders` found and at which no file is, or with `is_folder` no folder."""
    root = folders.root_of(path)
    kind = "folder" if is_folder else "file"
    found = _entries(root, root, _MAX_DEPTH)
    alike = most_alike(path.relative_to(root).as_posix(), [each.path for each in found if each.kind == kind])
    if alike:
        return f"It may be {' or '.join(folders.shown(root / each) for each in alike)}."
    above = path.parent if path != root else root
    while above != root and not above.is_dir():
        above = above.parent
    listed = _entries(above, root, 1)
    names = [folders.shown(above / each.path) + ("/" if each.kind == "folder" else "") for each in listed]
    where = "The folder" if above == root else f"The folder {folders.shown(above)}"
    if not names:
        return f"{where} is empty."
    more = f", and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"{where} has: {', '.join(names[:_MOST_LISTED])}{more}."


def most_alike(wanted: str, paths: Sequence[str]) -> list[str]:
    """Return up to 3 of `paths` that are most like `wanted`, best first: by the name, or by all of the path; from 0 to
    1, and case and separators make no difference."""
    matchers = [SequenceMatcher(None, b=form) for form in _forms(wanted)]  # which keep what they found out about it

    def likeness(path: str, rate: Callable[[SequenceMatcher[str]], float]) -> float:
        for matcher, form in zip(matchers, _forms(path), strict=True):
            matcher.set_seq1(form)
        return max(map(rate, matchers))

    # Where letters stand takes a millisecond for two long names: first those with the most letters in common.
    likely = nlargest(_MOST_COMPARED, paths, key=lambda path: likeness(path, SequenceMatcher.quick_ratio))
    rated = sorted((-likeness(path, SequenceMatcher.ratio), path) for path in likely)
    return [path for rating, path in rated[:_MOST_MEANT] if -rating >= _LEAST_RATIO]


def _forms(path: str) -> list[str]:
    """Return the name and all of a path as they are compared."""
    return [
        _SEPARATORS.sub(" ", text[-_MAX_COMPARED_CHARACTERS:].casefold()) for text in (path.rpartition("/")[2], path)
    ]


def _entries(top: Path, root: Path, max_depth: int) -> list[Entry]:
    try:
        return list(islice(walk(top, root, max_depth=max_depth, has_ignored=True), _MAX_ENTRIES))
    except (OSError, StorageError):  # it went away, or cannot be read: then there is nothing to offer
        return []
