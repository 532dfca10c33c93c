"""Texts that go with a question: pasted, or from a file.

Pure. Owns from when on a paste is better attached, and how the model is told of an attachment.

The files below a folder that a person may mean, and what one of them says.

Owns what is passed over and how much is read. Knows nothing of prompts.

Files that a question mentions by words such as @notes.txt, where there is nothing but the text to attach them by.

Owns what such a word means, and what an unfinished one may become. Looks into folders and reads no file.
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
    "files_below",
    "finished",
    "is_long",
    "leads_outside",
    "mentioned_files",
    "mentions",
    "missing_mentions",
    "pasted",
    "path_of",
    "read_text_file",
    "told",
]

_LONG_CHARACTERS = 1000
_LONG_LINES = 12
_FENCE = "```"


def is_long(text: str) -> bool:
    """Whether a pasted text would fill the prompt."""
    return len(text) > _LONG_CHARACTERS or text.count("\n") >= _LONG_LINES


def pasted(text: str, others: Sequence[Attachment]) -> Attachment:
    """Return a pasted text as an attachment whose name none of the `others` has."""
    names = {attachment.name for attachment in others}
    number = next(number for number in range(1, len(names) + 2) if f"pasted {number}" not in names)
    return Attachment(f"pasted {number}", text)


def told(question: str, attachments: Sequence[Attachment]) -> str:
    """Return a question as the model reads it: behind the texts, each fenced and named. What comes last is heeded."""
    return "\n\n".join([*map(_fenced, attachments), question])


def _fenced(attachment: Attachment) -> str:
    """Fence a text with more backticks than it has in a row anywhere, so that it cannot end its own fence."""
    fence = _FENCE
    while fence in attachment.content:
        fence += "`"
    return f"{attachment.name}:\n{fence}\n{attachment.content.rstrip()}\n{fence}"


MAX_FILES = 20_000
MAX_ATTACHED_BYTES = 4 << 20  # a million tokens: no context here holds as many
_NOISE = frozenset({"node_modules", "__pycache__", "venv", "target", "build", "dist", "site-packages"})


def files_below(folder: Path) -> list[str]:
    """Return the paths of files below `folder`, relative to it with slashes, the nearest first; 20,000 at most.

    Hidden ones, and folders that hold what programs made, are passed over; links are not followed. What cannot be read
    is not there.
    """
    return list(islice(_walk(folder), MAX_FILES))


def _walk(folder: Path) -> Iterator[str]:
    waiting = deque([""])
    while waiting:
        place = waiting.popleft()
        try:
            with os.scandir(folder / place) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _NOISE:
                    waiting.append(f"{place}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                yield f"{place}{entry.name}"


def read_text_file(path: Path, name: str) -> Attachment:
    """Return what the file at `path` says, to go with a question as `name`.

    Raises StorageError for one that cannot be read, UsageError for one that is too large or no text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_ATTACHED_BYTES + 1)
    except OSError as error:
        raise StorageError(
            f"{name} cannot be read: {error.strerror}.", "Check its name and its permissions."
        ) from error
    if len(data) > MAX_ATTACHED_BYTES:
        raise UsageError(f"{name} is larger than {MAX_ATTACHED_BYTES >> 20} MiB.", "Attach a part of it.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{name} is no text in UTF-8.", "A picture or a program says nothing to this model.")
    return Attachment(name, text)


_MENTION = re.compile(r"(?<!\S)@(?:\"([^\"\n]+)\"|(\S+))")
_AFTER_A_WORD = ".,;:!?)]}'\""
_LOOKS_LIKE_A_FILE = re.compile(r"[/\\]|\w\.\w{1,8}$")


def mentions(question: str, folder: Path) -> dict[str, Path | None]:
    """Return each name after an at sign as it was written, with its file; None for one that names no file here.

    A name with spaces stands in double quotes; one that begins with ~ is below the home folder.
    """
    return dict(_mentions(question, folder))


def mentioned_files(question: str, folder: Path, *, may_leave: bool) -> dict[str, Path]:
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


def leads_outside(typed: str) -> bool:
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
