"""Completions of the word at the cursor: commands after a slash, their arguments, files after an at sign; and their
list."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.text import Text
from textual.fuzzy import FuzzySearch
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.common.terminal import printable_line
from tui.chat.composer.attachments import complete_path, files_below, leads_outside

MAX_COMPLETIONS = 8
_OPEN_QUOTE = re.compile(r"(?<!\S)@\"([^\"\n]*)\Z")
_ARGUMENT = re.compile(r"/([A-Za-z]+) ([^@\n]*)")
_MOST_SCORED = 400  # scoring a file may take a millisecond

SlashWords = Callable[[], Iterable[tuple[str, str]]]
Arguments = Callable[[str], Awaitable[Sequence[tuple[str, str]]]]


@dataclass(frozen=True, slots=True)
class PartialWord:
    """An unfinished word: `typed` follows its sign, and a quotation mark if it `is_quoted`; an argument follows its
    `command`."""

    kind: Literal["command", "argument", "file"]
    typed: str
    is_quoted: bool = False
    command: str = ""

    @property
    def n_characters(self) -> int:
        return len(self._sign) + len(self.typed) + self.is_quoted

    def equals(self, completion: Completion) -> bool:
        return completion.text.removeprefix(self._sign) == self.typed

    @property
    def _sign(self) -> str:
        return {"command": "/", "argument": "", "file": "@"}[self.kind]


@dataclass(frozen=True, slots=True)
class Completion:
    """A completed word, and a note on it."""

    text: str
    note: str = ""


def partial_word(before: str) -> PartialWord | None:
    """Return the unfinished word at the end of `before`, the text up to the cursor; None if it has no completions. A
    command is the first word of the text, its argument the rest of that line; a file is any word that begins with an at
    sign, with spaces after a quotation mark."""
    if quoted := _OPEN_QUOTE.search(before):
        return PartialWord("file", quoted[1], is_quoted=True)
    if argument := _ARGUMENT.fullmatch(before):
        return PartialWord("argument", argument[2], command=argument[1])
    start = max(before.rfind(space) for space in " \n\t") + 1
    word = before[start:]
    if word.startswith("/") and start == 0 and "/" not in word[1:]:
        return PartialWord("command", word[1:])
    if word.startswith("@"):
        return PartialWord("file", word[1:])
    return None


def command_completions(typed: str, words: Iterable[tuple[str, str]]) -> list[Completion]:
    """Return the `words` (each with its description) that begin with `typed`, in their order."""
    return [Completion(f"/{word}", note) for word, note in words if word.startswith(typed.lower())][:MAX_COMPLETIONS]


def argument_completions(typed: str, names: Iterable[tuple[str, str]]) -> list[Completion]:
    """Return the `names` (each with a note) that begin with `typed`, then those that contain it, in their order; none
    if that is one already."""
    wanted = typed.lower()
    fitting = [Completion(name, note) for name, note in names if wanted in name.lower()]
    fitting.sort(key=lambda completion: not completion.text.lower().startswith(wanted))
    return [] if any(completion.text == typed for completion in fitting) else fitting[:MAX_COMPLETIONS]


def file_completions(typed: str, files: Sequence[str]) -> list[Completion]:
    """Return the best matches among `files`: the typed letters in order, preferably contiguous and in the name."""
    if not typed:
        return [Completion(f"@{file}") for file in files[:MAX_COMPLETIONS]]
    letters = typed.lower()
    fitting = [file for file in files if letters in file.lower()]
    if len(fitting) < MAX_COMPLETIONS:
        fitting += [file for file in files if letters not in file.lower() and _has_in_order(file.lower(), letters)]
    search = FuzzySearch()
    scored = {}
    for file in fitting[:_MOST_SCORED]:
        # A match in the file's name counts more, most at its start, and less per folder level.
        name = file.rpartition("/")[2].lower()
        bonus = 10.0 * (letters in name) + 10.0 * name.startswith(letters) - 0.1 * file.count("/")
        scored[file] = search.match(letters, file)[0] + bonus
    return [Completion(f"@{file}") for file in sorted(scored, key=lambda file: (-scored[file], file))[:MAX_COMPLETIONS]]


def _has_in_order(text: str, letters: str) -> bool:
    rest = iter(text)  # a pattern such as a.*b.*c takes polynomial time on a name without a match
    return all(letter in rest for letter in letters)


class CompletionList(OptionList):
    """A short list, hidden while it is empty. A click posts OptionList's own OptionSelected."""

    can_focus = False

    def __init__(self) -> None:
        super().__init__(markup=False, compact=True)
        self.display = False
        self._completions: Sequence[Completion] = ()

    def show(self, completions: Sequence[Completion]) -> None:
        if completions != self._completions:
            self._completions = completions
            self.clear_options()
            for completion in completions:
                line = Text(printable_line(completion.text), style="bold")
                if completion.note:
                    line.append(f"  {printable_line(completion.note)}", style="not bold dim")
                self.add_option(Option(line))
            self.highlighted = 0 if completions else None
        self.display = bool(completions)

    def move(self, n_rows: int) -> None:
        if self._completions:
            self.highlighted = ((self.highlighted or 0) + n_rows) % len(self._completions)

    @property
    def chosen(self) -> Completion | None:
        return self._completions[self.highlighted] if self.display and self.highlighted is not None else None


class CompletionSource:
    """`words` returns the slash words with their descriptions, `arguments` what may follow one; files are below
    `folder`. Files and arguments are listed once per word, for they may change at any time."""

    def __init__(self, words: SlashWords, arguments: Arguments, folder: Path) -> None:
        self._words = words
        self._arguments = arguments
        self._folder = folder
        self._arguments_of: tuple[str, Sequence[tuple[str, str]]] = ("", ())  # the slash word, and what may follow it
        self._files: Sequence[str] = ()
        self._is_naming_file = False
        self._outside_paths: tuple[str, Sequence[str]] = ("", ())  # typed text, and its completions

    async def prepare(self, word: PartialWord | None) -> None:
        is_file = word is not None and word.kind == "file"
        if word is not None and is_file:
            if leads_outside(word.typed):
                self._outside_paths = (word.typed, await asyncio.to_thread(complete_path, word.typed, self._folder))
            elif not self._is_naming_file:
                self._files = await asyncio.to_thread(files_below, self._folder)
        self._is_naming_file = is_file
        slash = word.command.lower() if word is not None and word.kind == "argument" else ""
        if slash != self._arguments_of[0] or not self._arguments_of[1]:  # the service may answer by now
            self._arguments_of = (slash, await self._arguments(slash) if slash else ())

    def completions(self, word: PartialWord) -> list[Completion]:
        """Return the completions of a word that was prepared, or of one that is longer by now."""
        if word.kind == "command":
            completions = command_completions(word.typed, self._words())
            is_whole = f"/{word.typed}" in (completion.text for completion in completions)
            return [] if is_whole else completions  # Enter runs /model and does not complete it to /models
        if word.kind == "argument":
            slash, arguments = self._arguments_of
            return argument_completions(word.typed, arguments) if slash == word.command.lower() else []
        if leads_outside(word.typed):
            typed, names = self._outside_paths
            return [Completion(f"@{name}") for name in names[:MAX_COMPLETIONS]] if typed == word.typed else []
        return file_completions(word.typed, self._files)
