"""The commands that rename and export the open chat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.chat.conversation import Chat
from app.chat.repository import SqliteChatRepository
from app.common.terminal import printable_line
from quantizer.system.errors import UsageError
from tui.widgets.screens import CommandScreen

if TYPE_CHECKING:
    from tui.history.stored_chats import StoredChats


class OpenChatActions:
    """The commands of `screen`; `on_change` is called once the chat has another title."""

    def __init__(self, screen: CommandScreen, on_change: Callable[[], None]) -> None:
        self._screen = screen
        self._on_change = on_change

    async def rename_open_chat(self, title: str) -> None:
        """Give the open chat a title; without one, let the person edit it."""
        chat, stored = await self._found()
        if title:
            await stored.set_title(chat.id, title)
            self._screen.inform(f"The chat is called “{printable_line(title.strip())}”.")
        else:
            stored.rename(chat)

    async def export_open_chat(self, line: str) -> None:
        """Write the open chat to the file `line`; without one, ask which."""
        chat, stored = await self._found()
        if line:
            await stored.export(chat.id, line.strip("'\""))
        else:
            stored.ask_export(chat)

    async def _found(self) -> tuple[Chat, StoredChats]:
        """Raises UserError for a chat that is not stored, or cannot be read."""
        from tui.history.stored_chats import StoredChats  # not before the first frame

        context = self._screen.app_context
        repository, chat_id = context.repository, context.session.chat.stored.id
        if not isinstance(repository, SqliteChatRepository) or chat_id is None:
            raise UsageError("This chat is not stored yet.", "Its first question does that.")
        chat = await repository.thread.do(lambda store: store.chats.get(chat_id))
        return chat, StoredChats(self._screen, repository.thread, self._changed)

    async def _changed(self) -> None:
        self._on_change()
