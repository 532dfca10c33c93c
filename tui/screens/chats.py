"""The chats that are kept: found, named, put away, taken in and out.

Owns what is asked of the store, and what is said of it. Which chats are listed is decided in `tui.shelf`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from textual import on, work
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from app.chat.chat import Chat
from app.chat.chats import PAGE_SIZE
from app.chat.exporting import export_of, export_to
from app.chat.importing import TakenIn, take_in
from app.chat.store import ChatStore
from app.chat.store_thread import StoreThread
from app.terminal import printable_line
from quantizer.errors import UserError
from tui.chats_commands import CHATS_COMMANDS
from tui.resources import Resources
from tui.screens.ask_line import AskLine
from tui.screens.place_screen import PlaceScreen
from tui.shelf import Row, Wanted, read_rows
from tui.widgets.chat_filters import ChatFilters, SearchInput
from tui.widgets.chat_list import ChatList

if TYPE_CHECKING:
    from tui.app import LocalllmApp

__all__ = ["ChatsScreen"]

_Result = TypeVar("_Result")


class ChatsScreen(PlaceScreen):
    """Every chat of this person; fulfils `tui.chats_commands.ChatsActions`."""

    CSS_PATH: ClassVar[Any] = ["place_screen.tcss", "chats.tcss"]
    PLACE = "chats"
    TABLE = CHATS_COMMANDS
    KEYS = (*ChatList.KEYS, *SearchInput.KEYS)
    BINDINGS = CHATS_COMMANDS.bindings()

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self._thread = StoreThread(resources.settings.data_dir)
        self._deleted: list[Chat] = []

    def body(self) -> Iterable[Widget]:
        yield ChatFilters()
        yield ChatList()
        yield Static("", markup=False, id="count")

    def on_mount(self) -> None:
        self.chat_list.focus()

    async def on_unmount(self) -> None:
        await self._thread.close()

    def on_screen_resume(self) -> None:
        self._read_anew()

    @property
    def chat_list(self) -> ChatList:
        return self.query_one(ChatList)

    @property
    def filters(self) -> ChatFilters:
        return self.query_one(ChatFilters)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While words are typed, letters are letters."""
        is_typing = isinstance(self.focused, Input)
        return not (is_typing and action == "command" and self.TABLE.find(str(parameters[0])))

    # What is on the list

    @on(ChatFilters.Changed)
    def _wanted_changed(self) -> None:
        self._read_anew()

    @on(ChatList.NearEnd)
    def _near_end(self) -> None:
        self._read_more()

    @work(group="read", exclusive=True)
    async def _read_anew(self) -> None:
        wanted = self.filters.wanted
        n_rows = max(PAGE_SIZE, len(self.chat_list.rows))
        found = await self._attempt(partial(_read_list, wanted, n_rows))
        if found is not None:
            models, rows = found
            self.filters.offer(models)
            self.chat_list.show(rows)
            self._tell_count(wanted)

    @work(group="read", exclusive=True)
    async def _read_more(self) -> None:
        wanted, shown = self.filters.wanted, tuple(self.chat_list.rows)
        rows = await self._attempt(partial(read_rows, wanted, datetime.now().astimezone(), shown))
        if rows is not None:
            self.chat_list.add(rows)
            self._tell_count(wanted)

    def _tell_count(self, wanted: Wanted) -> None:
        n_rows = len(self.chat_list.rows)
        some = f"{n_rows} chats" if n_rows != 1 else "1 chat"
        none = (
            "No chat is like that." if wanted.is_narrowed else "No chat is kept yet: what you say in the chat will be."
        )
        more = " so far" if n_rows and n_rows % PAGE_SIZE == 0 else ""
        self.query_one("#count", Static).update(f"{some}{more}" if n_rows else none)

    # What the commands do

    def go_to_search(self) -> None:
        """Type words to look for. From the very next key on, so not by `focus`: letters are commands of the list."""
        self.set_focus(self.filters.search)

    @on(SearchInput.Left)
    @on(Input.Submitted)
    def _go_to_list(self) -> None:
        self.chat_list.focus()

    @on(OptionList.OptionSelected, "ChatList")
    async def _open(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        row = self.chat_list.rows[event.option_index]
        await cast("LocalllmApp", self.app).open_chat(row.chat.id, row.message_id)

    def rename_chat(self) -> None:
        """Ask for another title."""
        if chat := self._chosen():
            self.app.push_screen(AskLine("Rename the chat", partial(self._rename, chat.id), value=chat.title))

    async def _rename(self, chat_id: int, title: str) -> None:
        if not title.strip():
            raise UserError("A chat needs a title.")
        await self._thread.do(lambda store: store.chats.rename(chat_id, title.strip()))
        self._read_anew()

    async def pin_chat(self) -> None:
        """Pin the chat, or unpin it."""
        if chat := self._chosen():
            await self._change(lambda store: store.chats.pin(chat.id, not chat.is_pinned))

    async def archive_chat(self) -> None:
        """Archive the chat, or take it back into the list."""
        if chat := self._chosen():
            await self._change(lambda store: store.chats.archive(chat.id, not chat.is_archived))
            self.say(f"{_quoted(chat)} is {'back in the list' if chat.is_archived else 'archived'}.")

    async def duplicate_chat(self) -> None:
        """Copy the chat."""
        if chat := self._chosen():
            await self._change(lambda store: store.transcripts.duplicate(chat.id))

    async def delete_chat(self) -> None:
        """Delete the chat, and say how to bring it back."""
        if chat := self._chosen():
            await self._change(lambda store: store.chats.delete(chat.id))
            self._deleted.append(chat)
            self.say(f"{_quoted(chat)} is deleted. U brings it back.")

    async def restore_chat(self) -> None:
        """Bring back the chat that was deleted last here."""
        if not self._deleted:
            self.say("Nothing was deleted here.")
            return
        chat = self._deleted.pop()
        await self._change(lambda store: store.chats.restore(chat.id))
        self.say(f"{_quoted(chat)} is back.")

    def export_chat(self) -> None:
        """Ask where to write the chat."""
        if chat := self._chosen():
            path = Path.home() / f"{_file_name(chat)}.md"
            explanation = "The name's ending says how: .md, .json (with every branch) or .html."
            take = partial(self._export, chat.id)
            self.app.push_screen(AskLine("Export the chat", take, value=str(path), explanation=explanation))

    async def _export(self, chat_id: int, line: str) -> None:
        path = _path(line)
        await self._thread.do(partial(_write, chat_id, path))
        self.say(f"Written to {path}.")

    def import_chats(self) -> None:
        """Ask which file to take in."""
        explanation = "A JSON file of localllm, ChatGPT (conversations.json), Open WebUI or Ollama's messages."
        self.app.push_screen(AskLine("Import chats", self._import, explanation=explanation))

    async def _import(self, line: str) -> None:
        taken: TakenIn = await self._thread.do(partial(take_in, _path(line)))
        self.say(f"Chats taken in: {len(taken.ids)}.")
        if taken.left_out:
            first = taken.left_out[0]
            told = f"Left out: {len(taken.left_out)}. First: {first.place} {first.why}. "
            self.warn(f"{told}`localllm chats import` lists them all.")
        self._read_anew()

    # The store

    def _chosen(self) -> Chat | None:
        """The chat that a command is for; says so where there is none."""
        row = self.chat_list.row
        if row is None:
            self.say("No chat is chosen.")
        return row.chat if row else None

    async def _change(self, action: Callable[[ChatStore], object]) -> None:
        await self._attempt(action)
        self._read_anew()

    async def _attempt(self, action: Callable[[ChatStore], _Result]) -> _Result | None:
        """Return what `action` does with the store; None where it fails, which is said."""
        try:
            return await self._thread.do(action)
        except UserError as error:
            self.warn(str(error))
            return None


def _read_list(wanted: Wanted, n_rows: int, store: ChatStore) -> tuple[list[str], list[Row]]:
    return store.chats.models(), read_rows(wanted, datetime.now().astimezone(), (), store, n_rows)


def _write(chat_id: int, path: Path, store: ChatStore) -> None:
    export_to(path, export_of(path)([store.transcripts.read(chat_id)]))


def _path(line: str) -> Path:
    if not line.strip():
        raise UserError("No file is named.")
    return Path(line.strip()).expanduser()


def _quoted(chat: Chat) -> str:
    return f"“{printable_line(chat.title) or '(untitled)'}”"


def _file_name(chat: Chat) -> str:
    """A name for a file of this chat that every system takes."""
    words = "".join(character if character.isalnum() else " " for character in chat.title).split()
    return "-".join(words)[:60] or f"chat-{chat.id}"
