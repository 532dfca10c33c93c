"""Completions of the word at the cursor: a command after a slash, a file after an at sign; and their list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.text import Text
from textual.fuzzy import FuzzySearch
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.common.terminal import printable_line

MAX_COMPLETIONS = 8
_OPEN_QUOTE = re.compile(r"(?<!\S)@\"([^\"\n]*)\Z")
_ARGUMENT = re.compile(r"/([A-Za-z]+) ([^@\n]*)")
_MOST_SCORED = 400  # scoring a file may take a millisecond


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
        """The length of the word with its sign."""
        return len(self._sign) + len(self.typed) + self.is_quoted

    def equals(self, completion: Completion) -> bool:
        """Return whether the word is typed in full."""
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
    """Return the unfinished word at the end of `before`, the text up to the cursor; None if it has no completions.

    A command is the first word of the text, its argument the rest of that line; a file is any word that begins with an
    at sign, with spaces after a quotation mark.
    """
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
    """Return the `names` (each with a note) that begin with `typed`, in their order; none if that is one already."""
    fitting = [Completion(name, note) for name, note in names if name.lower().startswith(typed.lower())]
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
    scored = {file: search.match(letters, file)[0] + _in_name(file, letters) for file in fitting[:_MOST_SCORED]}
    return [Completion(f"@{file}") for file in sorted(scored, key=lambda file: (-scored[file], file))[:MAX_COMPLETIONS]]


def _has_in_order(text: str, letters: str) -> bool:
    rest = iter(text)
    return all(letter in rest for letter in letters)


def _in_name(file: str, letters: str) -> float:
    """Return a bonus for a match in the file's name, higher at its start, less per folder level."""
    name = file.rpartition("/")[2].lower()
    return 10.0 * (letters in name) + 10.0 * name.startswith(letters) - 0.1 * file.count("/")


class CompletionList(OptionList):
    """A short list, hidden while it is empty. A click posts OptionList's own OptionSelected."""

    can_focus = False

    def __init__(self) -> None:
        super().__init__(markup=False, compact=True)
        self.display = False
        self._completions: Sequence[Completion] = ()

    def show(self, completions: Sequence[Completion]) -> None:
        """Show `completions` with the first one selected; hide if there are none."""
        if completions != self._completions:
            self._completions = completions
            self.clear_options()
            self.add_options(Option(_line(completion)) for completion in completions)
            self.highlighted = 0 if completions else None
        self.display = bool(completions)

    def move(self, n_rows: int) -> None:
        """Move the selection, wrapping around."""
        if self._completions:
            self.highlighted = ((self.highlighted or 0) + n_rows) % len(self._completions)

    @property
    def chosen(self) -> Completion | None:
        """The selected completion; None while hidden."""
        return self._completions[self.highlighted] if self.display and self.highlighted is not None else None


def _line(completion: Completion) -> Text:
    line = Text(printable_line(completion.text), style="bold")
    return line.append(f"  {printable_line(completion.note)}", style="not bold dim") if completion.note else line
