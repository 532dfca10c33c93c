"""The history screen: stored chats to find, open, rename, archive, delete, import and export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

from textual import on, work
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from app.chat.conversation import Chat
from app.chat.files import ImportResult, export_of, export_to, import_file
from app.chat.repository import delete_prefixes
from app.chat.session import OpenChat
from app.chat.store.chat_store import ChatStore, StoreThread
from app.chat.store.tables import PAGE_SIZE
from app.common.event_log import log_event
from app.common.terminal import printable_line
from quantizer.system.errors import StorageError, UserError
from tui.commands import Command, CommandTable, list_command
from tui.connection import localllm_service
from tui.context import AppContext, BaseApp
from tui.history.chat_list import ChatFilters, ChatList, ChatQuery, HistoryRow, SearchInput, fetch_rows
from tui.widgets.dialogs import InputDialog
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

HISTORY_COMMANDS = CommandTable(
    Command("chats-search", "Search", "Search titles and messages; Down goes to the results", "go_to_search",
            keys="slash,ctrl+f", is_shown=True),  # with priority: the next key is text; check_action protects typing
    list_command("chats-rename", "Rename", "r", "Rename the chat", "rename_chat"),
    list_command("chats-pin", "Pin", "p", "Pin the chat to the top, or unpin it", "pin_chat"),
    list_command("chats-archive", "Archive", "a", "Archive the chat, or unarchive it", "archive_chat"),
    list_command("chats-delete", "Delete", "delete,x", "Delete the chat; it can be restored for a week", "delete_chat"),
    list_command("chats-undo", "Undo", "u", "Restore the last deleted chat", "restore_chat"),
    list_command("chats-duplicate", "Duplicate", "d", "Copy the chat with all its branches", "duplicate_chat",
                 is_shown=False),
    list_command("chats-export", "Export", "e", "Export the chat; the file extension selects Markdown, JSON or HTML",
                 "export_chat", is_shown=False),
    list_command("chats-import", "Import", "i",
                 "Import chats from a JSON file of localllm, ChatGPT, Open WebUI or Ollama", "import_chats",
                 is_shown=False),
)  # fmt: skip


class HistoryScreen(FeatureScreen):
    """All stored chats."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "history.tcss"]
    FEATURE = "chats"
    TABLE = HISTORY_COMMANDS
    KEYS = (*ChatList.KEYS, *SearchInput.KEYS)
    BINDINGS = HISTORY_COMMANDS.bindings()

    def __init__(self, app_context: AppContext) -> None:
        super().__init__(app_context)
        self._thread = StoreThread(app_context.settings.data_dir)
        self._deleted: list[Chat] = []
        self._was_left = False

    def body(self) -> Iterable[Widget]:
        yield ChatFilters()
        yield ChatList()
        yield Static("", markup=False, id="count")

    def on_mount(self) -> None:
        self.chat_list.focus()
        self.app_context.session.watch(self._answers_changed)

    async def on_unmount(self) -> None:
        await self._thread.close()

    def on_screen_suspend(self) -> None:
        self._was_left = self.app.current_mode != self.FEATURE  # else a dialog is open

    def on_screen_resume(self) -> None:
        """Show all chats again to who comes back: a former search would hide the new ones."""
        is_new_query = self._was_left and self.filters.clear()
        self._was_left = False
        self._reload(is_new_query=is_new_query)

    @property
    def chat_list(self) -> ChatList:
        return self.query_one(ChatList)

    @property
    def filters(self) -> ChatFilters:
        return self.query_one(ChatFilters)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        is_typing = isinstance(self.focused, Input)
        return not (is_typing and action == "command" and self.TABLE.find(str(parameters[0])))

    # Reading the list

    @on(ChatFilters.Changed)
    def _query_changed(self) -> None:
        self._reload(is_new_query=True)

    @work(group="read", exclusive=True)
    async def _reload(self, *, is_new_query: bool = False) -> None:
        """Read the list from its start: as many rows as shown, or one page if `is_new_query` list was requested."""
        chat_query = self.filters.chat_query
        # One more row shows whether the list is still complete.
        n_shown = len(self.chat_list.rows) + self.chat_list.is_complete
        n_rows = PAGE_SIZE if is_new_query else max(PAGE_SIZE, n_shown)
        with self.warn_on_error():
            models = await self._thread.do(lambda store: store.chats.models())
            rows = self._marked(await fetch_rows(self._thread, chat_query, n_rows))
            if self.query("#count"):  # nothing is left while the app closes
                self.filters.offer(models)
                self.chat_list.show(rows, is_complete=len(rows) < n_rows, is_new_query=is_new_query)
                self._show_count(chat_query)

    @on(ChatList.RowsNeeded)
    @work(group="read", exclusive=True)
    async def _read_more(self) -> None:
        chat_query, n_rows = self.filters.chat_query, self.chat_list.n_wanted
        with self.warn_on_error():
            rows = self._marked(await fetch_rows(self._thread, chat_query, n_rows, tuple(self.chat_list.rows)))
            if self.query("#count"):
                self.chat_list.add(rows, is_complete=len(rows) < n_rows)
                self._show_count(chat_query)

    def _answers_changed(self, _: Sequence[OpenChat]) -> None:
        if self.is_current:
            self._reload()

    def _marked(self, rows: Sequence[HistoryRow]) -> list[HistoryRow]:
        activities = self.app_context.session.activities
        return [replace(row, activity=activities.get(row.chat.id, "")) for row in rows]

    def _show_count(self, chat_query: ChatQuery) -> None:
        n_rows = len(self.chat_list.rows)
        some = f"{n_rows} chats" if n_rows != 1 else "1 chat"
        none = "No chat matches." if chat_query.is_narrowed else "No chats yet: every chat you start is saved here."
        more = "" if self.chat_list.is_complete else " shown, more below"
        self.query_one("#count", Static).update(f"{some}{more}" if n_rows else none)

    # Command handlers

    def go_to_search(self) -> None:
        """Focus the search at once, not by `focus`: the next key is text, not a command of the list."""
        self.set_focus(self.filters.search)

    @on(SearchInput.Left)
    @on(Input.Submitted)
    def _go_to_list(self) -> None:
        self.chat_list.focus()

    @on(OptionList.OptionSelected, "ChatList")
    async def _open(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        row = self.chat_list.rows[event.option_index]
        await cast("BaseApp", self.app).open_chat(row.chat.id, row.message_id)

    def rename_chat(self) -> None:
        if chat := self._chosen():
            self.app.push_screen(InputDialog("Rename the chat", partial(self._rename, chat.id), value=chat.title))

    async def _rename(self, chat_id: int, title: str) -> None:
        if not title.strip():
            raise UserError("The title is empty.")
        await self._thread.do(lambda store: store.chats.rename(chat_id, title.strip()))
        self._reload()

    async def pin_chat(self) -> None:
        if chat := self._chosen():
            await self._change(lambda store: store.chats.pin(chat.id, not chat.is_pinned))

    async def archive_chat(self) -> None:
        if chat := self._chosen():
            await self._change(lambda store: store.chats.archive(chat.id, not chat.is_archived))
            self.inform(f"{_quoted(chat)} is {'unarchived' if chat.is_archived else 'archived'}.")

    async def duplicate_chat(self) -> None:
        if chat := self._chosen():
            await self._change(lambda store: store.transcripts.duplicate(chat.id))

    async def delete_chat(self) -> None:
        if chat := self._chosen():
            await self.app_context.session.stop_chat(chat.id)
            await self._change(lambda store: store.chats.delete(chat.id))
            self.app.run_worker(_delete_prefixes(self.app_context, chat))  # also when this screen is left
            self._deleted.append(chat)
            self.inform(f"{_quoted(chat)} is deleted. U restores it.")

    async def restore_chat(self) -> None:
        if not self._deleted:
            self.inform("There is no deleted chat to restore.")
            return
        chat = self._deleted.pop()
        await self._change(lambda store: store.chats.restore(chat.id))
        self.inform(f"{_quoted(chat)} is restored.")

    def export_chat(self) -> None:
        if chat := self._chosen():
            # Letters and digits only: valid in a file name on every system.
            words = "".join(character if character.isalnum() else " " for character in chat.title).split()
            path = Path.home() / f"{'-'.join(words)[:60] or f'chat-{chat.id}'}.md"
            explanation = "The extension selects the format: .md, .json (with every branch) or .html."
            take = partial(self._export, chat.id)
            self.app.push_screen(InputDialog("Export the chat", take, value=str(path), explanation=explanation))

    async def _export(self, chat_id: int, line: str) -> None:
        path = _path(line)
        export = export_of(path)
        await self._thread.do(lambda each: export_to(path, export([each.transcripts.read(chat_id)], each.files.read)))
        self.inform(f"Exported to {path}.")

    def import_chats(self) -> None:
        explanation = "A JSON file of localllm, ChatGPT (conversations.json), Open WebUI or Ollama's messages."
        self.app.push_screen(InputDialog("Import chats", self._import, explanation=explanation))

    async def _import(self, line: str) -> None:
        taken: ImportResult = await self._thread.do(partial(import_file, _path(line)))
        imported = f"Imported chats: {len(taken.ids)}."
        if taken.skipped:
            first = taken.skipped[0]
            skipped = f"Skipped: {len(taken.skipped)}. First: {first.place} {first.why}."
            self.warn(f"{imported} {skipped} `localllm chats import` lists them all.")
        else:
            self.inform(imported)
        self._reload()

    # The store

    def _chosen(self) -> Chat | None:
        row = self.chat_list.row
        if row is None:
            self.inform("No chat is selected.")
        return row.chat if row else None

    async def _change(self, action: Callable[[ChatStore], object]) -> None:
        with self.warn_on_error():
            await self._thread.do(action)
        self._reload()


async def _delete_prefixes(app_context: AppContext, chat: Chat) -> None:
    """Delete what was computed of a deleted chat, and log what kept it from being deleted."""

    async def forget(keys: Sequence[str]) -> None:
        await (await localllm_service(app_context.connection)).forget_prefixes(keys)

    settings = app_context.settings
    try:
        failure: UserError | None = await delete_prefixes(
            [chat.prompt_cache_key], settings.cache_dir, forget, is_own_service=not settings.connect
        )
    except StorageError as error:
        failure = error
    if failure is not None:
        log_event("app", f"The prefixes of a deleted chat may be left: {failure}")


def _path(line: str) -> Path:
    if not line.strip():
        raise UserError("The file name is empty.")
    return Path(line.strip()).expanduser()


def _quoted(chat: Chat) -> str:
    return f"“{printable_line(chat.title) or '(untitled)'}”"
