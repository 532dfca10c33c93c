"""The base of all features except the chat: a navigation bar at the top, keys at the bottom, Esc back to the chat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Footer, Static

from tui.commands import FEATURES, HOME, Feature
from tui.widgets.command_screen import CommandScreen

__all__ = ["FEATURE_CSS", "FeatureScreen", "NavigationBar"]

FEATURE_CSS = Path(__file__).with_suffix(".tcss")


class NavigationBar(Static):
    """The features in one row, the current one highlighted; each is clickable. `keys` are custom keys by command."""

    def __init__(self, current: str, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._current = current
        self.show(keys)

    def show(self, keys: Mapping[str, str]) -> None:
        """Update the keys."""
        names = (self._link(feature, keys.get(f"go-{feature.id}", feature.key)) for feature in FEATURES)
        self.update(Content.from_markup("  ".join(names)))

    def _link(self, feature: Feature, key: str) -> str:
        if feature.id == self._current:
            return f"[reverse] {feature.title} [/reverse]"
        shown = f" [dim]{key.upper()}[/dim]" if key else ""
        return f"[@click=screen.command('go-{feature.id}')]{feature.title}[/]{shown}"


class FeatureScreen(CommandScreen):
    """A subclass defines FEATURE, TABLE with its bindings, `body`, and a CSS_PATH that starts with FEATURE_CSS: Textual
    does not inherit CSS_PATH."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-wide")]  # noqa: RUF012 - Textual declares no class variable
    FEATURE: ClassVar[str]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", f"command('go-{HOME}')", "Chat", id="back", tooltip="Go back to the chat"),
    ]

    def compose(self) -> ComposeResult:
        yield NavigationBar(self.FEATURE, self.app_context.settings_controller.keys)
        yield from self.body()
        yield Footer(compact=True, show_command_palette=False)

    def on_screen_resume(self) -> None:
        self.query_one(NavigationBar).show(self.app_context.settings_controller.keys)

    def body(self) -> Iterable[Widget]:
        """Yield the widgets between the bar and the keys."""
        raise NotImplementedError
