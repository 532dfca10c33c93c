"""The part of the chat screen for tools: the question before a call, /tools, and taking steps back.

Owns where the focus is while a question waits. `app.chat.session` runs the calls.
"""

from __future__ import annotations

from pathlib import Path

from textual import on

from app.chat.conversation import Draft
from app.chat.session import OpenChat
from app.chat.steps import undone_text
from quantizer.system.errors import StorageError
from tui.chat.composer.prompt_input import PromptInput
from tui.chat.draft_screen import DraftScreen
from tui.chat.notices import OtherQuestions
from tui.chat.tools.approval_panel import ApprovalPanel
from tui.chat.tools.editor import ToolsEditor
from tui.context import AppContext


class ToolScreen(DraftScreen):
    """A conversation whose answers may call tools."""

    def __init__(self, app_context: AppContext) -> None:
        super().__init__(app_context)
        self._tools_editor = ToolsEditor(self._session, app_context.tools, Path.cwd())
        self._asking: tuple[OpenChat, ...] = ()  # chats that are not shown, as the person knows it

    # The question before a call

    def _chat_changed(self) -> None:
        """Show the question that waits, and that of another chat."""
        super()._chat_changed()
        for panel in self.query(ApprovalPanel):  # none is left while the app closes
            had_focus = panel.has_focus
            is_other = panel.show(self._session.chat.approvals.questions)
            if is_other and had_focus:
                self.set_focus(self.prompt)  # at once: the next key is for no question that was not seen
            if is_other and panel.display:
                self._call_attention()
        for line in self.query(OtherQuestions):
            asking = self._session.asking
            line.show([chat.title for chat in asking])
            if set(asking) - set(self._asking):
                self._call_attention()
            self._asking = asking

    def _call_attention(self) -> None:
        """Say that a question waits, where it cannot be seen; ring if the person may be away."""
        if self.app.screen is not self:
            self.inform("A tool asks for your permission: Esc goes back to the chat.")
        if not self.app.app_focus:
            self.app.bell()

    @on(PromptInput.Passed)
    def _passed(self, event: PromptInput.Passed) -> None:
        """Go to the question with Tab, where it has nothing to complete."""
        event.stop()
        panel = self.query_one(ApprovalPanel)
        if panel.display:
            self.set_focus(panel)

    async def answer_approval(self) -> None:
        """Go to the question of this chat, or to the chat that has one."""
        panel = self.query_one(ApprovalPanel)
        asking = [chat for chat in self._session.asking if chat.stored.id is not None]
        if panel.display:
            self.set_focus(panel)
        elif asking and asking[0].stored.id is not None:
            await self.open_chat(asking[0].stored.id)
        else:
            self.inform("No tool asks for your permission.")

    async def open_chat(self, chat_id: int, message_id: int | None = None) -> None:
        """Open a stored chat; the subclass does it."""
        raise NotImplementedError

    @on(ApprovalPanel.Decided)
    def _decided(self, event: ApprovalPanel.Decided) -> None:
        event.stop()
        self.set_focus(self.prompt)
        self._session.chat.approvals.answer(event.question, event.decision)

    @on(ApprovalPanel.Typed)
    def _typed_at_panel(self, event: ApprovalPanel.Typed) -> None:
        event.stop()
        self._give_to_prompt(event.text)

    @on(ApprovalPanel.Left)
    def _left_panel(self, event: ApprovalPanel.Left) -> None:
        event.stop()
        self.set_focus(self.prompt)

    # Commands

    def scroll_pages(self, n_pages: int) -> None:
        """Scroll the question that has the focus, else the conversation."""
        panel = self.query_one(ApprovalPanel)
        if panel.has_focus:
            panel.scroll_pages(n_pages)
        else:
            super().scroll_pages(n_pages)

    async def edit_tools(self, text: str) -> None:
        """Switch tools, name folders and more from text such as `on files`; without a text, open the list."""
        from tui.chat.tools.screen import ToolsScreen

        await self._is_open.wait()
        if not text:
            self.app.push_screen(ToolsScreen(self._tools_editor), lambda _: self._show_status())
            return
        with self.warn_on_error():
            await self.transcript.add_notice(await self._tools_editor.run(text))
        self._show_status()

    async def undo_step(self) -> None:
        """Bring deleted messages back; without any, take back the last step of the chat with its files."""
        await self._is_open.wait()
        if self._removed:
            await self.undo()
        elif self.is_answering:
            self.inform("An answer is running: Esc stops it.")
        else:
            with self.warn_on_error():
                step = await self._session.chat.undo_step()
                await self.transcript.add_notice(undone_text(step) if step else "There is nothing to take back.")
                if step is not None and step.question is not None:
                    self._put_back(Draft(step.question.content, step.question.attachments))

    async def redo_step(self) -> None:
        """Do again what was taken back last."""
        await self._is_open.wait()
        with self.inform_on_error(StorageError):
            step = await self._session.chat.redo_step()
            await self.transcript.add_notice("It is done again." if step else "There is nothing to do again.")
