"""A place besides the chat: a bar that names all places on top, its keys at the bottom, Esc back to the chat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Footer

from tui.places import HOME
from tui.resources import Resources
from tui.screens.command_screen import CommandScreen
from tui.widgets.place_bar import PlaceBar

__all__ = ["PlaceScreen"]


class PlaceScreen(CommandScreen):
    """A subclass gives PLACE, TABLE with their bindings, `body`, and a CSS_PATH with `place_screen.tcss` in it: Textual
    does not look for those of the classes above."""

    CSS_PATH: ClassVar[Any] = ["place_screen.tcss"]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-wide")]  # noqa: RUF012 - Textual declares no class variable
    PLACE: ClassVar[str]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", f"command('go-{HOME}')", "Chat", id="back", tooltip="Go back to the chat"),
    ]

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self.resources = resources

    def compose(self) -> ComposeResult:
        yield PlaceBar(self.PLACE, self.resources.book.keys)
        yield from self.body()
        yield Footer(compact=True, show_command_palette=False)

    def on_screen_resume(self) -> None:
        self.query_one(PlaceBar).show(self.resources.book.keys)

    def body(self) -> Iterable[Widget]:
        """Yield what is between the bar and the keys."""
        raise NotImplementedError
