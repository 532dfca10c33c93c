"""The attachments of the next question: a bar of chips above the prompt, and the screens that open one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from rich.cells import cell_len, set_cell_size
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.geometry import Offset, Size
from textual.layout import ArrangeResult, Layout
from textual.layouts.horizontal import HorizontalLayout
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static, TextArea

from app.chat.conversation import Attachment
from app.common.terminal import printable, printable_line
from quantizer.system.errors import UserError
from tui.chat.composer.context_forecast import TokenCount
from tui.pictures.picture_view import PictureView, media_content, whole_screen_bounds

_REMOVES = " ×]"
_MAX_ROWS = 3
_GAP = 1  # cells between two chips
_SEPARATOR = " · "

MAX_EDITED_CHARACTERS = 300_000  # a quarter of a second to lay out
_MAX_INSERTED_CHARACTERS = 50_000
_HELP = "Ctrl+S saves · Ctrl+L puts it into the prompt · Alt+E opens your editor · Ctrl+R removes it · Esc closes"


def chip_text(attachment: Attachment, count: TokenCount | None, *, is_alone: bool) -> str:
    """Return what a chip shows: the name, how much it is and, once counted, its tokens and their share of the context.
    Only an attachment that `is_alone` has room for all of it."""
    size = "" if attachment.media else f"{len(attachment.content):,} characters"
    if attachment.is_searched:
        size = "searched for each question"
    elif count is not None:
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
        self._n_most_cells = 0  # of a row; 0 is unknown
        self._draw()

    def show(self, attachment: Attachment) -> None:
        self.attachment, self._count = attachment, None
        self._draw()

    def measure(self, count: TokenCount) -> None:
        self._count = count
        self._draw()

    def leave_room(self, n_cells: int, *, is_alone: bool) -> None:
        if (n_cells, is_alone) != (self._n_most_cells, self._is_alone):
            self._n_most_cells, self._is_alone = n_cells, is_alone
            self._draw()

    def on_click(self, event: Click) -> None:
        is_cross = event.x >= self.size.width - len(_REMOVES)
        self.post_message((self.Removed if is_cross else self.Opened)(self.attachment.name))

    def _draw(self) -> None:
        self.set_class(self._count is not None and self._count.is_too_large, "-warning")
        text = f"[{chip_text(self.attachment, self._count, is_alone=self._is_alone)}"
        n_most = self._n_most_cells - cell_len(_REMOVES)
        if 0 < n_most < cell_len(text):
            text = f"{set_cell_size(text, n_most - 1)}…"
        text = f"{text}{_REMOVES}"
        self.update(text)
        self.n_cells = cell_len(text)
        self.styles.width = self.n_cells  # Textual 8.2.8 keeps an automatic one that it saw before the first idle


class _PendingChip(Static):
    """A file that is being read."""

    def __init__(self, name: str) -> None:
        super().__init__(markup=False)
        self.file_name = name
        self.leave_room(0)

    def leave_room(self, n_most: int) -> None:
        name, behind = f"[{printable_line(self.file_name)}", f"{_SEPARATOR}reading…]"
        room = n_most - cell_len(behind)
        if n_most and room < cell_len(name):
            name = f"{set_cell_size(name, max(1, room - 1))}…"
        self.update(text := f"{name}{behind}")
        self.n_cells = cell_len(text)
        self.styles.width = self.n_cells


class _Others(Static):
    """How many attachments have no room; a click lists all of them."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.display = False
        self.tooltip = "Click or Ctrl+L lists all attachments."

    def show(self, n_others: int) -> None:
        self.display = bool(n_others)
        self.update(others := _others_text(n_others))
        self.styles.width = cell_len(others)

    async def on_click(self) -> None:
        await self.run_action("screen.command('attachment')")


def _others_text(n_others: int) -> str:
    return f"+{n_others} more (Ctrl+L)"


class _RowsLayout(HorizontalLayout):
    """Widgets side by side, in as many rows as that takes."""

    name = "rows"

    def arrange(self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> ArrangeResult:
        placed = super().arrange(parent, children, size, greedy)
        places = _rows([placement.region.width for placement in placed], size.width)
        return [
            placement._replace(region=placement.region.at_offset(Offset(x, y)))
            for placement, (x, y) in zip(placed, places, strict=True)
        ]


_LAYOUT = _RowsLayout()


def _rows(widths: Iterable[int], n_columns: int) -> list[tuple[int, int]]:
    """Return the column and the row of each widget."""
    places, x, y = [], 0, 0
    for width in widths:
        if x and x + width > n_columns:
            x, y = 0, y + 1
        places.append((x, y))
        x += width + _GAP
    return places


def n_fitting(widths: Sequence[int], n_columns: int) -> int:
    """Return how many of the widgets fit, with the number of the others behind them, into the rows that there are."""
    n_all = len(widths)
    for n_shown in range(n_all, 0, -1):
        others = [cell_len(_others_text(n_all - n_shown))] if n_shown < n_all else []
        if _rows([*widths[:n_shown], *others], n_columns)[-1][1] < _MAX_ROWS:
            return n_shown
    return 0


class AttachmentBar(Container):
    """The attachments of the next question, by unique name; hidden if there are none. What has no room in three rows is
    counted."""

    can_focus = False

    @dataclass
    class Changed(Message):
        """An attachment was added, changed or removed."""

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self.attachments: tuple[Attachment, ...] = ()
        self._n_pending = 0
        self._others = _Others()

    @property
    def layout(self) -> Layout:
        """Textual's styles take its own layouts only."""
        return _LAYOUT

    def compose(self) -> ComposeResult:
        yield self._others

    def on_resize(self) -> None:
        self._fit()

    def begin(self, name: str) -> None:
        """Show that a file is being read, until `end`."""
        self._n_pending += 1
        self.display = True
        self.mount(_PendingChip(name), before=self._others)
        self._fit()

    def end(self, name: str) -> None:
        self._n_pending -= 1
        self.display = bool(self.attachments or self._n_pending)
        for chip in [chip for chip in self.query(_PendingChip) if chip.file_name == name][:1]:
            chip.remove()
        self.call_after_refresh(self._fit)

    def add(self, attachment: Attachment) -> None:
        self.remove_attachment(attachment.name)
        self._set_attachments((*self.attachments, attachment))
        self.mount(AttachmentChip(attachment), before=self._others)
        self._fit()

    def replace(self, attachment: Attachment) -> None:
        name = attachment.name
        self._set_attachments(tuple(attachment if each.name == name else each for each in self.attachments))
        for chip in self._chips(name):
            chip.show(attachment)
        self._fit()

    def remove_attachment(self, name: str) -> None:
        self._set_attachments(tuple(other for other in self.attachments if other.name != name))
        for chip in self._chips(name):
            chip.remove()
        self.call_after_refresh(self._fit)

    def clear(self) -> None:
        self._set_attachments(())
        self.remove_children(AttachmentChip)
        self.call_after_refresh(self._fit)

    def measure(self, name: str, count: TokenCount) -> None:
        for chip in self._chips(name):
            chip.measure(count)
        self._fit()

    def _fit(self) -> None:
        """Show the chips that fit, and how many others there are."""
        n_columns = self.content_size.width
        if not n_columns:  # not laid out yet
            return
        chips = [chip for chip in self.children if isinstance(chip, AttachmentChip | _PendingChip)]
        for chip in chips:
            if isinstance(chip, AttachmentChip):
                chip.leave_room(n_columns, is_alone=len(self.attachments) == 1)
            else:
                chip.leave_room(n_columns)
        n_shown = n_fitting([chip.n_cells for chip in chips], n_columns)
        for number, chip in enumerate(chips):
            chip.display = number < n_shown
        self._others.show(len(chips) - n_shown)

    def _chips(self, name: str) -> list[AttachmentChip]:
        return [chip for chip in self.query(AttachmentChip) if chip.attachment.name == name]

    def _set_attachments(self, attachments: tuple[Attachment, ...]) -> None:
        self.attachments = attachments
        self.display = bool(attachments or self._n_pending)
        self._fit()
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
    """The pictures of an attachment, as large as the terminal shows them, or the name and the length of a sound. One
    that `is_sent` stays in its message."""

    CSS_PATH = "attachment_screen.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "remove", "Remove", id="media-remove", tooltip="Remove the attachment"),
        Binding("escape,enter", "dismiss(None)", "Close", id="media-close", tooltip="Go back"),
    ]

    def __init__(self, attachment: Attachment, *, is_sent: bool = False) -> None:
        super().__init__()
        self._attachment = attachment
        self._is_sent = is_sent

    def compose(self) -> ComposeResult:
        with Vertical(id="attachment") as panel:
            panel.border_title = Content(printable_line(self._attachment.name)).markup
            with VerticalScroll():
                for file in self._attachment.media:
                    if not file.is_sound:
                        yield PictureView(file.sha256, partial(media_content, self.app, file), whole_screen_bounds)
            yield Static(printable_line(self._attachment.label), markup=False, id="label")
            yield Static("Esc closes" if self._is_sent else "Ctrl+R removes it · Esc closes", markup=False, id="keys")

    def action_remove(self) -> None:
        if not self._is_sent:
            self.dismiss(AttachmentOutcome("remove"))
