"""The screens that open an attachment: its text, or its pictures.

Owns what the keys in an open attachment do; `tui.chat.composer.composer` carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static, TextArea

from app.chat.conversation import Attachment
from app.common.terminal import printable, printable_line
from quantizer.system.errors import UserError
from tui.pictures.picture_view import PictureView, media_content, whole_screen_bounds

MAX_EDITED_CHARACTERS = 300_000  # a quarter of a second to lay out
_MAX_INSERTED_CHARACTERS = 50_000
_HELP = "Ctrl+S saves · Ctrl+L puts it into the prompt · Ctrl+O opens your editor · Ctrl+R removes it · Esc closes"
_DISCARDS = "The text was changed: Ctrl+S saves it, Esc once more discards the changes."
_MEDIA_HELP = "Ctrl+R removes it · Esc closes"


@dataclass(frozen=True, slots=True)
class AttachmentOutcome:
    """What to do with an attachment, whose text is now `text`."""

    action: Literal["save", "insert", "remove"]
    text: str = ""


class AttachmentScreen(ModalScreen[AttachmentOutcome | None]):
    """The text of an attachment, which can be edited; the file that it came from stays as it is. Returns what to do
    with the attachment, None for nothing."""

    CSS_PATH = "attachment_screen.tcss"
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


class MediaScreen(ModalScreen[AttachmentOutcome | None]):
    """The pictures of an attachment, as large as the terminal shows them, or the name and the length of a sound."""

    CSS_PATH = "attachment_screen.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "remove", "Remove", id="media-remove", tooltip="Remove the attachment"),
        Binding("escape,enter", "dismiss(None)", "Close", id="media-close", tooltip="Go back"),
    ]

    def __init__(self, attachment: Attachment) -> None:
        super().__init__()
        self._attachment = attachment

    def compose(self) -> ComposeResult:
        with Vertical(id="attachment") as panel:
            panel.border_title = Content(printable_line(self._attachment.name)).markup
            with VerticalScroll():
                for file in self._attachment.media:
                    if not file.is_sound:
                        yield PictureView(file.sha256, partial(media_content, self.app, file), whole_screen_bounds)
            yield Static(printable_line(self._attachment.label), markup=False, id="label")
            yield Static(_MEDIA_HELP, markup=False, id="keys")

    def action_remove(self) -> None:
        """Remove the attachment."""
        self.dismiss(AttachmentOutcome("remove"))
