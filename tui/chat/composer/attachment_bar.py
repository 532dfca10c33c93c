"""The attachments of the next question: a bar of chips above the prompt."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from textual.containers import HorizontalScroll
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

from app.chat.conversation import Attachment
from app.common.terminal import printable_line
from tui.chat.composer.context_forecast import TokenCount

_REMOVES = " ×]"
_SEPARATOR = " · "


def chip_text(attachment: Attachment, count: TokenCount | None, *, is_alone: bool) -> str:
    """Return what a chip shows: the name, how much it is and, once counted, its tokens and their share of the context.

    Only an attachment that `is_alone` has room for all of it.
    """
    size = "" if attachment.media else f"{len(attachment.content):,} characters"
    if count is not None:
        share = f", {_share(count)}{' of the context' if is_alone else ''}" if count.n_ctx else ""
        size = f"{'≈' if count.is_estimated else ''}{count.n_tokens:,} tokens{share}"
    detail = attachment.detail if is_alone or not size else ""
    return _SEPARATOR.join(printable_line(part) for part in (attachment.name, detail, size) if part)


def _share(count: TokenCount) -> str:
    share = count.n_tokens / count.n_ctx
    return "<1 %" if share < 0.01 else f"{100 * share:.0f} %"


class AttachmentChip(Static):
    """One attachment's name, size and share of the context; a click opens it, a click on its cross removes it."""

    @dataclass
    class Opened(Message):
        """The user wants to see the attachment."""

        name: str

    @dataclass
    class Removed(Message):
        """The user removed the attachment."""

        name: str

    def __init__(self, attachment: Attachment) -> None:
        super().__init__(markup=False)
        self.attachment = attachment
        self.tooltip = "Click or Ctrl+L opens it. Its × removes it, or Backspace in an empty prompt the last one."
        self._count: TokenCount | None = None
        self._is_alone = True
        self._draw()

    def show(self, attachment: Attachment) -> None:
        """Show the attachment as it is now."""
        self.attachment, self._count = attachment, None
        self._draw()

    def measure(self, count: TokenCount) -> None:
        """Show the size in tokens."""
        self._count = count
        self._draw()

    def leave_room(self, *, is_alone: bool) -> None:
        """Show all words, or leave room for other chips."""
        if is_alone != self._is_alone:
            self._is_alone = is_alone
            self._draw()

    def on_click(self, event: Click) -> None:
        is_cross = event.x >= self.size.width - len(_REMOVES)
        self.post_message((self.Removed if is_cross else self.Opened)(self.attachment.name))

    def _draw(self) -> None:
        self.set_class(self._count is not None and self._count.is_too_large, "-warning")
        text = f"[{chip_text(self.attachment, self._count, is_alone=self._is_alone)}{_REMOVES}"
        self.update(text)
        self.styles.width = cell_len(text)  # Textual 8.2.8 keeps an automatic one that it saw before the first idle


class _PendingChip(Static):
    """A file that is being read."""

    def __init__(self, name: str) -> None:
        super().__init__(f"[{printable_line(name)}{_SEPARATOR}reading…]", markup=False)
        self.file_name = name


class AttachmentBar(HorizontalScroll):
    """The attachments of the next question, by unique name; hidden if there are none."""

    can_focus = False

    @dataclass
    class Changed(Message):
        """An attachment was added, changed or removed."""

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self.attachments: tuple[Attachment, ...] = ()
        self._n_pending = 0

    def begin(self, name: str) -> None:
        """Show that a file is being read, until `end`."""
        self._n_pending += 1
        self.display = True
        self.mount(_PendingChip(name))

    def end(self, name: str) -> None:
        """Show the file no longer: it is read, or it cannot be."""
        self._n_pending -= 1
        self.display = bool(self.attachments or self._n_pending)
        for chip in [chip for chip in self.query(_PendingChip) if chip.file_name == name][:1]:
            chip.remove()

    def add(self, attachment: Attachment) -> None:
        """Add an attachment, replacing one with the same name."""
        self.remove_attachment(attachment.name)
        self._set_attachments((*self.attachments, attachment))
        chip = AttachmentChip(attachment)
        chip.leave_room(is_alone=len(self.attachments) == 1)
        self.mount(chip)

    def replace(self, attachment: Attachment, name: str = "") -> None:
        """Replace the attachment called `name`, by default the one with the same name, in its place."""
        replaced = name or attachment.name
        self._set_attachments(tuple(attachment if each.name == replaced else each for each in self.attachments))
        for chip in self._chips(replaced):
            chip.show(attachment)

    def remove_attachment(self, name: str) -> None:
        """Remove an attachment."""
        self._set_attachments(tuple(other for other in self.attachments if other.name != name))
        for chip in self._chips(name):
            chip.remove()

    def clear(self) -> None:
        """Remove all attachments."""
        self._set_attachments(())
        self.remove_children(AttachmentChip)

    def measure(self, name: str, count: TokenCount) -> None:
        """Show the token count of an attachment."""
        for chip in self._chips(name):
            chip.measure(count)

    def _chips(self, name: str) -> list[AttachmentChip]:
        return [chip for chip in self.query(AttachmentChip) if chip.attachment.name == name]

    def _set_attachments(self, attachments: tuple[Attachment, ...]) -> None:
        self.attachments = attachments
        self.display = bool(attachments or self._n_pending)
        for chip in self.query(AttachmentChip):
            chip.leave_room(is_alone=len(attachments) == 1)
        self.post_message(self.Changed())
