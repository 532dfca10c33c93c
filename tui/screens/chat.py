"""The chat screen: questions in, answers streamed, figures at the bottom.

Owns what may be done when. What is said and how an answer runs lives in `tui.session`, the service behind
`tui.connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import TextArea
from textual.worker import Worker, WorkerCancelled

from app.chat.message import Attachment, Utterance
from app.chat.presets import Presets
from app.terminal import printable
from quantizer.errors import StorageError, UserError
from tui.chat_commands import CHAT_COMMANDS
from tui.commands import slash_line
from tui.composing.draft_pad import DraftPad
from tui.conversation import Entry, Removed
from tui.resources import Resources
from tui.screens.command_screen import CommandScreen
from tui.session import ChatSession
from tui.settings_words import presets_text, settings_line
from tui.status import advice
from tui.widgets.composer import Composer
from tui.widgets.prompt_input import PromptInput
from tui.widgets.status_line import StatusLine
from tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from textual.widgets import Markdown

__all__ = ["ChatScreen"]

_UNDONE_FOR_S = 8.0


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
        self._keeper = resources.keeper
        self._presets = Presets(resources.settings.data_dir)
        self._drafts = DraftPad(resources.keeper, lambda error: self.say(str(error)))
        self._answering: Worker[Any] | None = None
        self._titling: Worker[Any] | None = None
        self._is_reopened = asyncio.Event()
        self._edited_id: int | None = None  # the question that what is typed will stand beside
        self._removed: Removed | None = None
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

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    @property
    def prompt(self) -> PromptInput:
        return self.composer.prompt

    @property
    def is_answering(self) -> bool:
        """Whether a question waits for its answer or the answer is being written."""
        return self._answering is not None and not self._answering.is_finished

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
    def _typed(self) -> None:
        self._drafts.write(self.prompt.text)

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

    async def stop_answer(self) -> None:
        """Hide what is offered for a word; else stop the answer and keep what came of it, or go to the prompt."""
        if self.composer.dismiss():
            return
        if self._answering is not None and self.is_answering:
            self._answering.cancel()
            with suppress(WorkerCancelled):
                await self._answering.wait()
        else:
            self._end_edit()
            self.prompt.focus()

    async def answer_again(self) -> None:
        """Answer the selected question, or the last one, again; when there is none, connect again."""
        await self._is_reopened.wait()
        selected = self.transcript.selected
        await self.stop_answer()
        self._answer(partial(self._answer_again, selected.entry.message.id if selected else None))

    async def new_chat(self) -> None:
        """Leave this chat and start an empty one."""
        await self._is_reopened.wait()
        await self.stop_answer()
        await self._leave_draft()
        self._session.start_over()
        await self.transcript.clear()
        await self._open_draft()

    # One message

    async def select_step(self, n_steps: int) -> None:
        """Select the message `n_steps` below the selected one (above: negative); below the last one is the prompt."""
        if not await self.transcript.select_step(n_steps):
            self.prompt.focus()

    async def step_to_version(self, n_steps: int) -> None:
        """Show another version of the selected message."""
        if (selected := self._selected_to_change()) is None:
            return
        with self._told_if_not_kept():
            version_id = await self._session.step_to_version(selected.message.id, n_steps)
            if version_id is not None:
                await self.transcript.show(self._session.conversation.entries(), at=version_id)

    def edit(self) -> None:
        """Take the selected question, or the last one, into the prompt; sent, it stands beside the former."""
        conversation = self._session.conversation
        selected = self.transcript.selected
        message_id = selected.entry.message.id if selected else conversation.leaf_id
        question = None if message_id is None else conversation.question_of(message_id)
        if question is None:
            self.say("There is no question to edit yet.")
            return
        self._edited_id = question.id
        self.prompt.border_title = "Other words for this question: Enter sends them, Esc leaves it as it was"
        self.composer.put(question.content, question.attachments)
        self.prompt.focus()

    async def go_on(self) -> None:
        """Write the last answer on, where it was stopped or cut."""
        await self._is_reopened.wait()
        answer = None if self.is_answering else self._session.continuable()
        if answer is None:
            self.say("There is no answer that was stopped or cut.")
        else:
            self._answer(lambda: self._session.go_on(answer, self.transcript))

    async def delete(self) -> None:
        """Delete the selected message and what follows; for a while it can be undone."""
        if (selected := self._selected_to_change()) is None:
            return
        with self._told_if_not_kept():
            self._removed = await self._session.remove(selected.message.id)
            n_removed = len(self._removed.messages)
            self.say(f"Deleted {n_removed} message{'s' if n_removed > 1 else ''}. Ctrl+Z undoes it.", _UNDONE_FOR_S)
            self.set_timer(_UNDONE_FOR_S, partial(self._forget, self._removed))
        await self._show_all()

    async def undo(self) -> None:
        """Bring back what was deleted."""
        removed, self._removed = self._removed, None
        if removed is not None:
            with self._told_if_not_kept():
                await self._session.put_back(removed)
            await self._show_all(at=removed.messages[0].id)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave Ctrl+Z to the prompt while there is no deletion to undo."""
        return self._removed is not None if parameters == ("undo",) else super().check_action(action, parameters)

    def toggle_thoughts(self) -> None:
        """Open or fold what was thought before the selected answer, or the last one."""
        if not self.transcript.toggle_thoughts():
            self.say("There are no thoughts to read here.")

    def copy_message(self) -> None:
        """Put the selected message on the clipboard."""
        if selected := self.transcript.selected:
            self._copy(selected.entry.message.content)

    def copy_answer(self) -> None:
        """Put the last answer on the clipboard."""
        if text := self._session.conversation.last_answer:
            self._copy(text)
        else:
            self.say("There is no answer to copy yet.")

    async def set_system_prompt(self, text: str) -> None:
        """Set the system prompt of this chat, or show it."""
        await self._is_reopened.wait()
        conversation = self._session.conversation
        current = text or conversation.settings.system
        conversation.settings = replace(conversation.settings, system=current)
        await self.transcript.add_notice(f"System prompt: {current}" if current else "No system prompt is set.")

    async def edit_options(self) -> None:
        """Ask for the sampler's options of this chat."""
        from tui.screens.options import OptionsScreen

        await self._is_reopened.wait()
        self.app.push_screen(OptionsScreen(self._session.conversation.settings.options, self._take_options))

    async def _take_options(self, options: dict[str, int | float], preset: str) -> None:
        """Answer with `options` from now on, and keep them as a preset where that has a name."""
        conversation = self._session.conversation
        settings = replace(conversation.settings, options=options)
        if preset:
            await asyncio.to_thread(self._presets.save, preset, settings)
        conversation.settings = settings
        await self.transcript.add_notice(settings_line(settings))

    async def use_preset(self, name: str) -> None:
        """Answer as a preset says from now on, with this chat's system prompt where it has none; without a name, list
        the presets."""
        await self._is_reopened.wait()
        try:
            if not name:
                presets = await asyncio.to_thread(self._presets.all)
                await self.transcript.add_notice(presets_text(presets))
                return
            preset = await asyncio.to_thread(self._presets.get, name)
        except UserError as error:
            self.warn(str(error))
            return
        conversation = self._session.conversation
        conversation.settings = replace(preset, system=preset.system or conversation.settings.system)
        await self.transcript.add_notice(f"{name}: {settings_line(conversation.settings)}")

    def scroll_pages(self, n_pages: int) -> None:
        """Scroll the conversation, up when negative."""
        rows = max(1, self.transcript.size.height - 2)
        self.transcript.scroll_relative(y=n_pages * rows, animate=False)

    async def go_to_start(self) -> None:
        """Show the first message."""
        await self.transcript.go_to_start()

    async def go_to_end(self) -> None:
        """Show the last message and follow what comes."""
        await self.transcript.go_to_end()

    # What comes from the store, the service and the model

    async def open_chat(self, chat_id: int, message_id: int | None = None) -> None:
        """Leave this chat and show another one that is kept, at one of its messages or at its end."""
        await self._is_reopened.wait()
        await self.stop_answer()
        await self._leave_draft()
        await self.transcript.clear()
        await self._reopen(chat_id, message_id)
        self.prompt.focus()
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
                self.prompt.lay_aside(draft)
            else:
                self.prompt.put(draft)
        self._drafts.write(self.prompt.text)

    async def _leave_draft(self) -> None:
        await self._drafts.close()
        self.prompt.put("")

    async def _reopen(self, chat_id: int | None = None, message_id: int | None = None) -> None:
        """Show a chat that is kept, without an id the one in which something was said last."""
        try:
            await self._session.reopen(chat_id, message_id)
            await self._show_all()
        except StorageError as error:
            await self.transcript.add_error(error)

    async def _show_all(self, at: int | None = None) -> None:
        await self.transcript.show(self._session.conversation.entries(), at)

    def _answer(self, answering: Callable[[], Awaitable[None]]) -> None:
        async def answer() -> None:
            await self._is_reopened.wait()
            await answering()
            self._titling = self.run_worker(self._session.entitle, group="title")

        if self._titling is not None:
            self._titling.cancel()  # a title can wait, a person cannot
        self._answering = self.run_worker(answer, group="answer")

    async def _answer_again(self, message_id: int | None) -> None:
        if not await self._session.answer_again(self.transcript, message_id):
            self._connection.start()

    def _selected_to_change(self) -> Entry | None:
        """The selected message, unless nothing may change now; says why there is none."""
        selected = self.transcript.selected
        if self.is_answering:
            self.say("An answer is under way: Esc stops it.")
        elif selected is None:
            self.say("Select a message first: Ctrl+Up.")
        else:
            return selected.entry
        return None

    @contextmanager
    def _told_if_not_kept(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            self.say(str(error))

    def _end_edit(self) -> None:
        if self._edited_id is not None:
            self._edited_id = None
            self.prompt.border_title = None
            self.prompt.put("")

    def _forget(self, removed: Removed) -> None:
        if self._removed is removed:
            self._removed = None

    def _copy(self, text: str) -> None:
        self.app.copy_to_clipboard(text)
        self.say(f"Copied {len(text)} characters.")

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

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Show where a link leads instead of going there: a model wrote it."""
        address = printable(event.href)
        self.app.copy_to_clipboard(address)
        self.say(f"Copied, not opened: {address}")

    def _show_status(self) -> None:
        for line in self.query(StatusLine):  # none is left while the app closes
            line.show(self._session.status)
