"""Files that a question mentions by words such as @notes.txt, where there is nothing but the text to attach them by.

Owns what such a word means, and what an unfinished one may become. Looks into folders and reads no file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["files_mentioned", "finished", "mentions", "missing_mentions", "path_of", "reaches_out"]

_MENTION = re.compile(r"(?<!\S)@(?:\"([^\"\n]+)\"|(\S+))")
_AFTER_A_WORD = ".,;:!?)]}'\""
_LOOKS_LIKE_A_FILE = re.compile(r"[/\\]|\w\.\w{1,8}$")


def mentions(question: str, folder: Path) -> dict[str, Path | None]:
    """Return each name after an at sign as it was written, with its file; None for one that names no file here.

    A name with spaces stands in double quotes; one that begins with ~ is below the home folder.
    """
    return dict(_mentions(question, folder))


def files_mentioned(question: str, folder: Path, *, may_leave: bool) -> dict[str, Path]:
    """Return the names of `mentions` that are files; unless it `may_leave`, those below `folder` alone."""
    return {
        name: path
        for name, path in _mentions(question, folder)
        if path is not None and (may_leave or path.resolve().is_relative_to(folder.resolve()))
    }


def missing_mentions(question: str, folder: Path) -> list[str]:
    """Return the names that look like a file's and are none; a word such as @property is just a word."""
    return [
        name for name, path in mentions(question, folder).items() if path is None and _LOOKS_LIKE_A_FILE.search(name)
    ]


def finished(typed: str, folder: Path) -> list[str]:
    """Return what a name may become of which `typed` was written: files and folders, these with a slash at the end.

    Hidden ones are among them only where a dot was typed. What cannot be looked into has nothing.
    """
    place, _, begun = typed.rpartition("/")
    above = f"{place}/" if "/" in typed else ""
    try:
        with os.scandir(path_of(above, folder)) as found:
            entries = [(entry.name, entry.is_dir()) for entry in found]
    except OSError:
        return []
    return sorted(
        f"{above}{name}{'/' if is_folder else ''}"
        for name, is_folder in entries
        if name.startswith(begun) and (begun.startswith(".") or not name.startswith("."))
    )


def reaches_out(typed: str) -> bool:
    """Whether what was typed of a name leads away from the working folder: ~/, ../, / or a drive."""
    return typed.startswith(("~", "../", "/", "..\\")) or Path(typed).is_absolute()


def _mentions(question: str, folder: Path) -> Iterator[tuple[str, Path | None]]:
    for quoted, word in _MENTION.findall(question):
        names = [quoted] if quoted else [word, word.rstrip(_AFTER_A_WORD)]
        found = next((name for name in names if name and _is_file(path_of(name, folder))), None)
        name = found or names[-1]
        if name:
            yield name, path_of(name, folder) if found else None


def path_of(name: str, folder: Path) -> Path:
    """Return where the file is that is called `name`, seen from `folder`; ~ is the home folder."""
    try:
        return folder / Path(name).expanduser()
    except RuntimeError:  # ~somebody who is not here
        return folder / name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for a name, or a character that none has
        return False
