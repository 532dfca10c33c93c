"""One of the versions of an answer that are compared: its model on top, and the way to go on with it below."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from app.chat.branches import TranscriptEntry
from app.common.terminal import printable_line
from tui.design.words import model_label

_MODEL_CELLS = 24


class ComparisonColumn(Vertical):
    """The version `number` (from 1 on), drawn by `answer`; the chat goes on with the one that `is_shown`."""

    def __init__(self, entry: TranscriptEntry, number: int, answer: Widget, *, is_shown: bool) -> None:
        super().__init__()
        self._number = number
        self._head = Static(classes="head")
        self._answer = answer
        self._choice = Static(classes="choice")
        self.show(entry, is_shown=is_shown)

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._answer
        yield self._choice

    def show(self, entry: TranscriptEntry, *, is_shown: bool) -> None:
        name = model_label(printable_line(entry.message.model), _MODEL_CELLS) or "this answer"
        state = "  writing" if entry.is_running else "  ▶ the chat goes on here" if is_shown else ""
        number, words = (f"{self._number}  ", "$text-muted"), (state, "$text-muted")
        self._head.update(Content.assemble(number, (name, "bold $text-accent"), words))
        self._choice.update(
            Content.from_markup(
                f"[@click=screen.click('keep-{self._number}')]▶ [b]{self._number}[/b] continue with this one[/]"
            )
        )
        self._choice.display = not entry.is_running and not entry.error
