"""Where the person types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key
from textual.message import Message
from textual.widgets import TextArea

__all__ = ["PromptInput"]


class PromptInput(TextArea):
    """A text field of one to eight rows that remembers what was sent."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("enter", "submit", "Send", id="prompt-send", tooltip="Send the question"),
        Binding(
            "ctrl+j,shift+enter",
            "newline",
            "New line",
            id="prompt-newline",
            tooltip="Start a new line (some terminals: Ctrl+J only)",
        ),
        Binding("up", "cursor_up", "Recall", id="prompt-recall", tooltip="On an empty line: an earlier question"),
    )
    BINDINGS: ClassVar[list[BindingType]] = list(KEYS)

    @dataclass
    class Submitted(Message):
        """The person sent `text`."""

        text: str

    def __init__(self) -> None:
        super().__init__(
            compact=True,
            highlight_cursor_line=False,
            placeholder="Ask something. Enter sends, Ctrl+J starts a new line.",
        )
        self.cursor_blink = False  # nothing moves on its own
        self._sent: list[str] = []
        self._n_back = 0

    async def _on_key(self, event: Key) -> None:
        """Send and start lines in the order of the keys: a priority binding would overtake letters that still wait."""
        action = {"enter": self.action_submit, "ctrl+j": self.action_newline, "shift+enter": self.action_newline}
        if event.key in action:
            event.stop()
            event.prevent_default()
            action[event.key]()

    def put(self, text: str) -> None:
        """Replace what is typed and go to its end."""
        self.text = text
        self.move_cursor(self.document.end)

    def action_submit(self) -> None:
        """Send what is typed, unless it is blank."""
        if text := self.text.strip():
            self._sent.append(text)
            self._n_back = 0
            self.text = ""
            self.post_message(self.Submitted(text))

    def action_newline(self) -> None:
        """Start a new line."""
        self.insert("\n")

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up; on an empty field, or while walking through the past, bring back an earlier question."""
        if self._is_recalling and self._n_back < len(self._sent):
            self._recall(self._n_back + 1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down; while walking through the past, go back towards the present."""
        if self._is_recalling and self._n_back:
            self._recall(self._n_back - 1)
        else:
            super().action_cursor_down(select)

    @property
    def _is_recalling(self) -> bool:
        return self.text == (self._sent[-self._n_back] if self._n_back else "")

    def _recall(self, n_back: int) -> None:
        self._n_back = n_back
        self.put(self._sent[-n_back] if n_back else "")
