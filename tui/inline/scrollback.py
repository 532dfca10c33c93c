"""Input and output of a chat in the scrollback: a prompt that edits and completes lines, and each text printed once.

Owns the configuration of readline (Windows has a line editor of its own), the terminal's echo, stdout, which receives
answers, and stderr, which receives the rest.
"""

from __future__ import annotations

import os
import select
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType

import click

from app.chat.conversation import Message
from app.cli.output.answer import AnswerPrinter, BusyLine, dimmed
from app.cli.output.word_wrap import whole_words
from app.cli.prompts import multiline
from app.common.terminal import printable, printable_paste
from tui.chat.composer.attachments import complete_path

_PASTE_GAP_S = 0.02  # the pieces of a paste arrive faster than this, keys slower
PROMPT = ">>> "
CONTINUATION = "... "
_COMPLETES_GNU = "tab: complete"
_COMPLETES_EDITLINE = "bind ^I rl_complete"  # macOS' editor, also of uv's Python
_BREAKS_LINES = '"\\e\\C-m": "\\C-v\\C-j"'  # GNU only: Alt+Enter inserts a line break
_MARKS_PASTES = "set enable-bracketed-paste on"  # GNU only: a paste is one text


@contextmanager
def without_echo() -> Iterator[None]:
    """Turn the terminal's echo off for the block: text typed during an answer waits for the next prompt. Ctrl-C still
    works. Does nothing without a terminal, and on Windows."""
    if sys.platform == "win32" or sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    usual = termios.tcgetattr(descriptor)
    silent = [*usual]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, silent)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may have closed
            termios.tcsetattr(descriptor, termios.TCSANOW, usual)


def has_pending_input() -> bool:
    """Return whether more input follows so soon that it was pasted. A terminal in canonical mode reports whole lines
    only: it is switched for a moment."""
    if sys.platform == "win32":
        return False
    import termios

    usual = termios.tcgetattr(0)
    watching = [*usual]
    watching[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(0, termios.TCSANOW, watching)
    try:
        return bool(select.select([0], [], [], _PASTE_GAP_S)[0])
    finally:
        termios.tcsetattr(0, termios.TCSANOW, usual)


def breaks_lines() -> bool:
    editor = _line_editor()
    return editor is not None and _is_gnu(editor) and os.environ.get("TERM") != "dumb"


class LinePrompt:
    """Reads questions; completes `words` after a slash, their `arguments`, and files below the working folder after an
    at sign."""

    def __init__(self, words: Iterable[str], arguments: Callable[[str], Sequence[str]] = lambda _: ()) -> None:
        self._arguments = arguments
        self._slash_completions = tuple(f"/{word} " for word in words)
        self._editor = _line_editor()
        self._must_join = False
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a paste may be invalid UTF-8: show a replacement character
        if (editor := self._editor) is None:
            return
        editor.parse_and_bind(_COMPLETES_GNU if _is_gnu(editor) else _COMPLETES_EDITLINE)
        editor.set_auto_history(False)  # a text of several lines is one entry
        editor.set_completer_delims(" \t\n")
        editor.set_completer(self._complete)
        marks_pastes = breaks_lines()
        if marks_pastes:
            editor.parse_and_bind(_MARKS_PASTES)
            editor.parse_and_bind(_BREAKS_LINES)
        self._must_join = not marks_pastes and sys.stdout.isatty()

    def remember(self, questions: Sequence[str]) -> None:
        if self._editor is not None:
            for question in questions:
                self._editor.add_history(printable(question))

    def read(self, begun: str = "") -> str:
        """Return the printable text entered; `begun` is its initial text. Three quotes start and end a text of several
        lines. Raises EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C."""
        lines = [self._line(begun)]
        while self._must_join and has_pending_input():
            lines.append(input(CONTINUATION))
        text = printable_paste(multiline("\n".join(lines), lambda: input(CONTINUATION)))
        if text.strip():
            self.remember([text])
        return text

    def _line(self, begun: str) -> str:
        editor = self._editor
        if editor is None or not begun:
            return input(PROMPT)
        editor.set_startup_hook(lambda: editor.insert_text(printable(begun)))
        try:
            return input(PROMPT)
        finally:
            editor.set_startup_hook(None)

    def _complete(self, begun: str, index: int) -> str | None:
        fitting: list[str] = []
        if begun.startswith("@"):
            for name in complete_path(begun[1:], Path.cwd()):
                quote = '"' if any(space in name for space in " \t\n") else ""
                end = "" if quote or name.endswith("/") else " "  # a folder goes on
                fitting.append(f"@{quote}{printable(name)}{end}")
        elif self._editor is not None and self._editor.get_begidx() == 0:
            fitting = [completion for completion in self._slash_completions if begun and completion.startswith(begun)]
        elif self._editor is not None:
            slash, _, typed = self._editor.get_line_buffer().partition(" ")
            if slash.startswith("/") and typed.endswith(begun):
                before = typed.removesuffix(begun)  # names of arguments may have spaces: only the rest is completed
                names = (name for name in self._arguments(slash[1:].lower()) if name.startswith(typed))
                fitting = [printable(name.removeprefix(before)) for name in names]
        return fitting[index] if index < len(fitting) else None


def _is_gnu(editor: ModuleType) -> bool:
    return "libedit" not in (editor.__doc__ or "")


def _line_editor() -> ModuleType | None:
    try:
        import readline
    except ImportError:
        return None
    return readline


class Scrollback(AnswerPrinter):
    """Prints the chat, and what its commands show of it. Nothing is drawn twice: this is the chat for screen readers
    and slow connections too."""

    def __init__(self) -> None:
        super().__init__(BusyLine(is_overwritten=False))

    def recall(self, branch: Sequence[Message]) -> None:
        question_indexes = [index for index, message in enumerate(branch) if message.role == "user"]
        for message in branch[question_indexes[-1] :] if question_indexes else ():
            text = printable(message.content)
            is_question = message.role == "user"
            shown = dimmed(PROMPT + text.replace("\n", f"\n{CONTINUATION}")) if is_question else text
            click.echo(shown if is_question else whole_words(shown, sys.stdout), err=is_question)
            for attachment in message.attachments:
                self.print_line(f"Attached {attachment.label}.")

    def unfold(self, reasoning: str) -> None:
        click.echo(dimmed(printable(reasoning)), err=True)

    def copy(self, text: str) -> bool:
        """Copy `text` to the clipboard through the terminal (OSC 52); return False without one."""
        if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            return False
        click.echo(f"\x1b]52;c;{b64encode(text.encode()).decode()}\x07", nl=False)
        return True
