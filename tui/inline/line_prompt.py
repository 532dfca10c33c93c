"""What is typed while an answer runs is not shown in the middle of it: it waits for the next prompt.

Owns that one switch of the terminal. Takes nothing from its input.

Whether a line came alone or at the head of a pasted text, where the line editor cannot tell.

Owns a look at the terminal's input. Takes nothing from it.

Where a person types in the scrollback: a line that can be edited, several lines, and what was asked before.

Owns what the terminal's line editor is told. Windows has an editor of its own, which needs nothing of it.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType

from app.cli.prompts import multiline
from app.terminal import printable
from tui.chat.composer.attachments import finished

__all__ = ["CONTINUATION", "PROMPT", "LinePrompt", "breaks_lines", "has_pending_input", "without_echo"]


@contextmanager
def without_echo() -> Iterator[None]:
    """Show nothing of what is typed for as long as this lasts; Ctrl-C does what it does. Nothing where stdin is no
    terminal, and on Windows, whose editor shows what it reads itself."""
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
        with suppress(termios.error):  # the terminal may be gone by now
            termios.tcsetattr(descriptor, termios.TCSANOW, usual)


_GAP_S = 0.02  # a terminal hands over a paste in pieces that come closer than this; fingers are slower


def has_pending_input() -> bool:
    """Return whether text follows the line that was read, so soon that it was pasted with it.

    A terminal in its usual mode tells of whole lines only: for a moment it is asked of every character.
    """
    if sys.platform == "win32":
        return False
    import termios

    usual = termios.tcgetattr(0)
    watching = [*usual]
    watching[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(0, termios.TCSANOW, watching)
    try:
        return bool(select.select([0], [], [], _GAP_S)[0])
    finally:
        termios.tcsetattr(0, termios.TCSANOW, usual)


PROMPT = ">>> "
CONTINUATION = "... "

_COMPLETES_GNU = "tab: complete"
_COMPLETES_EDITLINE = "bind ^I rl_complete"  # macOS' editor, and that of Python as uv installs it
_BREAKS_LINES = '"\\e\\C-m": "\\C-v\\C-j"'  # GNU's alone: Alt+Enter is a line break to the letter
_MARKS_PASTES = "set enable-bracketed-paste on"  # GNU's alone: a paste is one text then


def breaks_lines() -> bool:
    """Whether Alt+Enter begins another line in this terminal."""
    editor = _line_editor()
    return editor is not None and _is_gnu(editor) and os.environ.get("TERM") != "dumb"


class LinePrompt:
    """Reads questions; `words` are completed after a slash, files below the working folder after an at sign."""

    def __init__(self, words: Iterable[str]) -> None:
        self._offers = tuple(f"/{word} " for word in words)
        self._editor = _line_editor()
        self._must_join = False
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a paste may be no UTF-8: better a mark than the end
        if self._editor is not None:
            self._set_up(self._editor)

    def remember(self, questions: Sequence[str]) -> None:
        """Let `questions` be recalled, the latest last."""
        if self._editor is not None:
            for question in questions:
                self._editor.add_history(printable(question))

    def read(self, begun: str = "") -> str:
        """Return what a person enters, without anything that a terminal would obey; `begun` is there to be edited.

        Three quotes begin a text of several lines and end it. Raises EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C.
        """
        first = self._pasted_or_typed(begun)
        text = printable(multiline(first, lambda: input(CONTINUATION)))
        if text.strip():
            self.remember([text])
        return text

    def _set_up(self, editor: ModuleType) -> None:
        is_gnu = _is_gnu(editor)
        editor.parse_and_bind(_COMPLETES_GNU if is_gnu else _COMPLETES_EDITLINE)
        editor.set_auto_history(False)  # a text of several lines is one entry
        editor.set_completer_delims(" \t\n")
        editor.set_completer(self._complete)
        marks_pastes = is_gnu and os.environ.get("TERM") != "dumb"
        if marks_pastes:
            editor.parse_and_bind(_MARKS_PASTES)
            editor.parse_and_bind(_BREAKS_LINES)
        self._must_join = not marks_pastes and sys.stdout.isatty()

    def _pasted_or_typed(self, begun: str) -> str:
        lines = [self._line(begun)]
        while self._must_join and has_pending_input():
            lines.append(input(CONTINUATION))
        return "\n".join(lines)

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
        is_first_word = self._editor is not None and self._editor.get_begidx() == 0
        if begun.startswith("@"):
            fitting = [_offered(name) for name in finished(begun[1:], Path.cwd())]
        else:
            fitting = [offer for offer in self._offers if begun and is_first_word and offer.startswith(begun)]
        return fitting[index] if index < len(fitting) else None


def _offered(name: str) -> str:
    """Return what stands at the prompt for a file, whose word is done, or for a folder, whose is not."""
    if any(space in name for space in " \t\n"):
        return f'@"{printable(name)}'
    return f"@{printable(name)}" if name.endswith("/") else f"@{printable(name)} "


def _is_gnu(editor: ModuleType) -> bool:
    return "libedit" not in (editor.__doc__ or "")


def _line_editor() -> ModuleType | None:
    try:
        import readline
    except ImportError:
        return None
    return readline
