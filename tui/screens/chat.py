"""The chat screen: questions in, answers streamed, figures at the bottom.

Owns what may be done when. What is said and how an answer runs lives in `tui.session`, the service behind
`tui.connection`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.worker import Worker, WorkerCancelled

from app.terminal import printable
from quantizer.errors import StorageError
from tui.chat_commands import CHAT_COMMANDS
from tui.commands import slash_line
from tui.resources import Resources
from tui.screens.command_screen import CommandScreen
from tui.session import ChatSession
from tui.widgets.prompt_input import PromptInput
from tui.widgets.status_line import StatusLine
from tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from textual.widgets import Markdown

__all__ = ["ChatScreen"]


class ChatScreen(CommandScreen):
    """One conversation with one model; fulfils `tui.chat_commands.ChatActions`."""

    CSS_PATH = "chat.tcss"
    TABLE = CHAT_COMMANDS
    KEYS = PromptInput.KEYS
    BINDINGS = CHAT_COMMANDS.bindings()

    class ConnectionChanged(Message):
        """The connection has a new state."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self._connection = resources.connection
        self._session = ChatSession(resources.connection, resources.keeper, resources.clock, self._show_status)
        self._answering: Worker[None] | None = None
        self._is_reopened = asyncio.Event()
        self._seen_notices: set[str] = set()

    def compose(self) -> ComposeResult:
        yield Transcript()
        yield PromptInput()
        yield StatusLine()

    def on_mount(self) -> None:
        self.prompt.focus()
        self._show_status()
        self._connection.watch(self._post_connection_changed)
        self.call_after_refresh(self._connection.start)
        self.call_after_refresh(self.run_worker, self._reopen, group="reopen")

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def prompt(self) -> PromptInput:
        return self.query_one(PromptInput)

    @property
    def is_answering(self) -> bool:
        """Whether a question waits for its answer or the answer is being written."""
        return self._answering is not None and not self._answering.is_finished

    # From keys and words to commands

    @on(PromptInput.Submitted)
    async def _submitted(self, event: PromptInput.Submitted) -> None:
        line = slash_line(event.text)
        if line is None:
            self.ask(event.text)
        elif command := self.command_of_word(line[0]):
            await self.run_command(command.id, line[1])
        else:
            self.prompt.put(event.text)
            self.say(f"There is no command /{line[0]}: F1 lists them.")

    # What the commands do

    def ask(self, question: str) -> None:
        """Send `question`; while an answer is under way it goes back to where it was typed."""
        if self.is_answering:
            self.prompt.put(question)
            self.say("An answer is under way: Esc stops it.")
        else:
            self._answering = self.run_worker(self._answer(question), group="answer")

    async def stop_answer(self) -> None:
        """Stop the running answer, if any, and keep what came of it."""
        if self._answering is not None and self.is_answering:
            self._answering.cancel()
            try:
                await self._answering.wait()
            except WorkerCancelled:
                return

    async def answer_again(self) -> None:
        """Ask the last question again; when there is none, connect again."""
        await self._is_reopened.wait()
        await self.stop_answer()
        if question := self._session.take_back():
            await self.transcript.drop_last_turn()
            self.ask(question)
        else:
            self._connection.start()

    async def new_chat(self) -> None:
        """Leave this chat and start an empty one."""
        await self._is_reopened.wait()
        await self.stop_answer()
        self._session.start_over()
        await self.transcript.clear()

    def copy_answer(self) -> None:
        """Put the last answer on the clipboard."""
        if text := self._session.conversation.last_answer:
            self.app.copy_to_clipboard(text)
            self.say(f"Copied {len(text)} characters.")
        else:
            self.say("There is no answer to copy yet.")

    async def set_system_prompt(self, text: str) -> None:
        """Set the system prompt of this chat, or show it."""
        await self._is_reopened.wait()
        conversation = self._session.conversation
        conversation.system = text or conversation.system
        current = conversation.system
        await self.transcript.add_notice(f"System prompt: {current}" if current else "No system prompt is set.")

    def scroll_pages(self, n_pages: int) -> None:
        """Scroll the conversation, up when negative."""
        rows = max(1, self.transcript.size.height - 2)
        self.transcript.scroll_relative(y=n_pages * rows, animate=False)

    # What comes from the service and from the model

    async def open_chat(self, chat_id: int) -> None:
        """Leave this chat and show another one that is kept."""
        await self._is_reopened.wait()
        await self.stop_answer()
        await self.transcript.clear()
        await self._reopen(chat_id)
        self.prompt.focus()

    async def _reopen(self, chat_id: int | None = None) -> None:
        """Show a chat that is kept, without an id the one in which something was said last."""
        try:
            await self._session.reopen(chat_id)
            await self.transcript.restore(self._session.conversation.exchanges)
        except StorageError as error:
            await self.transcript.add_error(error)
        finally:
            self._is_reopened.set()

    async def _answer(self, question: str) -> None:
        await self._is_reopened.wait()
        turn = await self.transcript.add_turn(question)
        await self._session.answer(question, turn)

    def _post_connection_changed(self) -> None:
        self.post_message(self.ConnectionChanged())

    @on(ConnectionChanged)
    async def _connection_changed(self) -> None:
        self._show_status()
        state = self._connection.state
        if state.error is not None and not self.is_answering:
            await self.transcript.add_error(state.error)
        for notice in state.notices:
            if notice not in self._seen_notices:
                self._seen_notices.add(notice)
                await self.transcript.add_notice(notice)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Show where a link leads instead of going there: a model wrote it."""
        address = printable(event.href)
        self.app.copy_to_clipboard(address)
        self.say(f"Copied, not opened: {address}")

    def _show_status(self) -> None:
        for line in self.query(StatusLine):  # none is left while the app closes
            line.show(self._session.status)
