"""The output of a chat in the scrollback: each text is printed once.

Owns stdout, which receives answers, and stderr, which receives the rest.
"""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace

import click

from app.chat.conversation import Message
from app.cli.output.answer import AnswerPrinter, BusyLine, dimmed
from app.terminal import printable
from tui.chat.answer_stream import StreamChunk, format_reasoning
from tui.chat.conversation import TranscriptEntry
from tui.inline.line_prompt import CONTINUATION, PROMPT

__all__ = ["Scrollback"]


class Scrollback:
    """Implements `tui.chat.session.ChatView`; reasoning is dimmed or, if `collapses_reasoning`, one line.
    `has_begun` is true once the present answer has text."""

    def __init__(self) -> None:
        self.busy = BusyLine()
        self.has_begun = False
        self.collapses_reasoning = False
        self._printer = AnswerPrinter()
        self._must_end_line = False
        self._has_collapsed = False  # reasoning that was not mentioned yet

    def begin(self) -> None:
        """Reset for an answer."""
        self._printer = AnswerPrinter()
        self.has_begun = self._must_end_line = self._has_collapsed = False

    async def show(self, entries: Sequence[TranscriptEntry]) -> None:
        """Do nothing: printed text stays."""

    async def write(self, message: Message, chunk: StreamChunk) -> None:
        """Print a chunk."""
        if self.collapses_reasoning:
            chunk = self._without_reasoning(chunk, message)
        shown = chunk.text or chunk.reasoning
        if shown:
            self.busy.clear()
            self.has_begun = True
            self._printer(chunk)
            self._must_end_line = not shown.endswith("\n")

    def end(self, note: str = "") -> None:
        """Print how the answer ended, and end its line."""
        self.busy.clear()
        if note:
            click.echo(f"{' ' if self._must_end_line else ''}[{note}]", nl=False, err=True)
        if note or self._must_end_line:
            click.echo()
        self._must_end_line = False

    def print_line(self, text: str) -> None:
        """Print text that is not part of an answer."""
        self.busy.clear()
        click.echo(printable(text), err=True)

    def recall(self, branch: Sequence[Message]) -> None:
        """Print the last question and its answer."""
        question_indexes = [index for index, message in enumerate(branch) if message.role == "user"]
        for message in branch[question_indexes[-1] :] if question_indexes else ():
            text = printable(message.content)
            is_question = message.role == "user"
            click.echo(
                dimmed(PROMPT + text.replace("\n", f"\n{CONTINUATION}")) if is_question else text, err=is_question
            )

    def unfold(self, reasoning: str) -> None:
        """Print the reasoning of an answer."""
        click.echo(dimmed(printable(reasoning)), err=True)

    def copy(self, text: str) -> bool:
        """Copy `text` to the clipboard through the terminal (OSC 52); return False without one."""
        if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            return False
        click.echo(f"\x1b]52;c;{b64encode(text.encode()).decode()}\x07", nl=False)
        return True

    def _without_reasoning(self, chunk: StreamChunk, message: Message) -> StreamChunk:
        """Replace reasoning by one line when the text begins."""
        self._has_collapsed = self._has_collapsed or bool(chunk.reasoning)
        if self._has_collapsed and chunk.text:
            self._has_collapsed = False
            self.busy.clear()
            click.echo(dimmed(f"▸ {format_reasoning(message, is_running=False)}"), err=True)
        return replace(chunk, reasoning="")
