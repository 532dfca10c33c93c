"""Commands for the messages of the open chat: those of the selected message, or of the last one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from app.chat.branches import TranscriptEntry
from app.chat.session import OpenChat
from quantizer.system.errors import StorageError
from tui.chat.view import ChatView
from tui.markdown.document import CodeBlock, code_blocks

_EDITING: Mapping[str, str] = {
    "user": "Editing the question: Enter sends it, Esc cancels",
    "summary": "Editing the summary: Enter takes it, Esc cancels",
}


class MessageActions:
    """The methods that commands call; they work on `view`."""

    def __init__(self, view: ChatView) -> None:
        self._view = view
        self._screen = view.screen

    def take_back(self) -> None:
        """Put the last waiting question back into the prompt."""
        if not self._view.put_back(self._view.chat.take_back()):
            self._screen.inform("No question is waiting.")

    async def answer_again(self) -> None:
        """Answer the selected question, or the last one, again; without one, reconnect."""
        await self._view.is_open.wait()
        selected = self._view.transcript.selected
        await self._view.chat.stop()
        self._view.answer(partial(self._answer_again, selected.entry.message.id if selected else None))

    async def select_step(self, n_steps: int) -> None:
        """Select the message `n_steps` below the selected one (above if negative); the prompt is below the last one."""
        if not await self._view.transcript.select_step(n_steps):
            self._view.transcript.mark(None)
            self._view.focus_prompt()

    async def step_to_version(self, n_steps: int) -> None:
        """Show another version of the selected message."""
        if (selected := self._editable_selection()) is None:
            return
        with self._screen.inform_on_error(StorageError):
            version_id = await self._view.chat.step_to_version(selected.message.id, n_steps)
            if version_id is not None:
                await self._view.transcript.show(self._view.session.conversation.entries(), at=version_id)

    def edit(self) -> None:
        """Load the selected question or summary, or the last one, into the prompt; sending it adds a version."""
        conversation = self._view.session.conversation
        selected = self._view.transcript.selected
        message_id = selected.entry.message.id if selected else conversation.leaf_id
        question = None if message_id is None else conversation.editable(message_id)
        if question is None:
            self._screen.inform("There is no question to edit yet.")
            return
        self._view.edited_id = question.id
        self._view.prompt.push_recall(self._view.prompt.text)  # what was typed is not lost
        self._view.prompt.border_title = _EDITING[question.role]
        self._view.composer.put(question.content, question.attachments)
        self._view.focus_prompt()  # at once: the next key edits the question

    async def continue_answer(self) -> None:
        """Continue the last answer if it was stopped or cut off."""
        await self._view.is_open.wait()
        answer = None if self._view.chat.is_answering else self._view.session.conversation.unfinished_answer
        if answer is None:
            self._screen.inform("There is no unfinished answer.")
        else:
            self._view.answer(lambda chat: chat.continue_answer(answer))

    async def delete(self) -> None:
        """Delete the selected message and its descendants; undo stays possible while the chat is open."""
        if (selected := self._editable_selection()) is None:
            return
        with self._screen.inform_on_error(StorageError):
            self._view.removed.append(await self._view.chat.remove(selected.message.id))
            self._view.focus_prompt()  # Textual would select the next message
            await self._view.show_all()
            await self._view.transcript.add_deletion(len(self._view.removed[-1].messages))

    async def undo(self) -> None:
        """Restore the messages of the last deletion; without one, undo the last change of the prompt."""
        if not self._view.removed:
            self._view.prompt.action_undo()
        elif not self._view.refuses_while_answering():
            removed = self._view.removed.pop()
            with self._screen.inform_on_error(StorageError):
                await self._view.chat.restore(removed)
                await self._view.transcript.remove_last_deletion()
            await self._view.show_all(at=removed.messages[0].id)

    def toggle_thoughts(self) -> None:
        """Expand or collapse the reasoning of the selected answer, or of the last one."""
        if not self._view.transcript.toggle_thoughts():
            self._screen.inform("There are no thoughts here.")

    def toggle_call(self) -> None:
        """Expand or collapse the selected call of a tool, or the last one; of an answer, its reasoning."""
        if not self._view.transcript.toggle_call() and not (
            self._view.transcript.selected and self._view.transcript.toggle_thoughts()
        ):
            self._screen.inform("There is no call of a tool here.")

    def copy_message(self) -> None:
        """Copy the selected message to the clipboard."""
        if selected := self._view.transcript.selected:
            self._copy(selected.entry.message.content)

    def copy_answer(self) -> None:
        """Copy the last answer to the clipboard."""
        if text := self._view.session.conversation.last_answer:
            self._copy(text)
        else:
            self._screen.inform("There is no answer to copy yet.")

    def copy_code(self, number: str = "") -> None:
        """Copy a code block of the selected message, or of the last answer: the only one, the one with this number, or
        one chosen from a list."""
        selected = self._view.transcript.selected
        text = selected.entry.message.content if selected else self._view.session.conversation.last_answer
        blocks = {str(n): block for n, block in enumerate(code_blocks(text), start=1)}
        wanted = number or ("1" if len(blocks) == 1 else "")
        if not blocks:
            self._screen.inform("There is no code block to copy.")
        elif not wanted:
            self._view.run(partial(self._choose_code, blocks), "code")
        elif block := blocks.get(wanted):
            self._copy(block.text)
        else:
            self._screen.inform(f"There are {len(blocks)} code blocks.")

    async def _choose_code(self, blocks: Mapping[str, CodeBlock]) -> None:
        from tui.widgets.dialogs import ChoiceDialog

        titles = {number: block.title for number, block in blocks.items()}
        chosen = await self._screen.app.push_screen_wait(
            ChoiceDialog("Copy a code block", "", titles, is_numbered=True)
        )
        if chosen is not None:
            self._copy(blocks[chosen].text)

    async def go_to_start(self) -> None:
        """Show the first message."""
        await self._view.transcript.go_to_start()

    async def go_to_end(self) -> None:
        """Show the last message and follow new text."""
        await self._view.transcript.go_to_end()

    def _editable_selection(self) -> TranscriptEntry | None:
        """Return the selected message if it may change now; otherwise notify why not."""
        selected = self._view.transcript.selected
        if self._view.refuses_while_answering():
            return None
        if selected is None:
            self._screen.inform("Select a message first: Ctrl+Up.")
        else:
            return selected.entry
        return None

    def _answer_again(self, message_id: int | None, chat: OpenChat) -> None:
        if not chat.answer_again(message_id):
            self._view.connection.start()

    def _copy(self, text: str) -> None:
        self._screen.app.copy_to_clipboard(text)
        self._screen.inform(f"Copied {len(text)} characters.")
