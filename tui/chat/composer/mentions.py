"""Mentions of files in a question, such as @notes.txt: which files they name, and reading those.

Owns the syntax of a mention, and when a question is held back: the full screen and the inline chat share it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.chat.conversation import Attachment
from quantizer.errors import UsageError, UserError
from tui.chat.composer.attachments import path_of, read_text_file

__all__ = ["MentionReader", "Mentioned", "has_mention", "mention_of", "names_in", "read_mentions", "without_mention"]

_MENTION = re.compile(r"(?<!\S)@(?:\"([^\"\n]+)\"|(\S+))")
_AFTER_A_WORD = ".,;:!?)]}'\""
_LOOKS_LIKE_A_FILE = re.compile(r"[/\\]|\w\.\w{1,8}$")
_HELD_BACK = "Enter again sends it as text."  # short: a notice is one line


@dataclass(frozen=True, slots=True)
class Mentioned:
    """The files that a question mentions, and a sentence for each that cannot be attached."""

    attachments: tuple[Attachment, ...] = ()
    faults: tuple[str, ...] = ()


class MentionReader:
    """Reads the files, relative to `folder`, that questions mention. Holds a question with a fault back once: sent
    again unchanged, it goes without that file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held_back = ""

    async def read(
        self, question: str, attached: Collection[str] = (), *, is_typed: bool = True
    ) -> tuple[Attachment, ...]:
        """Return the mentioned files; see `read_mentions`. Raises UsageError for a question that is held back."""
        if not has_mention(question):
            return ()
        found = await asyncio.to_thread(read_mentions, question, self._folder, attached, is_typed=is_typed)
        must_hold_back = bool(found.faults) and question != self._held_back
        self._held_back = question if must_hold_back else ""
        if must_hold_back:
            raise UsageError(" ".join(found.faults), _HELD_BACK)
        return found.attachments


def has_mention(question: str) -> bool:
    """Return whether a word of the question begins with an at sign."""
    return _MENTION.search(question) is not None


def mention_of(name: str, *, is_finished: bool = True) -> str:
    """Return the mention of a file, in quotes if its name has spaces; of a folder it is not finished."""
    if not any(space in name for space in " \t"):
        return f"@{name} " if is_finished else f"@{name}"
    return f'@"{name}" ' if is_finished else f'@"{name}'


def names_in(question: str) -> set[str]:
    """Return all names that the question may mention: with and without the punctuation after a word."""
    return {name for names in _candidates(question) for name in names}


def without_mention(question: str, name: str) -> str:
    """Return the question without the mentions of `name`."""

    def replaced(found: re.Match[str]) -> str:
        quoted, word = found.groups()
        names = _names(quoted or "", word or "")
        return (word or "").removeprefix(name) if name in names else found[0]

    return _MENTION.sub(replaced, question)


def read_mentions(question: str, folder: Path, attached: Collection[str] = (), *, is_typed: bool = True) -> Mentioned:
    """Read the files that a question mentions, relative to `folder`, except those `attached` already.

    A name that looks like a file and is none is a fault; a word such as @somebody is just a word. In a text that was
    possibly pasted, not `is_typed`, a missing file is a word too, and a file outside the folder is a fault.
    """
    attachments: dict[str, Attachment] = {}
    faults: dict[str, str] = {}
    for names in _candidates(question):
        name, path = _resolved(names, folder)
        if name in attachments or any(name in attached for name in names):
            continue
        if path is None:
            if is_typed and _LOOKS_LIKE_A_FILE.search(name):
                faults[name] = f"No such file: {name}."
        elif path.is_dir():
            if is_typed and _LOOKS_LIKE_A_FILE.search(name):
                faults[name] = f"{name} is a folder: mention one of its files."
        elif not is_typed and not path.resolve().is_relative_to(folder.resolve()):
            faults[name] = f"{name} is outside this folder."
        else:
            try:
                attachments[name] = read_text_file(path, name)
            except UserError as error:
                faults[name] = error.cause
    return Mentioned(tuple(attachments.values()), tuple(faults.values()))


def _candidates(question: str) -> Iterator[list[str]]:
    """Yield for each mention its names, the likeliest first."""
    for quoted, word in _MENTION.findall(question):
        if names := _names(quoted, word):
            yield names


def _names(quoted: str, word: str) -> list[str]:
    names = [quoted] if quoted else [word, word.rstrip(_AFTER_A_WORD)]
    return [name for name in dict.fromkeys(names) if name]


def _resolved(names: list[str], folder: Path) -> tuple[str, Path | None]:
    """Return the first of the names that exists, with its path; the last one and None if none does."""
    for name in names:
        path = path_of(name, folder)
        if _exists(path):
            return name, path
    return names[-1], None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, or a character that none has
        return False
