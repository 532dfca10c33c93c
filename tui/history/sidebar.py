"""The chats at the left of the open one, beside it in a wide terminal and over it in a narrow one: which of them
answer, have an answer that was not seen, or ask. Imports its list when that is filled: the first frame does without."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import on
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Key
from textual.message import Message
from textual.timer import Timer
from textual.widgets import OptionList, Static
from textual.worker import Worker

from app.chat.repository import SqliteChatRepository
from app.common.terminal import printable
from quantizer.system.errors import UserError
from tui.context import AppContext, BaseApp
from tui.design.search_box import SearchBox
from tui.widgets.screens import CommandScreen

if TYPE_CHECKING:
    from app.chat.store.chat_store import StoreThread
    from tui.history.chat_list import HistoryRow
    from tui.history.sidebar_list import SidebarList
    from tui.history.stored_chats import StoredChats

# From how many columns on the chats are beside the open one, by the setting.
LEAST_COLUMNS: dict[str, float] = {"auto": 110, "on": 80, "off": math.inf}
_READ_AFTER_S = 0.3
_TURN_S = 0.3  # of the sign of an answer that is running
_FOLLOWED_EVERY_S = 2.0
_NO_CHATS = "Every chat you start is listed here."
_NO_MATCH = "No chat matches."


class ChatSidebar(Vertical):
    """The stored chats in a column. It has no place where no chat is stored."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("slash", "filter", "Filter", id="sidebar-filter", tooltip="In the chats at the side: search them"),
        Binding("r,R", "rename", "Rename", id="sidebar-rename", tooltip="In the chats at the side: rename the chat"),
        Binding("delete,x", "delete", "Delete", id="sidebar-delete",
                tooltip="In the chats at the side: delete the chat; U brings it back"),
        Binding("u", "restore", "Undo", id="sidebar-undo", tooltip="In the chats at the side: restore a deleted chat"),
    )  # fmt: skip

    @dataclass
    class Typed(Message):
        """The person typed what is no command of the list."""

        text: str

    @dataclass
    class Left(Message):
        """The keys go back to the prompt."""

    def __init__(self, app_context: AppContext) -> None:
        super().__init__()
        self._app_context = app_context
        self._session = app_context.session
        self._is_over = False  # over the transcript, until it is left
        self._choice = ""  # as the person chose in this window, instead of the setting
        self._list: SidebarList | None = None
        self._stored: StoredChats | None = None
        self._shown_state: tuple[object, ...] = ()
        self._reading: Timer | None = None
        self._turning: Timer | None = None
        app_context.settings_controller.on_change("sidebar", self._obey_setting)

    @property
    def thread(self) -> StoreThread | None:
        repository = self._app_context.repository
        return repository.thread if isinstance(repository, SqliteChatRepository) else None

    @property
    def has_keys(self) -> bool:
        return self.has_focus_within

    def fit(self, n_columns: int) -> None:
        """Show the chats or hide them, as `n_columns` of the terminal and the setting have it."""
        setting = self._choice or self._app_context.settings_controller.settings.sidebar
        has_store = isinstance(self._app_context.repository, SqliteChatRepository)
        is_beside = has_store and n_columns >= LEAST_COLUMNS[setting]
        self._is_over = self._is_over and not is_beside
        self.set_class(self._is_over, "-over")
        self.display = is_beside or self._is_over

    async def toggle(self) -> None:
        """Show the chats and give them the keys; once they have them, hide the chats."""
        screen = cast("CommandScreen", self.screen)
        if self.thread is None:
            screen.inform("No chats are stored here.")
        elif not self.display:
            if screen.size.width >= LEAST_COLUMNS["auto"]:
                await self._remember("auto")
            else:
                self._is_over = True
            self.fit(screen.size.width)
            await self._enter()
        elif not self.has_keys:
            await self._enter()
        else:
            if not self._is_over:
                await self._remember("off")
            self.leave()

    def back(self) -> bool:
        """Take Esc: end the filter, else leave; return False if the chats have no keys and cover nothing."""
        if not (self.display and (self.has_keys or self._is_over)):
            return False
        for box in self.query(SearchBox):
            if box.display:
                box.value = ""
                box.display = False
                self._focus_list()
                return True
        self.leave()
        return True

    def leave(self) -> None:
        self._is_over = False
        self.fit(self.screen.size.width)
        self.post_message(self.Left())

    def scroll_pages(self, n_pages: int) -> None:
        if self._list is not None:
            (self._list.action_page_down if n_pages > 0 else self._list.action_page_up)()

    async def fill(self) -> None:
        """Read the first chats, once there is a place for them."""
        if not self.display:
            return
        if self._list is not None:
            self._read()
            return
        from tui.history.sidebar_list import SidebarList
        from tui.history.stored_chats import StoredChats

        thread = self.thread
        assert thread is not None, "it is not displayed without a store"
        fetched = await self._fetch(thread)
        if self._list is not None:  # filled meanwhile, for another size of the terminal
            return
        self._list = SidebarList(self._session)
        self._stored = StoredChats(cast("CommandScreen", self.screen), thread, self._read_again)
        box = SearchBox("filter")
        box.display = False
        with self.app.batch_update():  # one layout for the list and its rows
            await self.mount(Static("Chats", classes="part-title"), box, Static(markup=False, id="instead"), self._list)
            self._show(fetched)
            self._list.go_to_open_chat()  # also where the list has the keys already
        self._turning = self.set_interval(_TURN_S, self._list.turn, pause=True)
        self.set_interval(60, self._list.redraw)  # how long ago a chat was
        self.set_interval(_FOLLOWED_EVERY_S, self._follow_others)

    def follow(self) -> None:
        """Show what the open chats are at, and read the list again where a chat may have another place or title."""
        if self._list is None or not self.display:
            return
        chat, activities = self._session.chat, self._session.activities
        stored = (chat.stored.id, len(chat.conversation.messages), chat.has_news, frozenset(activities))
        state = (stored, tuple(activities.items()), self._session.unseen)
        if state == self._shown_state:
            return
        must_read = not self._shown_state or stored != self._shown_state[0]
        self._shown_state = state
        self._list.redraw()
        if not self.has_keys:
            self._list.go_to_open_chat()
        if self._turning is not None:
            # The sign of the shown chat stands still: that it answers is seen, and drawing it costs the answer time.
            (self._turning.resume if set(activities) - {chat.stored.id} else self._turning.pause)()
        if must_read:
            self.read_soon()

    def _follow_others(self) -> None:
        """Read the list again while other windows answer: nobody says when they have ended."""
        if self._list is not None and self.display and any(row.activity for row in self._list.rows):
            self._read()

    def read_soon(self) -> None:
        if self._list is not None and self.display:
            if self._reading is not None:
                self._reading.stop()
            self._reading = self.set_timer(_READ_AFTER_S, self._read)

    def _obey_setting(self) -> None:
        self._choice = ""
        self.fit(self.screen.size.width)
        self.call_later(self.fill)

    async def _remember(self, choice: str) -> None:
        try:
            await self._app_context.settings_controller.change("sidebar", choice)
        except UserError as error:  # it holds in this window all the same
            cast("CommandScreen", self.screen).warn(f"This is not remembered. {error}")
        self._choice = choice

    async def _enter(self) -> None:
        """Give the keys to the list, on the open chat."""
        await self.fill()
        if self._list is not None:
            self._list.go_to_open_chat()
        self._focus_list()

    def _focus_list(self) -> None:
        """Give the keys to the list at once: the next one may be queued already."""
        if self._list is not None:
            self.screen.set_focus(self._list)

    # Reading the list

    async def _read_again(self) -> None:
        self._read()

    def _read(self, *, is_new_query: bool = False) -> None:
        self._run(partial(self._read_list, is_new_query))

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        _: Worker[None] = self.run_worker(work, group="chats", exclusive=True)

    async def _read_list(self, is_new_query: bool) -> None:
        if self.thread is not None:
            self._show(await self._fetch(self.thread, is_new_query=is_new_query), is_new_query=is_new_query)

    async def _fetch(self, thread: StoreThread, *, is_new_query: bool = False) -> tuple[list[HistoryRow], bool] | str:
        """Return as many rows as are shown, at least a page, and whether there are no more; or why there are none."""
        from app.chat.store.tables import PAGE_SIZE
        from tui.history.chat_list import ChatQuery, fetch_rows

        n_rows = PAGE_SIZE
        if self._list is not None and not is_new_query:
            n_rows = max(n_rows, len(self._list.rows) + self._list.is_complete)
        try:
            rows = await fetch_rows(thread, ChatQuery(typed=self._typed), n_rows)
        except UserError as error:
            return f" {printable(str(error))}"
        return rows, len(rows) < n_rows

    def _show(self, fetched: tuple[list[HistoryRow], bool] | str, *, is_new_query: bool = False) -> None:
        chats = self._list
        if chats is None or isinstance(fetched, str):
            self._show_instead(fetched if isinstance(fetched, str) else "")
            return
        rows, is_complete = fetched
        if rows != chats.rows or is_new_query:
            chats.show(rows, is_complete=is_complete, is_new_query=is_new_query)
        if not self.has_keys:
            chats.go_to_open_chat()
        self._show_instead("" if rows else _NO_MATCH if self._typed.strip() else _NO_CHATS)

    @property
    def _typed(self) -> str:
        """What is typed in the search box."""
        return next((box.value for box in self.query(SearchBox)), "")

    def _show_instead(self, text: str) -> None:
        for instead in self.query("#instead").results(Static):
            instead.update(text)
            instead.display = bool(text)

    async def _read_more(self) -> None:
        from tui.history.chat_list import ChatQuery, fetch_rows

        chats, thread = self._list, self.thread
        if chats is not None and thread is not None:
            query, n_rows = ChatQuery(typed=self._typed), chats.n_wanted
            with cast("CommandScreen", self.screen).warn_on_error():
                rows = await fetch_rows(thread, query, n_rows, tuple(chats.rows))
                chats.add(rows, is_complete=len(rows) < n_rows)

    # From keys and clicks

    async def on_chat_list_rows_needed(self, event: Message) -> None:
        event.stop()
        self._run(self._read_more)

    @on(SearchBox.Changed)
    def _filter_changed(self, event: SearchBox.Changed) -> None:
        event.stop()
        self._read(is_new_query=True)

    @on(SearchBox.Left)
    def _go_to_list(self, event: SearchBox.Left) -> None:
        event.stop()
        self._focus_list()

    @on(OptionList.OptionSelected)
    async def _open(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if self._list is not None:
            row = self._list.row_of_option(event.option_index)
            self.leave()
            if row.chat.id != self._session.chat.stored.id or row.message_id is not None:
                await cast("BaseApp", self.app).open_chat(row.chat.id, row.message_id)

    def on_key(self, event: Key) -> None:
        """Give what is typed in the list to the prompt, and let no letter be a command of messages."""
        if self._list is not None and self._list.has_focus:
            if event.is_printable and event.character:
                event.stop()
                self.post_message(self.Typed(event.character))
            elif event.key in ("left", "right"):
                event.stop()

    def filter_chats(self) -> None:
        box = self.query_one(SearchBox)
        box.display = True
        self.screen.set_focus(box)

    def rename_chat(self) -> None:
        if self._stored is not None and self._list is not None and self._list.row is not None:
            self._stored.rename(self._list.row.chat)

    def delete_chat(self) -> Awaitable[None] | None:
        if self._stored is None or self._list is None or self._list.row is None:
            return None
        return self._stored.delete(self._list.row.chat, "U restores it.")

    async def restore_chat(self) -> None:
        if self._stored is not None:
            await self._stored.restore()
