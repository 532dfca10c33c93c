"""The list of the chats at the side: a line for each, with a sign of what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from inspect import isawaitable
from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding, BindingType
from textual.content import Content

from app.chat.activity import SPINNER
from tui.chat.session import ChatSession
from tui.design.words import relative_time
from tui.history.chat_list import ChatList, HistoryRow, in_columns, marked_snippet, title_of
from tui.history.sidebar import ChatSidebar
from tui.widgets.screens import CommandScreen

if TYPE_CHECKING:
    from collections.abc import Mapping


class SidebarList(ChatList):
    """Rows of a few cells. Its letters are commands: whatever else is typed is for the prompt."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(each.key, each.action, each.description, show=False, id=each.id, tooltip=each.tooltip, priority=True)
        for each in ChatSidebar.KEYS
    ]

    def __init__(self, session: ChatSession) -> None:
        super().__init__()
        self._session = session
        self._n_turns = 0

    def turn(self) -> None:
        """Move the signs of the answers that are running, and draw only these rows."""
        self._n_turns += 1
        others = set(self._session.activities) - {self._session.chat.stored.id}
        turning = [index for index, row in enumerate(self.rows) if row.chat.id in others]
        if turning:
            self._option_render_cache.clear()
        for index in turning:
            line = self._index_to_line.get(self.option_of_row(index))
            if line is not None:
                self.refresh_line(line - self.scroll_offset.y)

    def go_to_open_chat(self) -> None:
        ids = [row.chat.id for row in self.rows]
        if self._session.chat.stored.id in ids:
            self.row_index = ids.index(self._session.chat.stored.id)

    def redraw(self) -> None:
        self._now = datetime.now().astimezone()
        self._option_render_cache.clear()
        self.refresh()

    def draw_row(self, row: HistoryRow, width: int) -> list[Content]:
        is_open = row.chat.id == self._session.chat.stored.id
        is_of_today = row.updated.astimezone(self._now.tzinfo).date() == self._now.date()
        fact = relative_time(row.updated, self._now) if is_of_today else f"{row.n_messages:,}"
        right = Content.assemble(" ", self._sign(row), (fact, "$text-muted"), " ")
        mark = Content.styled("▌" if is_open else "◆" if row.chat.is_pinned else " ", "$text-accent")
        title = title_of(row)
        lines = [in_columns(mark + (title.stylize("bold") if is_open else title), right, width)]
        if row.found_in_message is not None:
            found = Content.assemble("   ", marked_snippet(row.found_in_message))
            lines.append(found.stylize("$text-muted").truncate(width, ellipsis=True))
        return lines

    def _sign(self, row: HistoryRow) -> Content:
        activity: Mapping[int, str] = self._session.activities
        if row.chat.id not in activity and row.activity:  # of another window
            return Content.styled("◐ ", "$text-muted")
        match activity.get(row.chat.id, ""):
            case "asking":
                return Content.styled("! ", "bold $text-warning")
            case "answering" if row.chat.id == self._session.chat.stored.id:
                return Content.styled("◐ ", "$text-accent")
            case "answering":
                return Content.styled(f"{SPINNER[self._n_turns % len(SPINNER)]} ", "$text-accent")
        return Content.styled("● ", "$text-accent") if row.chat.id in self._session.unseen else Content("")

    # From keys to the sidebar

    def action_filter(self) -> None:
        self._sidebar.filter_chats()

    def action_rename(self) -> None:
        self._sidebar.rename_chat()

    async def action_delete(self) -> None:
        await self._report(self._sidebar.delete_chat)

    async def action_restore(self) -> None:
        await self._report(self._sidebar.restore_chat)

    async def _report(self, run: Callable[[], Awaitable[None] | None]) -> None:
        with cast("CommandScreen", self.screen).warn_on_error():
            outcome = run()
            if isawaitable(outcome):
                await outcome

    @property
    def _sidebar(self) -> ChatSidebar:
        return cast("ChatSidebar", self.parent)
