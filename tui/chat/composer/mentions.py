"""Mentions of files in a question, such as @notes.txt: which files they name, and reading those.

Owns the syntax of a mention, and when a question is held back: the full screen and the inline chat share it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.chat.attachments.parsing import ALL_PAGES, PageChoice, split_page_choice
from app.chat.conversation import Attachment
from quantizer.system.errors import UsageError, UserError
from tui.chat.composer.attachments import AttachmentReader, path_of

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

    def __init__(self, folder: Path, reader: AttachmentReader) -> None:
        self._folder = folder
        self._reader = reader
        self._held_back = ""

    async def find(self, question: str, attached: Collection[str] = (), *, is_typed: bool = True) -> Mentioned:
        """Read the files that a question mentions, except those `attached` already.

        A name that looks like a file and is none is a fault; a word such as @somebody is just a word. In a text that
        was possibly pasted, not `is_typed`, a missing file is a word too, and a file outside the folder is a fault.
        """
        if not has_mention(question):
            return Mentioned()
        attachments: dict[str, Attachment] = {}
        faults: dict[str, str] = {}
        resolve = partial(_resolved, self._folder)
        for mention in await asyncio.to_thread(lambda: [*map(resolve, _candidates(question))]):
            if mention.name in attachments or any(name in attached for name in mention.names):
                continue
            if fault := mention.fault(is_typed=is_typed):
                faults[mention.name] = fault
            elif mention.path is not None and not mention.is_folder:
                try:
                    read = self._reader.read_file(mention.path, mention.name, mention.pages)
                    attachments[mention.name] = await read
                except UserError as error:
                    faults[mention.name] = error.cause
        return Mentioned(tuple(attachments.values()), tuple(faults.values()))

    async def read(
        self, question: str, attached: Collection[str] = (), *, is_typed: bool = True
    ) -> tuple[Attachment, ...]:
        """Return the mentioned files; see `find`. Raises UsageError for a question that is held back."""
        found = await self.find(question, attached, is_typed=is_typed)
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
    def replaced(found: re.Match[str]) -> str:
        quoted, word = found.groups()
        names = _names(quoted or "", word or "")
        return (word or "").removeprefix(name) if name in names else found[0]

    return _MENTION.sub(replaced, question)


@dataclass(frozen=True, slots=True)
class _Mention:
    """One mention: the names that it may mean, the one that it means, and its file or folder; None if there is none."""

    names: tuple[str, ...]
    name: str
    path: Path | None
    pages: PageChoice = ALL_PAGES
    is_folder: bool = False
    is_outside: bool = False

    def fault(self, *, is_typed: bool) -> str:
        """Return why nothing can be read; empty for a word that is no file."""
        if self.path is None or self.is_folder:
            if not (is_typed and _LOOKS_LIKE_A_FILE.search(self.name)):
                return ""
            return f"{self.name} is a folder: mention one of its files." if self.path else f"No such file: {self.name}."
        return f"{self.name} is outside this folder." if self.is_outside and not is_typed else ""


def _candidates(question: str) -> Iterator[tuple[str, ...]]:
    """Yield for each mention its names, the likeliest first."""
    return filter(None, (_names(quoted, word) for quoted, word in _MENTION.findall(question)))


def _names(quoted: str, word: str) -> tuple[str, ...]:
    names = (quoted,) if quoted else (word, word.rstrip(_AFTER_A_WORD))
    return tuple(filter(None, dict.fromkeys(names)))


def _resolved(folder: Path, names: tuple[str, ...]) -> _Mention:
    """Return the mention of the first of the names that exists, or of the last one; it may choose pages."""
    for name in names:
        readings = [(name, ALL_PAGES)]
        with suppress(UsageError):  # pages that run backwards: then it is the name of no file
            readings.append(split_page_choice(name))
        for file_name, pages in readings:
            path, is_there = path_of(file_name, folder), False
            with suppress(OSError, ValueError):  # too long for a name, or a character that none has
                is_there = path.exists()
            if is_there:
                is_outside = not path.resolve().is_relative_to(folder.resolve())
                return _Mention(names, name, path, pages, path.is_dir(), is_outside)
    return _Mention(names, names[-1], None)
