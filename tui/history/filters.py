"""The search field and the filters above the list of chats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.message import Message
from textual.widgets import Input, Select

from app.terminal import printable_line
from tui.history.query import AGES, ChatQuery

__all__ = ["ChatFilters", "SearchInput"]


class SearchInput(Input):
    """The search field. Down and Enter go to the list, Escape clears it first."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("down", "leave", "To the list", id="search-list", tooltip="Go to the search results"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *KEYS,
        Binding("escape", "give_up", "Clear", id="search-clear", tooltip="Empty the search and go to the list"),
    ]

    @dataclass
    class Left(Message):
        """The user goes to the list."""

    def __init__(self) -> None:
        super().__init__(placeholder="Search every chat (/)", compact=True, select_on_focus=False)
        self.cursor_blink = False

    def action_leave(self) -> None:
        """Go to the list."""
        self.post_message(self.Left())

    def action_give_up(self) -> None:
        """Clear the search and go to the list."""
        self.value = ""
        self.post_message(self.Left())


class ChatFilters(Container):
    """Posts Changed when any part of the query changes."""

    @dataclass
    class Changed(Message):
        """The query changed."""

    def compose(self) -> ComposeResult:
        yield SearchInput()
        with Horizontal():
            yield Select[str]([], prompt="All models", compact=True, id="model")
            yield Select([(text, n_days) for n_days, text in AGES.items()], allow_blank=False, compact=True, id="age")
            yield Select([("Active", False), ("Archived", True)], allow_blank=False, compact=True, id="archived")

    @property
    def search(self) -> SearchInput:
        return self.query_one(SearchInput)

    @property
    def chat_query(self) -> ChatQuery:
        """The current query."""
        model, age, archived = self._chosen("model"), self._chosen("age"), self._chosen("archived")
        return ChatQuery(typed=self.search.value, model=model, n_days=age or 0, is_archived=bool(archived))

    def offer(self, models: Iterable[str]) -> None:
        """Set the models to choose from; keep the chosen one."""
        chosen = self._chosen("model")
        names = list(models)
        select = self.query_one("#model", Select)
        with self.prevent(Select.Changed):
            select.set_options([(Text(printable_line(name)), name) for name in names])
            if chosen in names:
                select.value = chosen

    @on(Input.Changed)
    @on(Select.Changed)
    def _changed(self, event: Input.Changed | Select.Changed) -> None:
        event.stop()
        self.post_message(self.Changed())

    def _chosen(self, name: str) -> Any:
        return self.query_one(f"#{name}", Select).selection
