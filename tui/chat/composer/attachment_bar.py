"""The attachments of the next question: a bar of chips above the prompt, and the screen that opens one.

Owns what the keys in an open attachment do; `tui.chat.composer.composer` carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import HorizontalScroll, Vertical
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static, TextArea

from app.chat.conversation import Attachment
from app.terminal import printable, printable_line
from quantizer.errors import UserError

__all__ = ["MAX_EDITED_CHARACTERS", "AttachmentBar", "AttachmentChip", "AttachmentOutcome", "AttachmentScreen"]

MAX_EDITED_CHARACTERS = 300_000  # a quarter of a second to lay out
_MAX_INSERTED_CHARACTERS = 50_000
_REMOVES = " ×]"
_HELP = "Ctrl+S saves · Ctrl+L puts it into the prompt · Ctrl+O opens your editor · Ctrl+R removes it · Esc closes"
_DISCARDS = "The text was changed: Ctrl+S saves it, Esc once more discards the changes."


class AttachmentChip(Static):
    """One attachment's name and size; a click opens it, a click on its cross removes it."""

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
        self.measure(None)

    def measure(self, n_tokens: int | None) -> None:
        """Show the size: in tokens once counted, until then in characters."""
        size = f"{len(self.attachment.content):,} characters" if n_tokens is None else f"{n_tokens:,} tokens"
        self.update(f"[{printable_line(self.attachment.name)} · {size}{_REMOVES}")

    def on_click(self, event: Click) -> None:
        is_cross = event.x >= self.size.width - len(_REMOVES)
        self.post_message((self.Removed if is_cross else self.Opened)(self.attachment.name))


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

    def add(self, attachment: Attachment) -> None:
        """Add an attachment, replacing one with the same name."""
        self.remove_attachment(attachment.name)
        self._set_attachments((*self.attachments, attachment))
        self.mount(AttachmentChip(attachment))

    def replace(self, attachment: Attachment) -> None:
        """Replace the attachment with the same name, in its place."""
        self._set_attachments(tuple(attachment if each.name == attachment.name else each for each in self.attachments))
        for chip in self._chips(attachment.name):
            chip.attachment = attachment
            chip.measure(None)

    def remove_attachment(self, name: str) -> None:
        """Remove an attachment."""
        self._set_attachments(tuple(other for other in self.attachments if other.name != name))
        for chip in self._chips(name):
            chip.remove()

    def clear(self) -> None:
        """Remove all attachments."""
        self._set_attachments(())
        self.remove_children(AttachmentChip)

    def measure(self, name: str, n_tokens: int) -> None:
        """Show the token count of an attachment."""
        for chip in self._chips(name):
            chip.measure(n_tokens)

    def _chips(self, name: str) -> list[AttachmentChip]:
        return [chip for chip in self.query(AttachmentChip) if chip.attachment.name == name]

    def _set_attachments(self, attachments: tuple[Attachment, ...]) -> None:
        self.attachments = attachments
        self.display = bool(attachments)
        self.post_message(self.Changed())


@dataclass(frozen=True, slots=True)
class AttachmentOutcome:
    """What to do with an attachment, whose text is now `text`."""

    action: Literal["save", "insert", "remove"]
    text: str = ""


class AttachmentScreen(ModalScreen[AttachmentOutcome | None]):
    """The text of an attachment, which can be edited; the file that it came from stays as it is. Returns what to do
    with the attachment, None for nothing."""

    CSS_PATH = "attachment_bar.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "Save", id="attachment-save", tooltip="Keep the changed text"),
        Binding("ctrl+l", "insert", "Into the prompt", id="attachment-insert", tooltip="Put the text into the prompt"),
        Binding("ctrl+o", "edit_outside", "Editor", id="attachment-editor", tooltip="Edit the text in $EDITOR"),
        Binding("ctrl+r", "remove", "Remove", id="attachment-remove", tooltip="Remove the attachment"),
        Binding("escape", "close", "Close", id="attachment-close", tooltip="Go back without changes"),
    ]

    def __init__(self, attachment: Attachment) -> None:
        super().__init__()
        self._heading = printable_line(attachment.name)
        self._shown = printable(attachment.content)
        self._is_warned = False

    def compose(self) -> ComposeResult:
        with Vertical(id="attachment") as panel:
            panel.border_title = Content(self._heading).markup
            field = TextArea(self._shown, compact=True, highlight_cursor_line=False)
            field.cursor_blink = False
            yield field
            yield Static("", markup=False, id="fault")
            yield Static(_HELP, markup=False, id="keys")

    @property
    def field(self) -> TextArea:
        return self.query_one(TextArea)

    def action_save(self) -> None:
        """Keep the text if it was changed; an empty one is no attachment."""
        text = self.field.text
        if not text.strip():
            self.dismiss(AttachmentOutcome("remove"))
        elif text == self._shown:
            self.dismiss(None)
        else:
            self.dismiss(AttachmentOutcome("save", text))

    def action_insert(self) -> None:
        """Put the text into the prompt in place of the attachment."""
        if len(self.field.text) > _MAX_INSERTED_CHARACTERS:
            self._complain(f"The prompt takes {_MAX_INSERTED_CHARACTERS:,} characters at once.")
        else:
            self.dismiss(AttachmentOutcome("insert", self.field.text.rstrip("\n")))

    def action_remove(self) -> None:
        """Remove the attachment."""
        self.dismiss(AttachmentOutcome("remove"))

    def action_close(self) -> None:
        """Close; ask before changes are lost."""
        if self._is_warned or self.field.text == self._shown:
            self.dismiss(None)
        else:
            self._is_warned = True
            self._complain(_DISCARDS)

    @work(exclusive=True)
    async def action_edit_outside(self) -> None:
        """Edit the text in the user's editor."""
        from tui.chat.composer.external_editor import edit_text_outside

        try:
            self.field.text = printable(await edit_text_outside(self.app, self.field.text.rstrip("\n")))
        except UserError as error:
            self._complain(str(error))

    def _complain(self, text: str) -> None:
        self.query_one("#fault", Static).update(printable(text))
