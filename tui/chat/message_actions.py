"""The base of the chat screen: actions on messages and on waiting questions.

Owns which message an action applies to. `app.chat.session` carries the actions out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from textual import on, work
from textual.events import Paste
from textual.worker import Worker

from app.chat.branches import RemovedMessages, TranscriptEntry
from app.chat.conversation import Draft
from app.chat.session import OpenChat, joined
from quantizer.system.errors import StorageError, UserError
from tui.chat.composer.composer import Composer
from tui.chat.composer.prompt_input import PromptInput
from tui.chat.notices import StatusLine, WaitingQuestions
from tui.chat.transcript.message_view import MessageView
from tui.chat.transcript.transcript import Transcript
from tui.context import AppContext
from tui.markdown.document import CodeBlock, code_blocks
from tui.widgets.screens import CommandScreen

_EDITING: Mapping[str, str] = {
    "user": "Editing the question: Enter sends it, Esc cancels",
    "summary": "Editing the summary: Enter takes it, Esc cancels",
}


class ConversationScreen(CommandScreen):
    """A transcript, a composer and the commands for messages. Answers begin once the last chat is open."""

    def __init__(self, app_context: AppContext) -> None:
        super().__init__(app_context)
        self._connection = app_context.connection
        self._session = app_context.session
        self._is_open = asyncio.Event()
        self._removed: list[RemovedMessages] = []  # of the open chat, the last deletion last
        self._edited_id: int | None = None  # the question that the prompt's text will replace

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
        """Whether a question is waiting for its answer or the answer is running."""
        return self._session.chat.is_answering

    async def stop_answer(self) -> None:
        """Hide the completions; else stop the answer and keep its text, or focus the prompt."""
        if self.composer.dismiss():
            return
        if self.is_answering:
            await self._session.chat.stop()
        else:
            self._end_edit()
            self.transcript.mark(None)
            self.set_focus(self.prompt)  # at once: the next key may be queued already

    async def end_thought(self) -> None:
        """End the thought of the running answer, whose text then begins."""
        try:
            is_thinking = await self._session.chat.end_thought()
        except UserError as error:
            self.inform(str(error))
        else:
            if not is_thinking:
                self.inform("No thought is running.")

    async def _show_all(self, at: int | None = None) -> None:
        await self.transcript.show(self._session.conversation.entries(), at)

    def _answer(self, begin: Callable[[OpenChat], object]) -> None:
        """Call `begin` with the open chat, once that is open, and report what breaks its answer unexpectedly."""
        if self._is_open.is_set():
            begin(self._session.chat)
            waiting: Callable[[], Coroutine[Any, Any, None]] = self._session.chat.wait
        else:
            waiting = partial(self._answer_when_open, begin)
        _: Worker[None] = self.run_worker(waiting, group="answer")

    async def _answer_when_open(self, begin: Callable[[OpenChat], object]) -> None:
        await self._is_open.wait()
        begin(self._session.chat)
        await self._session.chat.wait()

    def _editable_selection(self) -> TranscriptEntry | None:
        """Return the selected message if it may change now; otherwise notify why not."""
        selected = self.transcript.selected
        if self.is_answering:
            self.inform("An answer is running: Esc stops it.")
        elif selected is None:
            self.inform("Select a message first: Ctrl+Up.")
        else:
            return selected.entry
        return None

    def _end_edit(self) -> None:
        if self._edited_id is not None:
            self._edited_id = None
            self.prompt.border_title = None
            self.composer.put("")

    def _show_status(self) -> None:
        for line in self.query(StatusLine):  # none is left while the app closes
            line.show(self._session.status)

    def _chat_changed(self) -> None:
        """Show the status and the waiting questions; if the answer was stopped or failed, these go back to the
        prompt."""
        self._show_status()
        chat = self._session.chat
        for waiting in self.query(WaitingQuestions):
            waiting.show([question.content for question in chat.queue])
            if not chat.is_answering and self._is_open.is_set():
                self._put_back(chat.take_back_all())

    def take_back(self) -> None:
        """Put the last waiting question back into the prompt."""
        if not self._put_back(self._session.chat.take_back()):
            self.inform("No question is waiting.")

    def _put_back(self, draft: Draft | None) -> bool:
        if draft is None:
            return False
        whole = joined(draft, self.composer.draft)
        self.composer.put(whole.text, whole.attachments)
        return True

    # Commands

    async def answer_again(self) -> None:
        """Answer the selected question, or the last one, again; without one, reconnect."""
        await self._is_open.wait()
        selected = self.transcript.selected
        await self._session.chat.stop()
        self._answer(partial(self._answer_again, selected.entry.message.id if selected else None))

    async def select_step(self, n_steps: int) -> None:
        """Select the message `n_steps` below the selected one (above if negative); the prompt is below the last one."""
        if not await self.transcript.select_step(n_steps):
            self.transcript.mark(None)
            self.set_focus(self.prompt)  # at once: the next key may be queued already

    async def step_to_version(self, n_steps: int) -> None:
        """Show another version of the selected message."""
        if (selected := self._editable_selection()) is None:
            return
        with self.inform_on_error(StorageError):
            version_id = await self._session.chat.step_to_version(selected.message.id, n_steps)
            if version_id is not None:
                await self.transcript.show(self._session.conversation.entries(), at=version_id)

    def edit(self) -> None:
        """Load the selected question or summary, or the last one, into the prompt; sending it adds a version."""
        conversation = self._session.conversation
        selected = self.transcript.selected
        message_id = selected.entry.message.id if selected else conversation.leaf_id
        question = None if message_id is None else conversation.editable(message_id)
        if question is None:
            self.inform("There is no question to edit yet.")
            return
        self._edited_id = question.id
        self.prompt.push_recall(self.prompt.text)  # what was typed is not lost
        self.prompt.border_title = _EDITING[question.role]
        self.composer.put(question.content, question.attachments)
        self.set_focus(self.prompt)  # at once: the next key edits the question

    async def continue_answer(self) -> None:
        """Continue the last answer if it was stopped or cut off."""
        await self._is_open.wait()
        answer = None if self.is_answering else self._session.conversation.unfinished_answer
        if answer is None:
            self.inform("There is no unfinished answer.")
        else:
            self._answer(lambda chat: chat.continue_answer(answer))

    async def delete(self) -> None:
        """Delete the selected message and its descendants; undo stays possible while the chat is open."""
        if (selected := self._editable_selection()) is None:
            return
        with self.inform_on_error(StorageError):
            self._removed.append(await self._session.chat.remove(selected.message.id))
            self.set_focus(self.prompt)  # Textual would select the next message
            await self._show_all()
            await self.transcript.add_deletion(len(self._removed[-1].messages))

    async def undo(self) -> None:
        """Restore the messages of the last deletion; without one, undo the last change of the prompt."""
        if not self._removed:
            self.prompt.action_undo()
        elif self.is_answering:
            self.inform("An answer is running: Esc stops it.")
        else:
            removed = self._removed.pop()
            with self.inform_on_error(StorageError):
                await self._session.chat.restore(removed)
                await self.transcript.remove_last_deletion()
            await self._show_all(at=removed.messages[0].id)

    @on(MessageView.Clicked)
    def _clicked(self, event: MessageView.Clicked) -> None:
        """Leave the keys to the prompt: a click gives letters no other meaning."""
        event.stop()
        self.set_focus(self.prompt)

    @on(MessageView.Typed)
    def _typed_elsewhere(self, event: MessageView.Typed) -> None:
        event.stop()
        self._give_to_prompt(event.text)

    def _give_to_prompt(self, text: str) -> None:
        """Let the prompt have what was typed elsewhere."""
        self.set_focus(self.prompt)
        self.prompt.post_message(Paste(text))

    def toggle_thoughts(self) -> None:
        """Expand or collapse the reasoning of the selected answer, or of the last one."""
        if not self.transcript.toggle_thoughts():
            self.inform("There are no thoughts here.")

    def toggle_call(self) -> None:
        """Expand or collapse the selected call of a tool, or the last one; of an answer, its reasoning."""
        if not self.transcript.toggle_call() and not (self.transcript.selected and self.transcript.toggle_thoughts()):
            self.inform("There is no call of a tool here.")

    def copy_message(self) -> None:
        """Copy the selected message to the clipboard."""
        if selected := self.transcript.selected:
            self._copy(selected.entry.message.content)

    def copy_answer(self) -> None:
        """Copy the last answer to the clipboard."""
        if text := self._session.conversation.last_answer:
            self._copy(text)
        else:
            self.inform("There is no answer to copy yet.")

    def copy_code(self, number: str = "") -> None:
        """Copy a code block of the selected message, or of the last answer: the only one, the one with this number, or
        one chosen from a list."""
        selected = self.transcript.selected
        text = selected.entry.message.content if selected else self._session.conversation.last_answer
        blocks = {str(n): block for n, block in enumerate(code_blocks(text), start=1)}
        wanted = number or ("1" if len(blocks) == 1 else "")
        if not blocks:
            self.inform("There is no code block to copy.")
        elif not wanted:
            self._choose_code(blocks)
        elif block := blocks.get(wanted):
            self._copy(block.text)
        else:
            self.inform(f"There are {len(blocks)} code blocks.")

    @work
    async def _choose_code(self, blocks: Mapping[str, CodeBlock]) -> None:
        from tui.widgets.dialogs import ChoiceDialog

        titles = {number: block.title for number, block in blocks.items()}
        chosen = await self.app.push_screen_wait(ChoiceDialog("Copy a code block", "", titles, is_numbered=True))
        if chosen is not None:
            self._copy(blocks[chosen].text)

    def scroll_pages(self, n_pages: int) -> None:
        """Scroll the conversation, up if negative."""
        rows = max(1, self.transcript.size.height - 2)
        self.transcript.scroll_relative(y=n_pages * rows, animate=False)

    async def go_to_start(self) -> None:
        """Show the first message."""
        await self.transcript.go_to_start()

    async def go_to_end(self) -> None:
        """Show the last message and follow new text."""
        await self.transcript.go_to_end()

    def _answer_again(self, message_id: int | None, chat: OpenChat) -> None:
        if not chat.answer_again(message_id):
            self._connection.start()

    def _copy(self, text: str) -> None:
        self.app.copy_to_clipboard(text)
        self.inform(f"Copied {len(text)} characters.")
