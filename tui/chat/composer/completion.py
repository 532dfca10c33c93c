"""Completions of the word at the cursor: commands after a slash, their arguments, files after an at sign; and their
list."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from rich.cells import cell_len
from rich.text import Text
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.common.terminal import printable_line
from tui.chat.composer.attachments import ServerResources, complete_path, files_below, leads_outside

MAX_COMPLETIONS = 8
_OPEN_QUOTE = re.compile(r"(?<!\S)@\"([^\"\n]*)\Z")
_ARGUMENT = re.compile(r"/([A-Za-z]+) ([^@\n]*)")
_MOST_SCORED = 2_000  # 30 µs each
_RECENT_BONUS = 4.0
_COMMON = ("new", "model", "tools", "system", "options", "attach", "retry", "help")

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
    """A completed word, a note on it, and the places of the typed letters in it."""

    text: str
    note: str = ""
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """The best completions, and how many there are in all."""

    best: tuple[Completion, ...] = ()
    n_all: int = 0

    @classmethod
    def of(cls, fitting: Sequence[Completion]) -> Offer:
        return cls(tuple(fitting[:MAX_COMPLETIONS]), len(fitting))


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


def command_completions(typed: str, words: Iterable[tuple[str, str]]) -> Offer:
    """Return the `words` (each with its description) that begin with `typed`, in their order; of all words the common
    ones first."""
    fitting = [(word, note) for word, note in words if word.startswith(typed.lower())]
    if not typed:
        fitting.sort(key=lambda pair: _COMMON.index(pair[0]) if pair[0] in _COMMON else len(_COMMON))
    places = tuple(range(1, len(typed) + 1))
    return Offer.of([Completion(f"/{word}", note, places) for word, note in fitting])


def argument_completions(typed: str, names: Iterable[tuple[str, str]]) -> Offer:
    """Return the `names` (each with a note) that begin with `typed`, then those that contain it, in their order; none
    if that is one already."""
    wanted = typed.lower()
    fitting = [Completion(name, note) for name, note in names if wanted in name.lower()]
    fitting.sort(key=lambda completion: not completion.text.lower().startswith(wanted))
    return Offer() if any(completion.text == typed for completion in fitting) else Offer.of(fitting)


def file_completions(typed: str, files: Sequence[str], recent: Sequence[str] = ()) -> Offer:
    """Return the best matches among `files`, folders with a slash at their end: those that have the typed letters in
    order, preferably together, at the beginning of a word and in the name; `recent` ones, the latest first, before
    equal ones."""
    ranks = {name: number for number, name in enumerate(recent)}
    if not typed:
        known = set(files)
        first = [name for name in ranks if name in known]
        names = (*first, *(file for file in files[: MAX_COMPLETIONS + len(first)] if file not in ranks))
        return Offer(tuple(Completion(f"@{file}") for file in names[:MAX_COMPLETIONS]), len(files))
    letters = typed.lower()
    # A folder that is typed already completes nothing: what is in it is meant.
    whole = [file for file in files if letters in file.lower() and not (file == typed and file.endswith("/"))]
    others = [file for file in files if letters not in file.lower() and _has_in_order(file.lower(), letters)]
    # Scoring takes longer than finding: of many the nearest are scored, and names before paths.
    whole.sort(key=lambda file: letters not in _name(file).lower())
    found = []
    for file in [*whole, *others][:_MOST_SCORED]:
        places = match_places(letters, file)
        bonus = _RECENT_BONUS if file in ranks else 0.0
        found.append((-_score(file, places, letters) - bonus, file, places))
    found.sort()
    best = [Completion(f"@{file}", places=tuple(place + 1 for place in places)) for _, file, places in found]
    return Offer(tuple(best[:MAX_COMPLETIONS]), len(whole) + len(others))


def match_places(letters: str, path: str) -> tuple[int, ...]:
    """Return where `letters`, all of which are in `path` in order, are best seen: together in the name, together
    elsewhere, or each at the beginning of a word where the rest still follows."""
    lower = path.lower()
    start = lower.rfind(letters, len(path) - len(_name(path)))
    if start < 0:
        start = lower.rfind(letters)
    if start >= 0:
        return tuple(range(start, start + len(letters)))
    places: list[int] = []
    after = 0
    for number, letter in enumerate(letters):
        rest, place = letters[number + 1 :], lower.find(letter, after)
        if not (places and place == places[-1] + 1):  # else it continues a run
            begin = next((at for at in _begins(path, after) if lower[at] == letter), -1)
            if begin >= 0 and _has_in_order(lower[begin + 1 :], rest):
                place = begin
        places.append(place)
        after = place + 1
    return tuple(places)


def _begins(path: str, start: int) -> Iterator[int]:
    """Yield the places where a word of the path begins: after a sign, or a capital after a small letter."""
    for at in range(start, len(path)):
        before = path[at - 1] if at else "/"
        if path[at].isalnum() and (not before.isalnum() or (path[at].isupper() and before.islower())):
            yield at


def _score(path: str, places: Sequence[int], letters: str) -> float:
    name = _name(path).lower()
    in_name = 10.0 * (letters in name) + 10.0 * name.startswith(letters) + 5.0 * (name.rstrip("/") == letters)
    in_name += 3.0 * (name.rpartition(".")[0] == letters)
    n_runs = sum(1 for before, place in pairwise((-2, *places)) if place != before + 1)
    n_begun = len(set(places) & set(_begins(path, 0)))
    return in_name + 2.0 * n_begun - 2.0 * n_runs - 0.1 * path.count("/") - 0.01 * len(path)


def _name(path: str) -> str:
    """Return the last part of a path, that of a folder with its slash."""
    return path[path.rstrip("/").rfind("/") + 1 :]


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
        self._offer = Offer()

    def show(self, offer: Offer) -> None:
        """Show the completions with their notes in a column and the typed letters in bold; then of how many they are
        the best."""
        if offer != self._offer:
            self._offer, self._completions = offer, offer.best
            self.clear_options()
            texts = [printable_line(completion.text) for completion in offer.best]
            width = max((cell_len(text) for text in texts), default=0)
            for text, completion in zip(texts, offer.best, strict=True):
                line = Text(text, no_wrap=True, overflow="ellipsis")
                if len(text) == len(completion.text):  # nothing of it was left out
                    for place in completion.places:
                        line.stylize("bold underline", place, place + 1)
                if completion.note:
                    gap = " " * (width - cell_len(text) + 2)
                    line.append(f"{gap}{printable_line(completion.note)}", style="dim")
                self.add_option(Option(line))
            if offer.n_all > len(offer.best):
                self.add_option(Option(Text(f"{len(offer.best)} of {offer.n_all:,}", style="dim"), disabled=True))
            self.highlighted = 0 if offer.best else None
        self.display = bool(offer.best)

    def move(self, n_rows: int) -> None:
        if self._completions:
            self.highlighted = ((self.highlighted or 0) + n_rows) % len(self._completions)

    @property
    def chosen(self) -> Completion | None:
        return self._completions[self.highlighted] if self.display and self.highlighted is not None else None


class CompletionSource:
    """`words` returns the slash words with their descriptions, `arguments` what may follow one; files are below
    `folder`, and beside them are the `resources` of MCP servers. Files and arguments are listed once per word, for they
    may change at any time."""

    def __init__(
        self, words: SlashWords, arguments: Arguments, folder: Path, resources: ServerResources | None = None
    ) -> None:
        self._resources = resources
        self._words = words
        self._arguments = arguments
        self._folder = folder
        self._arguments_of: tuple[str, Sequence[tuple[str, str]]] = ("", ())  # the slash word, and what may follow it
        self._files: Sequence[str] = ()
        self._recent: list[str] = []  # files that were attached, the latest first
        self._found: tuple[str, Offer] = ("", Offer())  # what was typed of a file's name, and its completions
        self._is_naming_file = False
        self._outside_paths: tuple[str, Sequence[str]] = ("", ())  # typed text, and its completions

    async def prepare(self, word: PartialWord | None) -> None:
        is_file = word is not None and word.kind == "file"
        if word is not None and is_file:
            if leads_outside(word.typed):
                self._outside_paths = (word.typed, await asyncio.to_thread(complete_path, word.typed, self._folder))
            else:
                if not self._is_naming_file:
                    files = await asyncio.to_thread(files_below, self._folder, has_folders=True)
                    self._files = [*files, *(await self._resources.names() if self._resources is not None else ())]
                offer = await asyncio.to_thread(file_completions, word.typed, self._files, tuple(self._recent))
                self._found = (word.typed, offer)
        self._is_naming_file = is_file
        slash = word.command.lower() if word is not None and word.kind == "argument" else ""
        if slash != self._arguments_of[0] or not self._arguments_of[1]:  # the service may answer by now
            self._arguments_of = (slash, await self._arguments(slash) if slash else ())

    def note_attached(self, name: str) -> None:
        self._recent = [name, *(other for other in self._recent if other != name)][:MAX_COMPLETIONS]

    def completions(self, word: PartialWord) -> Offer:
        """Return the completions of a word that was prepared, or of one that is longer by now."""
        if word.kind == "command":
            offer = command_completions(word.typed, self._words())
            is_whole = f"/{word.typed}" in (completion.text for completion in offer.best)
            return Offer() if is_whole else offer  # Enter runs /model and does not complete it to /models
        if word.kind == "argument":
            slash, arguments = self._arguments_of
            return argument_completions(word.typed, arguments) if slash == word.command.lower() else Offer()
        if leads_outside(word.typed):
            typed, names = self._outside_paths
            return Offer.of([Completion(f"@{name}") for name in names]) if typed == word.typed else Offer()
        typed, offer = self._found
        return offer if typed == word.typed else file_completions(word.typed, self._files, self._recent)
