"""The attachments of the next question: a bar of chips above the prompt, and the screens that open one of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from rich.cells import cell_len
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import HorizontalScroll, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static, TextArea

from app.chat.conversation import Attachment
from app.common.terminal import printable, printable_line
from quantizer.system.errors import UserError
from tui.chat.composer.context_forecast import TokenCount
from tui.pictures.picture_view import PictureView, media_content, whole_screen_bounds

_REMOVES = " ×]"
_SEPARATOR = " · "

MAX_EDITED_CHARACTERS = 300_000  # a quarter of a second to lay out
_MAX_INSERTED_CHARACTERS = 50_000
_HELP = "Ctrl+S saves · Ctrl+L puts it into the prompt · Alt+E opens your editor · Ctrl+R removes it · Esc closes"


def chip_text(attachment: Attachment, count: TokenCount | None, *, is_alone: bool) -> str:
    """Return what a chip shows: the name, how much it is and, once counted, its tokens and their share of the context.
    Only an attachment that `is_alone` has room for all of it."""
    size = "" if attachment.media else f"{len(attachment.content):,} characters"
    if count is not None:
        share = count.n_tokens / count.n_ctx if count.n_ctx else None
        percent = "" if share is None else ", <1 %" if share < 0.01 else f", {100 * share:.0f} %"
        of_all = " of the context" if percent and is_alone else ""
        size = f"{'≈' if count.is_estimated else ''}{count.n_tokens:,} tokens{percent}{of_all}"
    detail = attachment.detail if is_alone or not size else ""
    return _SEPARATOR.join(printable_line(part) for part in (attachment.name, detail, size) if part)


class AttachmentChip(Static):
    """One attachment's name, size and share of the context; a click opens it, a click on its cross removes it."""

    @dataclass
    class Opened(Message):
        name: str

    @dataclass
    class Removed(Message):
        name: str

    def __init__(self, attachment: Attachment) -> None:
        super().__init__(markup=False)
        self.attachment = attachment
        self.tooltip = "Click or Ctrl+L opens it. Its × removes it, or Backspace in an empty prompt the last one."
        self._count: TokenCount | None = None
        self._is_alone = True
        self._draw()

    def show(self, attachment: Attachment) -> None:
        self.attachment, self._count = attachment, None
        self._draw()

    def measure(self, count: TokenCount) -> None:
        self._count = count
        self._draw()

    def leave_room(self, *, is_alone: bool) -> None:
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
        self._n_pending -= 1
        self.display = bool(self.attachments or self._n_pending)
        for chip in [chip for chip in self.query(_PendingChip) if chip.file_name == name][:1]:
            chip.remove()

    def add(self, attachment: Attachment) -> None:
        self.remove_attachment(attachment.name)
        self._set_attachments((*self.attachments, attachment))
        chip = AttachmentChip(attachment)
        chip.leave_room(is_alone=len(self.attachments) == 1)
        self.mount(chip)

    def replace(self, attachment: Attachment) -> None:
        name = attachment.name
        self._set_attachments(tuple(attachment if each.name == name else each for each in self.attachments))
        for chip in self._chips(name):
            chip.show(attachment)

    def remove_attachment(self, name: str) -> None:
        self._set_attachments(tuple(other for other in self.attachments if other.name != name))
        for chip in self._chips(name):
            chip.remove()

    def clear(self) -> None:
        self._set_attachments(())
        self.remove_children(AttachmentChip)

    def measure(self, name: str, count: TokenCount) -> None:
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
        Binding("alt+e", "edit_outside", "Editor", id="attachment-editor", tooltip="Edit the text in $EDITOR"),
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
        saved = AttachmentOutcome("save", text) if text != self._shown else None
        self.dismiss(saved if text.strip() else AttachmentOutcome("remove"))

    def action_insert(self) -> None:
        if len(self.field.text) > _MAX_INSERTED_CHARACTERS:
            self._complain(f"The prompt takes {_MAX_INSERTED_CHARACTERS:,} characters at once.")
        else:
            self.dismiss(AttachmentOutcome("insert", self.field.text.rstrip("\n")))

    def action_remove(self) -> None:
        self.dismiss(AttachmentOutcome("remove"))

    def action_close(self) -> None:
        if self._is_warned or self.field.text == self._shown:
            self.dismiss(None)
        else:
            self._is_warned = True
            self._complain("The text was changed: Ctrl+S saves it, Esc once more discards the changes.")

    @work(exclusive=True)
    async def action_edit_outside(self) -> None:
        from tui.chat.composer.external_programs import edit_text_outside

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
            yield Static("Ctrl+R removes it · Esc closes", markup=False, id="keys")

    def action_remove(self) -> None:
        self.dismiss(AttachmentOutcome("remove"))
