"""The history screen: stored chats to find, open, rename, archive, delete, import and export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

from textual import on, work
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from app.chat.conversation import Chat
from app.chat.files import ImportResult, import_file
from app.chat.session import OpenChat
from app.chat.store.chat_store import ChatStore, StoreThread
from app.chat.store.tables import PAGE_SIZE
from app.common.terminal import printable
from quantizer.system.errors import UserError
from tui.commands import Command, CommandTable, list_command
from tui.context import AppContext, BaseApp
from tui.design.header import ScreenHeader
from tui.design.search_box import SearchBox
from tui.design.words import counted
from tui.history.chat_list import ChatFilters, ChatList, HistoryRow, fetch_rows
from tui.history.stored_chats import StoredChats, path_of, quoted
from tui.widgets.dialogs import InputDialog
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

HISTORY_COMMANDS = CommandTable(
    Command("chats-search", "Search", "Search titles and messages; Down goes to the results", "go_to_search",
            keys="slash,ctrl+f", is_shown=True),  # with priority: the next key is text; check_action protects typing
    list_command("chats-rename", "Rename", "r", "Rename the chat", "rename_chat", takes_text=True),
    list_command("chats-pin", "Pin", "p", "Pin the chat to the top, or unpin it", "pin_chat"),
    list_command("chats-archive", "Archive", "a", "Archive the chat, or unarchive it", "archive_chat"),
    list_command("chats-delete", "Delete", "delete,x", "Delete the chat; it can be restored for a week", "delete_chat"),
    list_command("chats-undo", "Undo", "u", "Restore the last deleted chat", "restore_chat"),
    list_command("chats-duplicate", "Duplicate", "d", "Copy the chat with all its branches", "duplicate_chat",
                 is_shown=False),
    list_command("chats-export", "Export", "e", "Export the chat; the file extension selects Markdown, JSON or HTML",
                 "export_chat", is_shown=False, takes_text=True),
    list_command("chats-import", "Import", "i",
                 "Import chats from a JSON file of localllm, ChatGPT, Open WebUI or Ollama", "import_chats",
                 is_shown=False),
)  # fmt: skip


_OF_A_ROW = frozenset(("chats-rename", "chats-pin", "chats-archive", "chats-delete", "chats-duplicate", "chats-export"))
_NO_CHATS = "No chats yet: every chat you start is saved here. Esc goes back to the chat."
_NO_MATCH = "No chat matches. Esc in the search row clears it; the menus beside it may leave chats out."


class HistoryScreen(FeatureScreen):
    """All stored chats."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "history.tcss"]
    FEATURE = "chats"
    TABLE = HISTORY_COMMANDS
    KEYS = (*ChatList.KEYS, *SearchBox.KEYS)
    BINDINGS = HISTORY_COMMANDS.bindings()

    def __init__(self, app_context: AppContext) -> None:
        super().__init__(app_context)
        self._thread = StoreThread(app_context.settings.data_dir)
        self._stored = StoredChats(self, self._thread, self._changed)
        self._was_left = False

    def body(self) -> Iterable[Widget]:
        yield ChatFilters()
        yield Static("Reading the chats…", markup=False, id="instead")
        yield ChatList()

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
        """Leave letters to the search, and show keys as dead that have nothing to act on."""
        if action != "command" or not self.TABLE.find(str(parameters[0])):
            return True
        if isinstance(self.focused, Input):
            return False
        is_dead = parameters[0] in _OF_A_ROW and not (self.is_mounted and self.chat_list.row)
        return None if is_dead or (parameters[0] == "chats-undo" and not self._stored.deleted) else True

    def show_facts(self, header: ScreenHeader) -> None:
        if self.chat_list.rows:
            more = "" if self.chat_list.is_complete else " shown, more below"
            header.show_facts(f"{counted(len(self.chat_list.rows), 'chat')}{more}")
        else:
            super().show_facts(header)

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
        try:
            models = await self._thread.do(lambda store: store.chats.models())
            rows = self._marked(await fetch_rows(self._thread, chat_query, n_rows))
        except UserError as error:
            self._show_instead(f"The chats cannot be read. {printable(str(error))} F5 tries again.")
            return
        if self.query(ChatList):  # nothing is left while the app closes
            self.filters.offer(models)
            self.chat_list.show(rows, is_complete=len(rows) < n_rows, is_new_query=is_new_query)
            self._show_instead("" if rows else _NO_MATCH if chat_query.is_narrowed else _NO_CHATS)

    @on(ChatList.RowsNeeded)
    @work(group="read", exclusive=True)
    async def _read_more(self) -> None:
        chat_query, n_rows = self.filters.chat_query, self.chat_list.n_wanted
        with self.warn_on_error():
            rows = self._marked(await fetch_rows(self._thread, chat_query, n_rows, tuple(self.chat_list.rows)))
            if self.query(ChatList):
                self.chat_list.add(rows, is_complete=len(rows) < n_rows)
                self.show_facts(self.query_one(ScreenHeader))

    @on(OptionList.OptionHighlighted, "ChatList")
    def _highlighted(self) -> None:
        self.refresh_bindings()

    def _answers_changed(self, _: Sequence[OpenChat]) -> None:
        if self.is_current:
            self._reload()

    def _marked(self, rows: Sequence[HistoryRow]) -> list[HistoryRow]:
        activities = self.app_context.session.activities
        return [replace(row, activity=activities.get(row.chat.id, row.activity)) for row in rows]

    def _show_instead(self, text: str) -> None:
        """Show `text` where the list is empty."""
        for instead in self.query("#instead").results(Static):
            instead.update(text)
            instead.display = bool(text)
            self.show_facts(self.query_one(ScreenHeader))
            self.refresh_bindings()

    # Command handlers

    def go_to_search(self) -> None:
        """Focus the search at once, not by `focus`: the next key is text, not a command of the list."""
        self.set_focus(self.filters.search)

    @on(SearchBox.Left)
    def _go_to_list(self) -> None:
        self.chat_list.focus()

    @on(OptionList.OptionSelected, "ChatList")
    async def _open(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        row = self.chat_list.row_of_option(event.option_index)
        await cast("BaseApp", self.app).open_chat(row.chat.id, row.message_id)

    def rename_chat(self) -> None:
        if chat := self._chosen():
            self._stored.rename(chat)

    async def pin_chat(self) -> None:
        if chat := self._chosen():
            await self._change(lambda store: store.chats.pin(chat.id, not chat.is_pinned))

    async def archive_chat(self) -> None:
        if chat := self._chosen():
            await self._change(lambda store: store.chats.archive(chat.id, not chat.is_archived))
            self.inform(f"{quoted(chat)} is {'unarchived' if chat.is_archived else 'archived'}.")

    async def duplicate_chat(self) -> None:
        if chat := self._chosen():
            await self._change(lambda store: store.transcripts.duplicate(chat.id))

    async def delete_chat(self) -> None:
        if chat := self._chosen():
            with self.warn_on_error():
                await self._stored.delete(chat, "U restores it.")

    async def restore_chat(self) -> None:
        with self.warn_on_error():
            await self._stored.restore()

    def export_chat(self) -> None:
        if chat := self._chosen():
            self._stored.ask_export(chat)

    def import_chats(self) -> None:
        explanation = "A JSON file of localllm, ChatGPT (conversations.json), Open WebUI or Ollama's messages."
        self.app.push_screen(InputDialog("Import chats", self._import, explanation=explanation))

    async def _import(self, line: str) -> None:
        taken: ImportResult = await self._thread.do(partial(import_file, path_of(line)))
        imported = f"Imported {counted(len(taken.ids), 'chat')}."
        if not taken.skipped:
            self.inform(imported)
            return
        first, n_more = taken.skipped[0], len(taken.skipped) - 1
        more = f" {n_more:,} more: `localllm chats import FILE` lists them." if n_more else ""
        self.warn(f"{imported} Not taken over: {first.place} {first.why}.{more}")
        self._reload()

    # The store

    def _chosen(self) -> Chat | None:
        row = self.chat_list.row
        if row is None:
            self.inform("No chat is selected.")
        return row.chat if row else None

    async def _changed(self) -> None:
        self._reload()

    async def _change(self, action: Callable[[ChatStore], object]) -> None:
        with self.warn_on_error():
            await self._thread.do(action)
        self._reload()
