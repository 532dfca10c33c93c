"""The texts that go with the next question, as a row of names."""

from __future__ import annotations

from dataclasses import dataclass

from textual.containers import HorizontalScroll
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

from app.chat.message import Attachment
from app.terminal import printable_line

__all__ = ["AttachmentBar"]


class _Chip(Static):
    """One name, with its size; a click takes it away."""

    @dataclass
    class Removed(Message):
        """The person wants it no longer."""

        name: str

    def __init__(self, attachment: Attachment) -> None:
        super().__init__(markup=False)
        self.attachment = attachment
        self.tooltip = "Click to take it away; Backspace in an empty prompt takes away the last one"
        self.measure(None)

    def measure(self, n_tokens: int | None) -> None:
        """Say how large it is: in tokens once they are counted, in characters till then."""
        size = f"{len(self.attachment.content):,} characters" if n_tokens is None else f"{n_tokens:,} tokens"
        self.update(f"[{printable_line(self.attachment.name)} · {size} ×]")

    def on_click(self, _: Click) -> None:
        self.post_message(self.Removed(self.attachment.name))


class AttachmentBar(HorizontalScroll):
    """Holds them in order, each under a name of its own; hides when there are none."""

    can_focus = False

    @dataclass
    class Changed(Message):
        """One has come or gone."""

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self.attachments: tuple[Attachment, ...] = ()

    def add(self, attachment: Attachment) -> None:
        """Add one, in place of one with the same name."""
        self.take_away(attachment.name)
        self._become((*self.attachments, attachment))
        self.mount(_Chip(attachment))

    def take_away(self, name: str) -> None:
        """Take one away."""
        self._become(tuple(other for other in self.attachments if other.name != name))
        for chip in self.query(_Chip):
            if chip.attachment.name == name:
                chip.remove()

    def clear(self) -> None:
        """Take all away."""
        self._become(())
        self.remove_children(_Chip)

    def measure(self, name: str, n_tokens: int) -> None:
        """Say how many tokens one has."""
        for chip in self.query(_Chip):
            if chip.attachment.name == name:
                chip.measure(n_tokens)

    def on__chip_removed(self, event: _Chip.Removed) -> None:
        event.stop()
        self.take_away(event.name)

    def _become(self, attachments: tuple[Attachment, ...]) -> None:
        self.attachments = attachments
        self.display = bool(attachments)
        self.post_message(self.Changed())
