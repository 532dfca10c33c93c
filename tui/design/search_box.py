"""The search row of every list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input


class SearchBox(Input):
    """One row to type in. Down and Enter go to the list, Esc clears the text and then goes there too; without a text it
    leaves the screen as it does elsewhere. The screen listens to `Input.Changed` and to `Left`."""

    DEFAULT_CSS = """
    SearchBox {
        height: 1;
        width: 1fr;
        border: none;
        padding: 0 1;
        background: $surface;
    }
    SearchBox:focus { border: none; background: $panel; }
    SearchBox > .input--placeholder { color: $text-muted; }
    """
    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("down", "leave", "To the list", id="search-list", tooltip="Go to the search results"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "leave", "List", id="to-list", tooltip="Go to the list"),
        Binding("enter", "leave(True)", "List", show=False, id="enter-list", tooltip="Go to the list"),
        Binding("escape", "clear_or_leave", "Clear", id="clear-search", tooltip="Clear the text"),
    ]

    @dataclass
    class Left(Message):
        """The user goes to the list, by Enter if `is_entered`."""

        is_entered: bool = False

    def __init__(self, what: str) -> None:
        """`what` completes "/ ", such as "filter"."""
        super().__init__(placeholder=f"/ {what}", compact=True, select_on_focus=False)
        self.cursor_blink = False

    def action_leave(self, is_entered: bool = False) -> None:
        self.post_message(self.Left(is_entered))

    def action_clear_or_leave(self) -> None:
        if not self.value:
            raise SkipAction
        self.value = ""
        self.post_message(self.Left())
