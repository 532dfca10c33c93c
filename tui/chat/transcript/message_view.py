"""One message of the chat: question, answer with its reasoning, summary or call; its versions and actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.events import Click, Key, Paste
from textual.geometry import Offset, Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from app.chat.branches import Ending, TranscriptEntry, has_only_calls
from app.chat.compaction import NO_SUMMARY
from app.chat.conversation import Attachment, MediaFile, Role
from app.chat.state import format_reasoning
from app.common.terminal import printable, printable_line
from app.protocol.chat import Source
from quantizer.system.errors import UserError
from tui.chat.commands import MESSAGE_COMMANDS
from tui.chat.format import answer_line
from tui.chat.notices import ErrorPanel
from tui.chat.tools.calls import SIGNS, FoldLine, ToolCallView
from tui.design.words import cut, side_by_side
from tui.markdown.document import code_blocks
from tui.markdown.widget import MarkdownText
from tui.pictures.picture_view import PictureView, media_content, picture_bounds

_MAX_PICTURES = 4  # of a message; the names say how many it has
# Command and label by role; the key is in bold.
_EDIT, _DELETE, _COPY = ("edit", "[b]E[/b] edit"), ("delete", "[b]Del[/b]ete"), ("copy-message", "[b]Y[/b] copy")
_ACTIONS: dict[Role, tuple[tuple[str, str], ...]] = {
    "user": (_EDIT, _DELETE, _COPY),
    "assistant": (("again", "[b]R[/b] again"), _DELETE, _COPY),
    "tool": (("expand-call", "[b]O[/b]utput"), _DELETE, ("copy-message", "[b]Y[/b] copy the output")),
    "summary": (("thoughts", "[b]T[/b]ext"), _EDIT, _DELETE, _COPY),
}
_GO_ON = ("continue", "[b]Ctrl+G[/b] continue")
_NOT_CONTINUED = (Ending.COMPLETE, Ending.ELSEWHERE)
_CODE = ("copy-code", "[b]C[/b]ode")
_KEEP = (("keep-1", "[b]1[/b] keep the first"), ("keep-2", "[b]2[/b] the second"))
_THOUGHTS = ("thoughts", "[b]T[/b]houghts")
_SOURCE = ("source", "[b]S[/b]ource")
_BETWEEN_LABELS = "  "


class MessageView(Vertical, can_focus=True):
    """One entry. It is selected while it has the focus, and letters are commands then, or while it is marked."""

    FOCUS_ON_CLICK = False  # not on mouse down: text below the pointer may be selected and must not move
    BINDINGS: ClassVar[list[BindingType]] = [
        *MESSAGE_COMMANDS.bindings_at_once(),
        Binding("enter", "screen.command('expand-call')", "Expand", show=False, priority=True),
    ]

    is_marked: reactive[bool] = reactive(default=False, init=False, toggle_class="-marked")
    """Whether a click or a search selected it: its actions are shown, but keys go to the prompt."""

    @dataclass
    class Typed(Message):
        """The user typed or pasted what is no command of a message."""

        text: str

    @dataclass
    class Clicked(Message):
        """The user clicked on the message, which marked it."""

    @dataclass
    class KeysShown(Message):
        """`bar` appeared below a selected message whose end was in view."""

        bar: MessageBar

    def __init__(self, entry: TranscriptEntry) -> None:
        super().__init__()
        self.entry = entry

    def compose(self) -> ComposeResult:
        if self.entry.message.role == "summary":
            yield SummaryView(self.entry)
        elif self.entry.message.role == "user":
            attachments = self.entry.message.attachments
            if pictures := pictures_of(attachments):
                yield PictureRow(pictures)
            if attachments:
                yield AttachmentLabels(attachments, is_alone=not self.entry.message.content)
            if self.entry.message.content or not attachments:
                yield QuestionView(self.entry.message.content)
        elif self.entry.message.role == "tool":
            yield ToolCallView(self.entry)
            yield from _result_media(self.entry.message.attachments)
        elif self.entry.beside is None:
            yield AnswerView(self.entry)
        else:
            from tui.chat.transcript.comparison import ComparisonColumn  # not at the start

            with Container(classes="comparison"):
                for number, entry in enumerate(self._versions(), start=1):
                    yield ComparisonColumn(entry, number, AnswerView(entry), is_shown=entry is self.entry)
        yield MessageBar()
        if failed := _failed(self.entry):
            yield ErrorPanel(failed[1], has_text=_has_answer(failed[0]), is_reopened=True)

    def on_mount(self) -> None:
        self._show_bar()

    def render_lines(self, crop: Region) -> list[Strip]:
        return uniform_rows(super().render_lines, crop)

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self._show_bar()

    def mark_alone(self) -> None:
        """Mark this message and no other one, at once: a clicked action applies to it."""
        for view in self.screen.query(MessageView):
            view.is_marked = view is self

    def watch_is_marked(self) -> None:
        self._show_bar()

    def on_click(self) -> None:
        if not self.screen.get_selected_text():
            self.mark_alone()
            self.post_message(self.Clicked())

    def on_key(self, event: Key) -> None:
        if event.is_printable and event.character:
            event.stop()
            self.post_message(self.Typed(event.character))

    def on_paste(self, event: Paste) -> None:
        event.stop()
        self.post_message(self.Typed(event.text))

    async def write(self, entry: TranscriptEntry, text: str) -> None:
        self.entry = entry
        if entry.message.role == "summary":
            await self.query_one(SummaryView).write(entry, text)
        else:
            answers = list(self.query(AnswerView))
            await answers[self._versions().index(entry)].write(entry, text)

    def find(self, text: str, number: int) -> tuple[Widget, Selection, int] | None:
        """Return the occurrence `number` of `text`, in any case, or the last one shown: its widget, what to select in
        it, and about which row that is. None if no row shows it."""
        sought, last = text.lower(), None
        for widget in self.query("MarkdownText, QuestionView"):
            assert isinstance(widget, MarkdownText | QuestionView)
            for y, row in enumerate(widget.rows):
                x = row.lower().find(sought)
                while x >= 0:
                    last = widget, Selection(Offset(x, y), Offset(x + len(sought), y)), y
                    if number <= 0:
                        return last
                    number -= 1
                    x = row.lower().find(sought, x + len(sought))
        return last

    def toggle_thoughts(self) -> bool:
        thoughts, summaries = self.query(ReasoningView), self.query(SummaryView)
        for thought in thoughts:
            thought.toggle()
        for summary in summaries:
            summary.call_later(summary.toggle)
        return bool(thoughts or summaries)

    def toggle_call(self) -> bool:
        calls = self.query(ToolCallView)
        for call in calls:
            call.toggle()
        return bool(calls)

    async def show(self, entry: TranscriptEntry) -> None:
        """Show the versions and the ending of the message. Its text is unchanged, unless another window wrote it."""
        had_error, before = bool(_failed(self.entry)), self.entry
        self.entry = entry
        ids = [version and version.message.id for version in (before.beside, entry.beside)]
        is_rewritten = entry.message.role == "assistant" and entry.message.content != before.message.content
        if before.message.attachments != entry.message.attachments:  # of a call that has ended
            await self.mount_all(_result_media(entry.message.attachments), after=self.query_one(ToolCallView))
        if ids[0] != ids[1] or is_rewritten:
            await self.recompose()
            self._show_bar()
            return
        for summary in self.query(SummaryView):
            await summary.show(entry)
        for answer, version in zip(self.query(AnswerView), self._versions(), strict=False):
            await answer.show(version)
        if entry.beside is not None:
            from tui.chat.transcript.comparison import ComparisonColumn

            for column, version in zip(self.query(ComparisonColumn), self._versions(), strict=False):
                column.show(version, is_shown=version is self.entry)
        for call in self.query(ToolCallView):
            call.show(entry)
        failed = _failed(entry)
        if failed and not had_error:
            await self.mount(ErrorPanel(failed[1], has_text=_has_answer(failed[0]), is_reopened=True))
        elif not failed and had_error:
            await self.query(ErrorPanel).remove()
        self._show_bar()

    def _versions(self) -> list[TranscriptEntry]:
        versions = [self.entry, self.entry.beside] if self.entry.beside else [self.entry]
        return sorted(versions, key=lambda entry: entry.message.id)

    def _show_bar(self) -> None:
        is_selected = self.has_focus or self.is_marked
        # Asking for a place lays out the whole screen if others were just mounted.
        is_end_in_view = is_selected and self.region.bottom <= self.container_viewport.bottom
        for bar in self.query(MessageBar):
            was_shown = bar.display
            bar.show(self.entry, is_selected=is_selected)
            if is_end_in_view and bar.display and not was_shown:
                self.post_message(self.KeysShown(bar))


class MessageBar(Static):
    """The line below a message: its versions, and its actions if it is selected. Each part is clickable."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = ""
        self.display = False

    def show(self, entry: TranscriptEntry, *, is_selected: bool) -> None:
        left, right = _link("version-left", "‹"), _link("version-right", "›")
        parts = [f"{left} {entry.version}/{entry.n_versions} {right}"] if entry.n_versions > 1 else []
        if is_selected and not entry.is_running:
            actions = _ACTIONS.get(entry.message.role, (_DELETE, _COPY))
            if entry.beside is not None:
                actions = (*_KEEP, *actions)
            if entry.message.role == "assistant" and entry.ending not in _NOT_CONTINUED:
                actions = (*actions, _GO_ON)
            if entry.message.role != "tool" and code_blocks(entry.message.content):
                actions = (*actions, _CODE)
            if entry.message.reasoning:
                actions = (*actions, _THOUGHTS)
            if entry.sources:
                actions = (*actions, _SOURCE)
            parts += [_link(command, words) for command, words in actions]
        if (shown := "  ".join(parts)) == self._shown:
            return  # drawing it again would lay out the whole screen while other messages are mounted
        self._shown = shown
        self.update(Content.from_markup(shown))
        self.display = bool(parts)

    def on_click(self) -> None:
        """Mark the message before the clicked action applies to the selection."""
        if isinstance(self.parent, MessageView):
            self.parent.mark_alone()


def uniform_rows(render: Callable[[Region], list[Strip]], crop: Region) -> list[Strip]:
    """Return the rows of a container that all look the same, of which `render` draws one. Textual draws all of them
    whenever its height or its place changes."""
    return render(Region(crop.x, 0, crop.width, 1)) * crop.height


class AnswerView(Vertical):
    """An answer as Markdown below its reasoning, and the passages that it was given; grows while its entry is running.
    Holds its parts instead of asking for them: an answer that ends while the app does finds its children gone."""

    @dataclass
    class SourceClicked(Message):
        """The user clicked on a passage that the answer was given."""

        source: Source

    def __init__(self, entry: TranscriptEntry) -> None:
        super().__init__()
        self._entry = entry
        self._sources: Widget | None = None
        self._reasoning: ReasoningView | None = ReasoningView(entry) if entry.message.reasoning else None
        text = printable(entry.message.content)
        self._text: MarkdownText | None = MarkdownText(text) if text else None
        self._mark = Static(markup=False, classes="mark")
        self._show_mark()

    def compose(self) -> ComposeResult:
        yield from filter(None, (self._reasoning, self._text, self._new_sources(), self._mark))

    def render_lines(self, crop: Region) -> list[Strip]:
        return uniform_rows(super().render_lines, crop)

    async def write(self, entry: TranscriptEntry, text: str) -> None:
        self._entry = entry
        await self._show_reasoning()
        if self._text is not None:
            self._text.append(text)
        elif text:
            self._text = MarkdownText(text)
            await self.mount(self._text, before=self._sources or self._mark)
            self._show_mark()

    async def show(self, entry: TranscriptEntry) -> None:
        self._entry = entry
        await self._show_reasoning()
        if sources := self._new_sources():
            await self.mount(sources, before=self._mark)
        self._show_mark()

    def _new_sources(self) -> Widget | None:
        """Return the passages of the answer to be mounted, None where it has none or they are."""
        if not self._entry.sources or self._sources is not None:
            return None
        from tui.chat.transcript.citation import SourcesView  # few answers have any

        self._sources = SourcesView(self._entry.sources, self.SourceClicked)
        return self._sources

    async def _show_reasoning(self) -> None:
        if not self._entry.message.reasoning:
            return
        if self._reasoning is None:
            self._reasoning = ReasoningView(self._entry)
            await self.mount(self._reasoning, before=0)
            self._show_mark()
        self._reasoning.show(self._entry)

    def _show_mark(self) -> None:
        """Show the line below the answer; one that has only calls of tools is seen by these."""
        entry = self._entry
        is_seen = entry.is_running or entry.has_figures or entry.error is not None or not has_only_calls(entry.message)
        words = answer_line(entry) if is_seen else ""
        self._mark.update(words)
        self._mark.display = bool(words)
        self._mark.set_class(self._text is not None, "-below")
        self.display = is_seen


class ReasoningView(Vertical):
    """The reasoning of an answer: one line, expanded by a click on it or by `toggle`."""

    def __init__(self, entry: TranscriptEntry) -> None:
        super().__init__()
        self._entry = entry
        self._is_open = False
        self._summary = FoldLine(self._line(), markup=False)
        self._text = Static(markup=False, classes="text")
        self._text.display = False

    def compose(self) -> ComposeResult:
        yield self._summary
        yield self._text

    def show(self, entry: TranscriptEntry) -> None:
        former, self._entry = self._entry.message.reasoning, entry
        self._show_line()
        if self._is_open and entry.message.reasoning != former:
            self._show_text()

    @on(FoldLine.Clicked)
    def toggle(self) -> None:
        self._is_open = not self._is_open
        self._show_line()
        self._show_text()
        self._text.display = self._is_open

    def _show_line(self) -> None:
        self._summary.update(self._line(), layout=False)

    def _line(self) -> str:
        entry = self._entry
        words = format_reasoning(entry.message, is_running=entry.is_running)
        return f"{SIGNS[self._is_open]} {words}"

    def _show_text(self) -> None:
        text = printable(self._entry.message.reasoning) if self._is_open else ""
        self._text.update(text)


class QuestionView(Static):
    """The text of a question as typed."""

    def __init__(self, text: str) -> None:
        super().__init__(shown := printable(text), markup=False)
        self.rows = shown.split("\n")


class AttachmentLabels(Widget):
    """The names of a message's attachments, and how much each one is: side by side where there is room, each whole. A
    click opens its pictures as large as the terminal shows them."""

    def __init__(self, attachments: tuple[Attachment, ...], *, is_alone: bool) -> None:
        super().__init__(classes="-alone" if is_alone else None)
        self._attachments = attachments
        self._labels = [printable_line(attachment.label) for attachment in attachments]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(label_rows(self._labels, width))

    def render(self) -> Content:
        return Content("\n".join(label_rows(self._labels, self.content_size.width)))

    def on_click(self, event: Click) -> None:
        if event.get_content_offset(self) is None or self.screen.get_selected_text():
            return
        place, width = event.get_content_offset_capture(self), self.content_size.width
        for number, attachment in enumerate(self._attachments, start=1):
            *_, row = rows = label_rows(self._labels[:number], width)  # ends with the label of the attachment
            if attachment.media and (place.y, place.x < cell_len(row)) == (len(rows) - 1, True):
                from tui.chat.composer.attachment_bar import MediaScreen  # not at the start

                event.stop()
                self.app.push_screen(MediaScreen(attachment, is_sent=True))
                return


def label_rows(labels: Sequence[str], n_cells: int) -> list[str]:
    """Return labels in brackets as rows of `n_cells`; one that is longer is cut, never broken."""
    shown = [f"[{cut(label, max(1, n_cells - len('[]')))}]" for label in labels]
    rows = side_by_side(map(cell_len, shown), n_cells, len(_BETWEEN_LABELS))
    return [_BETWEEN_LABELS.join(shown[index] for index in row) for row in rows]


class PictureRow(Horizontal):
    """The first pictures of a message, side by side."""

    def __init__(self, pictures: tuple[MediaFile, ...]) -> None:
        super().__init__()
        self._pictures = pictures[:_MAX_PICTURES]

    def compose(self) -> ComposeResult:
        bounds = partial(picture_bounds, n_beside=len(self._pictures))
        for file in self._pictures:
            yield PictureView(file.sha256, partial(media_content, self.app, file), bounds)


def _result_media(attachments: tuple[Attachment, ...]) -> list[Widget]:
    """Return what shows the pictures and sounds of a call's result below it."""
    pictures = pictures_of(attachments)
    shown: list[Widget] = [PictureRow(pictures)] if pictures else []
    shown += [AttachmentLabels(attachments, is_alone=True)] if attachments else []
    for widget in shown:
        widget.add_class("-result")
    return shown


def pictures_of(attachments: tuple[Attachment, ...]) -> tuple[MediaFile, ...]:
    """Return the pictures among attachments, the pages of documents too."""
    return tuple(file for attachment in attachments for file in attachment.media if not file.is_sound)


class SummaryView(Vertical):
    """A divider and the text of a summary, which is open while it is written, and then until it is folded."""

    def __init__(self, entry: TranscriptEntry) -> None:
        super().__init__()
        self._entry = entry
        self._is_open = entry.is_running
        self._divider = FoldLine(self._line(), markup=False)
        self._text: MarkdownText | None = None
        self._shown = ""  # the text in `_text`

    def compose(self) -> ComposeResult:
        yield self._divider

    async def on_mount(self) -> None:
        await self._draw()

    async def write(self, entry: TranscriptEntry, text: str) -> None:
        if self._text is None or self._shown + text != entry.message.content:
            await self.show(entry)
            return
        self._entry = entry
        self._divider.update(self._line(), layout=False)
        self._text.append(text)
        self._shown += text

    async def show(self, entry: TranscriptEntry) -> None:
        self._entry = entry
        await self._draw()

    @on(FoldLine.Clicked)
    async def toggle(self) -> None:
        self._is_open = not self._is_open
        await self._draw()

    def _line(self) -> str:
        return f"{SIGNS[self._is_open]} {summary_line(self._entry)}"

    async def _draw(self) -> None:
        self._divider.update(self._line(), layout=False)
        text = printable(self._entry.message.content) if self._is_open else ""
        if text == self._shown or not self.is_attached:
            return
        if self._text is not None:
            await self._text.remove()
        self._shown, self._text = text, MarkdownText(text) if text else None
        if self._text is not None:
            await self.mount(self._text)


def summary_line(entry: TranscriptEntry) -> str:
    """Return what the summary does: how many messages it replaces, or that it was not finished."""
    count = f"{entry.n_summarised} earlier message{'s' if entry.n_summarised != 1 else ''}"
    if entry.is_running:
        number, n_parts = entry.part
        part = f", part {number} of {n_parts}" if n_parts > 1 else ""
        return f"Summarising {count}{part}: Esc stops it"
    if entry.ending not in (Ending.COMPLETE, Ending.CUT):  # of one that was cut its whole sentences are sent
        return "A summary that was not finished: all messages are sent"
    verb = "is" if entry.n_summarised == 1 else "are"
    done = "left out" if entry.message.content.startswith(NO_SUMMARY) else "summarised"
    return f"{count} {verb} {done}; they stay in the chat"


def _link(command: str, words: str) -> str:
    return f"[@click=screen.click('{command}')]{words}[/]"


def _failed(entry: TranscriptEntry) -> tuple[TranscriptEntry, UserError] | None:
    """Return which of the versions on the screen failed, with its error; None if none did."""
    versions = (entry, entry.beside) if entry.beside else (entry,)
    return next(((version, version.error) for version in versions if version.error is not None), None)


def _has_answer(entry: TranscriptEntry) -> bool:
    """Return whether the error of `entry` ended an answer of which a part is there."""
    return entry.message.role == "assistant" and bool(entry.message.content or entry.message.reasoning)
