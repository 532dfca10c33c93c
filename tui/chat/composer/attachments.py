"""Texts attached to a question: pasted, or files found by completion.

Owns which files are offered, and how much of one is read. Independent of widgets.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from app.chat.conversation import Attachment
from quantizer.errors import StorageError, UsageError

__all__ = [
    "MAX_ATTACHED_BYTES",
    "complete_path",
    "files_below",
    "is_long",
    "leads_outside",
    "pasted",
    "path_of",
    "read_text_file",
]

_LONG_CHARACTERS = 1000
_LONG_LINES = 12
MAX_FILES = 20_000
MAX_ATTACHED_BYTES = 4 << 20  # a million tokens: more than any context
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_NOISE = frozenset({"node_modules", "__pycache__", "venv", "target", "build", "dist", "site-packages"})


def is_long(text: str) -> bool:
    """Return whether a pasted text is long enough to become an attachment."""
    return len(text) > _LONG_CHARACTERS or text.count("\n") >= _LONG_LINES


def pasted(text: str, others: Sequence[Attachment]) -> Attachment:
    """Return a pasted text as an attachment with a name unique among `others`."""
    names = {attachment.name for attachment in others}
    number = next(number for number in range(1, len(names) + 2) if f"pasted {number}" not in names)
    return Attachment(f"pasted {number}", text)


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


def read_text_file(path: Path, name: str) -> Attachment:
    """Return the file at `path` as an attachment called `name`.

    Never waits for a pipe or a device. Raises StorageError if it cannot be read, UsageError if it is no regular file,
    too large or not text.
    """
    try:
        _check_regular(path.stat().st_mode, name)
        with open(path, "rb", opener=_open_without_waiting) as file:
            _check_regular(os.fstat(file.fileno()).st_mode, name)  # it may have changed since
            data = file.read(MAX_ATTACHED_BYTES + 1) or b""
    except OSError as error:
        raise StorageError(
            f"{name} cannot be read: {error.strerror}.", "Check its name and its permissions."
        ) from error
    if len(data) > MAX_ATTACHED_BYTES:
        raise UsageError(f"{name} is larger than {MAX_ATTACHED_BYTES >> 20} MiB.", "Attach a smaller part of it.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{name} is not UTF-8 text.", "Only text files can be attached.")
    return Attachment(name, text)


def _check_regular(mode: int, name: str) -> None:
    if not stat.S_ISREG(mode):
        kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "no regular file")
        raise UsageError(f"{name} is {kind}.", "Only text files can be attached.")


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


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
