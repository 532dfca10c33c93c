"""The field for words to search for, above a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

__all__ = ["SearchField"]


class SearchField(Input):
    """Posts what is typed as Input does; Down and Enter lead into the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,enter", "leave_for_list", "List", show=False, id="to-list", tooltip="Go to the list"),
    ]

    @dataclass
    class Left(Message):
        """The person goes on to the list."""

    def action_leave_for_list(self) -> None:
        """Let whoever owns the list have the focus."""
        self.post_message(self.Left())
