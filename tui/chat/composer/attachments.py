"""Texts attached to a question: pasted, or files found by completion or mentioned as @notes.txt.

Owns which files are offered, how much of one is read, and how the model receives it. Independent of widgets.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from app.chat.conversation import Attachment
from quantizer.errors import StorageError, UsageError

__all__ = [
    "MAX_ATTACHED_BYTES",
    "complete_path",
    "compose_prompt",
    "files_below",
    "is_long",
    "leads_outside",
    "mentioned_files",
    "mentions",
    "missing_mentions",
    "pasted",
    "path_of",
    "read_text_file",
]

_LONG_CHARACTERS = 1000
_LONG_LINES = 12
_FENCE = "```"
MAX_FILES = 20_000
MAX_ATTACHED_BYTES = 4 << 20  # a million tokens: more than any context
_NOISE = frozenset({"node_modules", "__pycache__", "venv", "target", "build", "dist", "site-packages"})
_MENTION = re.compile(r"(?<!\S)@(?:\"([^\"\n]+)\"|(\S+))")
_AFTER_A_WORD = ".,;:!?)]}'\""
_LOOKS_LIKE_A_FILE = re.compile(r"[/\\]|\w\.\w{1,8}$")


def is_long(text: str) -> bool:
    """Return whether a pasted text is long enough to become an attachment."""
    return len(text) > _LONG_CHARACTERS or text.count("\n") >= _LONG_LINES


def pasted(text: str, others: Sequence[Attachment]) -> Attachment:
    """Return a pasted text as an attachment with a name unique among `others`."""
    names = {attachment.name for attachment in others}
    number = next(number for number in range(1, len(names) + 2) if f"pasted {number}" not in names)
    return Attachment(f"pasted {number}", text)


def compose_prompt(question: str, attachments: Sequence[Attachment]) -> str:
    """Return a question as sent to the model: after its attachments, each named and fenced."""
    return "\n\n".join([*map(_fenced, attachments), question])


def _fenced(attachment: Attachment) -> str:
    """Fence a text with more backticks than it contains in a row, so that it cannot close its own fence."""
    fence = _FENCE
    while fence in attachment.content:
        fence += "`"
    return f"{attachment.name}:\n{fence}\n{attachment.content.rstrip()}\n{fence}"


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

    Raises StorageError if it cannot be read, UsageError if it is too large or not text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_ATTACHED_BYTES + 1)
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


def mentions(question: str, folder: Path) -> dict[str, Path | None]:
    """Return each name after an at sign as written, with its file; None if there is no such file.

    Names with spaces are in double quotes; ~ is the home folder.
    """
    return dict(_mentions(question, folder))


def mentioned_files(question: str, folder: Path, *, may_leave: bool) -> dict[str, Path]:
    """Return the names of `mentions` that are files, only those below `folder` unless `may_leave`."""
    return {
        name: path
        for name, path in _mentions(question, folder)
        if path is not None and (may_leave or path.resolve().is_relative_to(folder.resolve()))
    }


def missing_mentions(question: str, folder: Path) -> list[str]:
    """Return the names that look like a missing file; a word such as @property is just a word."""
    return [
        name for name, path in mentions(question, folder).items() if path is None and _LOOKS_LIKE_A_FILE.search(name)
    ]


def complete_path(typed: str, folder: Path) -> list[str]:
    """Return the files and folders (with a trailing slash) whose name begins with `typed`.

    Hidden ones only if a dot was typed; nothing from an unreadable folder.
    """
    relative, _, begun = typed.rpartition("/")
    above = f"{relative}/" if "/" in typed else ""
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


def leads_outside(typed: str) -> bool:
    """Return whether a typed name leaves the working folder: ~/, ../, / or a drive."""
    return typed.startswith(("~", "../", "/", "..\\")) or Path(typed).is_absolute()


def _mentions(question: str, folder: Path) -> Iterator[tuple[str, Path | None]]:
    for quoted, word in _MENTION.findall(question):
        names = [quoted] if quoted else [word, word.rstrip(_AFTER_A_WORD)]
        found = next((name for name in names if name and _is_file(path_of(name, folder))), None)
        name = found or names[-1]
        if name:
            yield name, path_of(name, folder) if found else None


def path_of(name: str, folder: Path) -> Path:
    """Return the path of the file `name`, relative to `folder`; ~ is the home folder."""
    try:
        return folder / Path(name).expanduser()
    except RuntimeError:  # ~user without a home folder
        return folder / name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for a name, or a character that none has
        return False
