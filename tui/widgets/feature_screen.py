"""The bar that names all places, the one that a person is in stressed.

A place besides the chat: a bar that names all places on top, its keys at the bottom, Esc back to the chat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Footer, Static

from tui.context import AppContext
from tui.navigation import FEATURES, HOME
from tui.widgets.command_screen import CommandScreen

__all__ = ["FeatureScreen", "NavigationBar"]


class NavigationBar(Static):
    """One row; a click on a name goes there, the key beside it too. `keys` are a person's own, by command."""

    def __init__(self, here: str, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._here = here
        self.show(keys)

    def show(self, keys: Mapping[str, str]) -> None:
        """Show the keys beside the names as they are now."""
        names = (
            _name(place.id, place.title, keys.get(f"go-{place.id}", place.key), is_here=place.id == self._here)
            for place in FEATURES
        )
        self.update(Content.from_markup("  ".join(names)))


def _name(place_id: str, title: str, key: str, *, is_here: bool) -> str:
    if is_here:
        return f"[reverse] {title} [/reverse]"
    shown = f" [dim]{key.upper()}[/dim]" if key else ""
    return f"[@click=screen.command('go-{place_id}')]{title}[/]{shown}"


class FeatureScreen(CommandScreen):
    """A subclass gives PLACE, TABLE with their bindings, `body`, and a CSS_PATH with `place_screen.tcss` in it: Textual
    does not look for those of the classes above."""

    CSS_PATH: ClassVar[Any] = ["place_screen.tcss"]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-wide")]  # noqa: RUF012 - Textual declares no class variable
    PLACE: ClassVar[str]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", f"command('go-{HOME}')", "Chat", id="back", tooltip="Go back to the chat"),
    ]

    def __init__(self, resources: AppContext) -> None:
        super().__init__()
        self.resources = resources

    def compose(self) -> ComposeResult:
        yield NavigationBar(self.PLACE, self.resources.book.keys)
        yield from self.body()
        yield Footer(compact=True, show_command_palette=False)

    def on_screen_resume(self) -> None:
        self.query_one(NavigationBar).show(self.resources.book.keys)

    def body(self) -> Iterable[Widget]:
        """Yield what is between the bar and the keys."""
        raise NotImplementedError
