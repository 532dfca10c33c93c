"""Commands for the tools of the open chat: the question before a call, /tools, and taking steps back.

Owns where the focus is while a question waits. `app.chat.rounds` runs the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from app.chat.session import OpenChat
from app.chat.steps import undone_text
from quantizer.system.errors import StorageError
from tui.chat.message_actions import MessageActions
from tui.chat.notices import OtherQuestions
from tui.chat.tools.approval_panel import ApprovalPanel
from tui.chat.tools.editor import ToolsEditor
from tui.chat.view import ChatView
from tui.context import BaseApp


class ToolActions:
    """The methods that commands call. `show_status` is called when the tools that are on change; /undo restores what
    `messages` deleted first."""

    def __init__(
        self, view: ChatView, messages: MessageActions, editor: ToolsEditor, show_status: Callable[[], None]
    ) -> None:
        self._view = view
        self._screen = view.screen
        self._messages = messages
        self._tools_editor = editor
        self._show_status = show_status
        self._asking: tuple[OpenChat, ...] = ()  # chats that are not shown, as the person knows it

    async def answer_approval(self) -> None:
        """Go to the question of this chat, or to the chat that has one."""
        panel = self._screen.query_one(ApprovalPanel)
        asking = [chat for chat in self._view.session.asking if chat.stored.id is not None]
        if panel.display:
            self._screen.set_focus(panel)
        elif asking and asking[0].stored.id is not None:
            await cast("BaseApp", self._screen.app).open_chat(asking[0].stored.id)
        else:
            self._screen.inform("No tool asks for your permission.")

    def scroll_pages(self, n_pages: int) -> None:
        """Scroll the question that has the focus, else the conversation."""
        panel = self._screen.query_one(ApprovalPanel)
        if panel.has_focus:
            panel.scroll_pages(n_pages)
        else:
            transcript = self._view.transcript
            rows = max(1, transcript.size.height - 2)
            transcript.scroll_relative(y=n_pages * rows, animate=False)

    async def edit_tools(self, text: str) -> None:
        """Switch tools, name folders and more from text such as `on files`; without a text, open the list."""
        from tui.chat.tools.screen import ToolsScreen

        await self._view.is_open.wait()
        if not text:
            self._screen.app.push_screen(ToolsScreen(self._tools_editor), lambda _: self._show_status())
            return
        with self._screen.warn_on_error():
            await self._view.transcript.add_notice(await self._tools_editor.run(text))
        self._show_status()

    async def undo_step(self) -> None:
        """Bring deleted messages back; without any, take back the last step of the chat with its files."""
        await self._view.is_open.wait()
        if self._view.removed:
            await self._messages.undo()
        elif not self._view.refuses_while_answering():
            with self._screen.warn_on_error():
                step = await self._view.chat.undo_step()
                await self._view.transcript.add_notice(undone_text(step) if step else "There is nothing to take back.")
                if step is not None and step.question is not None:
                    self._view.put_back(step.question)

    async def redo_step(self) -> None:
        """Do again what was taken back last."""
        await self._view.is_open.wait()
        with self._screen.inform_on_error(StorageError):
            step = await self._view.chat.redo_step()
            await self._view.transcript.add_notice("It is done again." if step else "There is nothing to do again.")

    def show_questions(self) -> None:
        """Show the question that waits, and that of another chat."""
        for panel in self._screen.query(ApprovalPanel):  # none is left while the app closes
            had_focus = panel.has_focus
            is_other = panel.show(self._view.chat.approvals.questions)
            if is_other and had_focus:
                self._view.focus_prompt()  # at once: the next key is for no question that was not seen
            if is_other and panel.display:
                self._call_attention()
        for line in self._screen.query(OtherQuestions):
            asking = self._view.session.asking
            line.show([chat.title for chat in asking])
            if set(asking) - set(self._asking):
                self._call_attention()
            self._asking = asking

    def _call_attention(self) -> None:
        """Say that a question waits, where it cannot be seen; ring if the person may be away."""
        if self._screen.app.screen is not self._screen:
            self._screen.inform("A tool asks for your permission: Esc goes back to the chat.")
        if not self._screen.app.app_focus:
            self._screen.app.bell()
