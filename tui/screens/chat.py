"""The chat screen: questions in, answers streamed, figures at the bottom.

Owns the way from what is typed to a question, and which chat is shown. What is said and how an answer runs lives in
`tui.session`, the service behind `tui.connection`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import TextArea
from textual.worker import Worker

from app.chat.message import Attachment, Utterance
from quantizer.errors import StorageError, UserError
from tui.chat_commands import CHAT_COMMANDS
from tui.commands import slash_line
from tui.composing.draft_pad import DraftPad
from tui.resources import Resources
from tui.screens.answer_commands import AnswerCommands
from tui.screens.message_commands import MessageCommands
from tui.status import advice
from tui.widgets.attachment_bar import AttachmentBar
from tui.widgets.composer import Composer
from tui.widgets.prompt_input import PromptInput
from tui.widgets.status_line import StatusLine
from tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from tui.widgets.markdown_text import MarkdownText

__all__ = ["ChatScreen"]


class ChatScreen(MessageCommands, AnswerCommands):
    """One conversation with one model; fulfils `tui.chat_commands.ChatActions`."""

    CSS_PATH = "chat.tcss"
    TABLE = CHAT_COMMANDS
    KEYS = PromptInput.KEYS
    BINDINGS = CHAT_COMMANDS.bindings()

    class ConnectionChanged(Message):
        """The connection has a new state."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self._keeper = resources.keeper
        self._drafts = DraftPad(resources.keeper, lambda error: self.say(str(error)))
        self._seen_notices: set[str] = set()

    def compose(self) -> ComposeResult:
        yield Transcript()
        yield Composer(self._slash_words)
        yield StatusLine()

    def on_mount(self) -> None:
        self.prompt.focus()
        self._show_status()
        self._connection.watch(self._post_connection_changed)
        self.call_after_refresh(self._connection.start)
        self.call_after_refresh(self.run_worker, self._open_last, group="reopen")

    async def on_unmount(self) -> None:
        await self._drafts.close()

    # From keys and words to commands

    @on(Composer.Submitted)
    async def _submitted(self, event: Composer.Submitted) -> None:
        line = slash_line(event.text)
        if line is None or event.attachments:
            self.ask(event.text, event.attachments)
        elif command := self.command_of_word(line[0]):
            await self.run_command(command.id, line[1])
        else:
            self.composer.put(event.text)
            self.say(f"There is no command /{line[0]}: F1 lists them.")

    @on(TextArea.Changed)
    @on(AttachmentBar.Changed)
    def _typed(self) -> None:
        self._drafts.write(self.composer.draft)

    @on(Composer.Attached)
    def _attached(self, event: Composer.Attached) -> None:
        _: Worker[None] = self.run_worker(partial(self._measure, event.attachment), group="measure")

    async def _measure(self, attachment: Attachment) -> None:
        """Count the tokens of an attachment; while nobody can, its size stays in characters."""
        with suppress(UserError):
            client = await self._connection.client()
            n_tokens = await client.count_tokens(attachment.content, self._connection.state.model)
            self.composer.measure(attachment.name, n_tokens)

    @on(Composer.Refused)
    def _refused(self, event: Composer.Refused) -> None:
        self.say(str(event.error))

    def _slash_words(self) -> list[tuple[str, str]]:
        return [(command.slash, command.tooltip) for command in self.all_commands() if command.slash]

    # What the commands do

    def ask(self, question: str, attachments: tuple[Attachment, ...] = ()) -> None:
        """Send `question` with what goes with it; while an answer is under way it goes back to where it was typed."""
        if self.is_answering:
            self.composer.put(question, attachments)
            self.say("An answer is under way: Esc stops it.")
            return
        said = Utterance(role="user", content=question, attachments=attachments)
        edited_id = self._edited_id
        self._end_edit()
        if edited_id is None:
            self._answer(lambda: self._session.ask(said, self.transcript))
        else:
            self._answer(lambda: self._session.ask_instead(edited_id, said, self.transcript))

    async def new_chat(self) -> None:
        """Leave this chat and start an empty one."""
        await self._is_reopened.wait()
        await self.stop_answer()
        await self._leave_draft()
        self._session.start_over()
        await self.transcript.clear()
        await self._open_draft()

    # What comes from the store, the service and the model

    async def open_chat(self, chat_id: int, message_id: int | None = None) -> None:
        """Leave this chat and show another one that is kept, at one of its messages or at its end."""
        await self._is_reopened.wait()
        await self.stop_answer()
        await self._leave_draft()
        await self.transcript.clear()
        await self._reopen(chat_id, message_id)
        self.set_focus(self.prompt)
        if message_id in self._session.conversation.messages:
            await self.transcript.select(message_id)
        await self._open_draft()

    async def _open_last(self) -> None:
        """Show the chat in which something was said last, and let what was asked in any chat be recalled."""
        try:
            await self._reopen()
            with self._told_if_not_kept():
                self.prompt.remember(await self._keeper.asked())
            await self._open_draft()
        finally:
            self._is_reopened.set()

    async def _open_draft(self) -> None:
        """Show what was typed in the chat that was opened; where a person types by now, it can be recalled."""
        with self._told_if_not_kept():
            draft = await self._drafts.open()
            if self.prompt.text:
                self.prompt.lay_aside(draft.text)
                self.composer.add(draft.attachments)
            else:
                self.composer.put(draft.text, (*draft.attachments, *self.composer.attachments))
        self._drafts.write(self.composer.draft)

    async def _leave_draft(self) -> None:
        await self._drafts.close()
        self.composer.put("")

    async def _reopen(self, chat_id: int | None = None, message_id: int | None = None) -> None:
        """Show a chat that is kept, without an id the one in which something was said last."""
        try:
            await self._session.reopen(chat_id, message_id)
            await self._show_all()
        except StorageError as error:
            await self.transcript.add_error(error)

    def _post_connection_changed(self) -> None:
        self.post_message(self.ConnectionChanged())

    @on(ConnectionChanged)
    async def _connection_changed(self) -> None:
        self._show_status()
        state = self._connection.state
        if state.error is not None and not self.is_answering:
            await self.transcript.add_error(state.error)
        for notice in filter(None, (*state.notices, advice(state.plan))):
            if notice not in self._seen_notices:
                self._seen_notices.add(notice)
                await self.transcript.add_notice(notice)

    def on_markdown_text_address_clicked(self, event: MarkdownText.AddressClicked) -> None:
        """Copy where a link leads instead of going there: a model wrote it."""
        self.app.copy_to_clipboard(event.address)
        self.say(f"Copied, not opened: {event.address}")
