"""What completes the word at the cursor: commands, their arguments, and files.

Owns when files and arguments are listed: once per word, for they may change at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from tui.chat.composer.attachments import complete_path, files_below, leads_outside
from tui.chat.composer.completion import (
    MAX_COMPLETIONS,
    Completion,
    PartialWord,
    argument_completions,
    command_completions,
    file_completions,
)

SlashWords = Callable[[], Iterable[tuple[str, str]]]
Arguments = Callable[[str], Awaitable[Sequence[tuple[str, str]]]]


async def no_arguments(_: str) -> Sequence[tuple[str, str]]:
    """Return nothing: no command has arguments that are known."""
    return ()


class CompletionSource:
    """`words` returns the slash words with their descriptions, `arguments` what may follow one; files are below
    `folder`."""

    def __init__(self, words: SlashWords, arguments: Arguments, folder: Path) -> None:
        self._words = words
        self._arguments = arguments
        self._folder = folder
        self._arguments_of: tuple[str, Sequence[tuple[str, str]]] = ("", ())  # the slash word, and what may follow it
        self._files: Sequence[str] = ()
        self._is_naming_file = False
        self._outside_paths: tuple[str, Sequence[str]] = ("", ())  # typed text, and its completions

    async def prepare(self, word: PartialWord | None) -> None:
        """List what may complete `word`."""
        kind = word.kind if word is not None else ""
        if word is not None and kind == "file":
            await self._list_files(word.typed)
        self._is_naming_file = kind == "file"
        if word is not None and kind == "argument":
            await self._list_arguments(word.command.lower())
        else:
            self._arguments_of = ("", ())

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

    async def _list_files(self, typed: str) -> None:
        if leads_outside(typed):
            self._outside_paths = (typed, await asyncio.to_thread(complete_path, typed, self._folder))
        elif not self._is_naming_file:
            self._files = await asyncio.to_thread(files_below, self._folder)

    async def _list_arguments(self, slash: str) -> None:
        if self._arguments_of[0] != slash:
            self._arguments_of = (slash, await self._arguments(slash))
