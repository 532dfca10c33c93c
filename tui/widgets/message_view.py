"""One message of the chat: what was said, how it ended, its versions, and the mark of being selected."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from tui.conversation import Entry
from tui.message_commands import MESSAGE_COMMANDS
from tui.widgets.answer import Answer
from tui.widgets.error_panel import ErrorPanel
from tui.widgets.message_bar import MessageBar
from tui.widgets.question import Question
from tui.widgets.thoughts import Thoughts

__all__ = ["MessageView"]


class MessageView(Vertical, can_focus=True):
    """Shows one entry. It is selected when it has the focus; then letters are commands."""

    FOCUS_ON_CLICK = False  # at the press already; what is pressed must not move, for a text of it may be selected
    BINDINGS = MESSAGE_COMMANDS.bindings_at_once()

    @dataclass
    class KeysShown(Message):
        """`bar` has come up below a selected message whose end was in view."""

        bar: MessageBar

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self.entry = entry

    def compose(self) -> ComposeResult:
        if self.entry.message.role == "user":
            yield Question(self.entry.message.content, self.entry.message.attachments)
        else:
            yield Answer(self.entry)
        yield MessageBar()
        if self.entry.error is not None:
            yield ErrorPanel(self.entry.error)

    def on_mount(self) -> None:
        self._show_bar()

    def watch_has_focus(self, has_focus: bool) -> None:
        """Tell what can be done with it, or no longer."""
        super().watch_has_focus(has_focus)
        self._show_bar()

    def on_click(self) -> None:
        """Select the message, unless a text in it was selected."""
        if not self.screen.get_selected_text():
            self.screen.set_focus(self, scroll_visible=False)

    async def write(self, entry: Entry, text: str) -> None:
        """Append `text` to the answer, with which the message is as in `entry`."""
        self.entry = entry
        await self.query_one(Answer).write(entry, text)

    def toggle_thoughts(self) -> bool:
        """Open or fold what was thought; return False where nothing was."""
        thoughts = self.query(Thoughts)
        for thought in thoughts:
            thought.toggle()
        return bool(thoughts)

    async def show(self, entry: Entry) -> None:
        """Show how the message stands now: its versions and its ending, not another text."""
        had_error, self.entry = self.entry.error is not None, entry
        for answer in self.query(Answer):
            await answer.show(entry)
        if entry.error is not None and not had_error:
            await self.mount(ErrorPanel(entry.error))
        elif entry.error is None and had_error:
            await self.query(ErrorPanel).remove()
        self._show_bar()

    def _show_bar(self) -> None:
        is_end_in_view = self.region.bottom <= self.container_viewport.bottom
        for bar in self.query(MessageBar):
            was_shown = bar.display
            bar.show(self.entry, is_selected=self.has_focus)
            if self.has_focus and is_end_in_view and bar.display and not was_shown:
                self.post_message(self.KeysShown(bar))
