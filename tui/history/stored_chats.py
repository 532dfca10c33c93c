"""What a person does to a stored chat, wherever it is listed or open: rename, delete and restore it, export it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from app.chat.conversation import Chat
from app.chat.files import ExportProgress, export_of, export_to
from app.chat.store.chat_store import StoreThread
from app.common.terminal import printable_line
from app.connection import forget_chat
from quantizer.system.errors import UserError
from tui.widgets.dialogs import InputDialog, ProgressDialog
from tui.widgets.screens import CommandScreen

_QUICK_S = 0.5  # what takes longer shows its progress
_FORMATS = "The extension selects the format: .md, .json (with every branch) or .html."


class StoredChats:
    """Changes of the chats in `thread`'s store, asked for on `screen`. Awaits `on_change` after each."""

    def __init__(self, screen: CommandScreen, thread: StoreThread, on_change: Callable[[], Awaitable[Any]]) -> None:
        self._screen = screen
        self._thread = thread
        self._on_change = on_change
        self.deleted: list[Chat] = []

    def rename(self, chat: Chat) -> None:
        dialog = InputDialog("Rename the chat", partial(self.set_title, chat.id), value=chat.title)
        self._screen.app.push_screen(dialog)

    async def set_title(self, chat_id: int, title: str) -> None:
        """Raises UserError."""
        if not title.strip():
            raise UserError("The title is empty.")
        await self._thread.do(lambda store: store.chats.rename(chat_id, title.strip()))
        await self._on_change()

    async def delete(self, chat: Chat, how_to_restore: str) -> None:
        """Delete a chat, which can be restored until it is purged. Raises UserError."""
        context = self._screen.app_context
        await context.session.stop_chat(chat.id)
        await self._thread.do(lambda store: store.chats.delete(chat.id))
        forgetting = forget_chat(context.connection, context.settings, chat.prompt_cache_key)
        self._screen.app.run_worker(forgetting)  # also when this screen is left
        self.deleted.append(chat)
        context.session.leave(chat.id)
        self._screen.inform(f"{quoted(chat)} is deleted. {how_to_restore}")
        await self._on_change()

    async def restore(self) -> Chat | None:
        """Restore the chat that was deleted last, and return it; None without one. Raises UserError."""
        if not self.deleted:
            self._screen.inform("There is no deleted chat to restore.")
            return None
        chat = self.deleted.pop()
        await self._thread.do(lambda store: store.chats.restore(chat.id))
        self._screen.inform(f"{quoted(chat)} is restored.")
        await self._on_change()
        return chat

    def ask_export(self, chat: Chat) -> None:
        # Letters and digits only: valid in a file name on every system.
        words = "".join(character if character.isalnum() else " " for character in chat.title).split()
        path = Path.home() / f"{'-'.join(words)[:60] or f'chat-{chat.id}'}.md"
        dialog = InputDialog("Export the chat", partial(self.export, chat.id), value=str(path), explanation=_FORMATS)
        self._screen.app.push_screen(dialog)

    async def export(self, chat_id: int, line: str) -> None:
        """Write a chat to the file `line`. One that takes longer goes on in the background, below its progress. Raises
        UserError."""
        path = path_of(line)
        write = export_of(path)
        transcript, content_of = await self._thread.do(lambda each: (each.transcripts.read(chat_id), each.files.read))
        progress = ExportProgress(transcript)
        # beside the store's own thread: the chat is saved meanwhile
        pieces = progress.watch(write([transcript], content_of))
        writing = asyncio.create_task(asyncio.to_thread(export_to, path, pieces))
        if (await asyncio.wait({writing}, timeout=_QUICK_S))[0]:
            writing.result()
            self._screen.inform(f"Exported to {path}.")
        else:
            self._screen.app.run_worker(self._follow(writing, path, progress), group="export")

    async def _follow(self, writing: asyncio.Task[None], path: Path, progress: ExportProgress) -> None:
        """Show how far an export is until it has ended; Esc, or the end of the app, stops it."""

        def stop() -> None:
            progress.is_stopped = True

        dialog = ProgressDialog("Export the chat", printable_line(str(path)), lambda: progress.share, stop)
        await self._screen.app.push_screen(dialog)
        try:
            await asyncio.shield(writing)
            self._screen.inform(f"Exported to {path}.")
        except UserError as error:
            self._screen.warn(str(error))
        finally:
            stop()
            dialog.end()


def path_of(line: str) -> Path:
    """Return the path that a person typed. Raises UserError for none."""
    if not line.strip():
        raise UserError("The file name is empty.")
    return Path(line.strip()).expanduser()


def quoted(chat: Chat) -> str:
    return f"“{printable_line(chat.title) or '(untitled)'}”"
