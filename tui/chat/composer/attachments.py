"""What can be attached to a question: long pastes, and the files that completion offers. Independent of widgets.

`app.chat.attachments` reads files, and owns how a model receives them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from app.chat.conversation import Attachment

_LONG_CHARACTERS = 1000
_LONG_LINES = 12
MAX_FILES = 20_000
_NOISE = frozenset({"node_modules", "__pycache__", "venv", "target", "build", "dist", "site-packages"})


def is_long(text: str) -> bool:
    """Return whether a pasted text is long enough to become an attachment."""
    return len(text) > _LONG_CHARACTERS or text.count("\n") >= _LONG_LINES


def pasted(text: str, others: Sequence[Attachment]) -> Attachment:
    """Return a pasted text as an attachment with a name unique among `others`."""
    return Attachment(unused_name("pasted", others), text)


def unused_name(word: str, others: Sequence[Attachment]) -> str:
    """Return `word` with the first number that makes it a name of none of `others`."""
    names = {attachment.name for attachment in others}
    return next(name for number in range(1, len(names) + 2) if (name := f"{word} {number}") not in names)


def files_below(folder: Path) -> list[str]:
    """Return the paths of files below `folder`, relative and with slashes, the nearest first; at most 20,000.

    Skips hidden files, generated folders, links and unreadable entries.
    """
    return list(islice(_walk(folder), MAX_FILES))


def _walk(folder: Path) -> Iterator[str]:
    waiting = deque([""])
    while waiting:
        relative = waiting.popleft()
        try:
            with os.scandir(folder / relative) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _NOISE:
                    waiting.append(f"{relative}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                yield f"{relative}{entry.name}"


def complete_path(typed: str, folder: Path) -> list[str]:
    """Return the regular files and the folders (with a trailing slash) whose name begins with `typed`.

    Hidden ones only if a dot was typed; nothing from an unreadable folder.
    """
    relative, _, begun = typed.rpartition("/")
    above = f"{relative}/" if "/" in typed else ""
    try:
        with os.scandir(path_of(above, folder)) as found:
            entries = [(entry.name, entry.is_dir()) for entry in found if entry.is_dir() or entry.is_file()]
    except OSError:
        return []
    return sorted(
        f"{above}{name}{'/' if is_folder else ''}"
        for name, is_folder in entries
        if name.startswith(begun) and (begun.startswith(".") or not name.startswith("."))
    )


def leads_outside(typed: str) -> bool:
    """Return whether a typed name leaves the working folder: ~/, ../, / or a drive."""
    return typed.startswith(("~", "../", "/", "..\\")) or Path(typed).is_absolute()


def path_of(name: str, folder: Path) -> Path:
    """Return the path of the file `name`, relative to `folder`; ~ is the home folder."""
    try:
        return folder / Path(name).expanduser()
    except RuntimeError:  # ~user without a home folder
        return folder / name
