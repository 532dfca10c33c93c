"""A value that is turned with the arrow keys, or by a click on its arrows."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click
from textual.widgets import Static

from app.terminal import printable
from tui.plan_dials import DialState

__all__ = ["Dial", "Turn"]

Turn = Callable[[str, int], None]
"""Takes the id of a dial and by how many steps it was turned. It is called and not posted, so that a key that comes
after a turn finds it done."""

_LABEL_COLUMNS = 16
_FAR = 4


class Dial(Static, can_focus=True):
    """One row: what it is called, and its value between the arrows that still lead somewhere."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("left", "turn(-1)", "Less", id="dial-less", tooltip="Turn the dial down"),
        Binding("right", "turn(1)", "More", id="dial-more", tooltip="Turn the dial up"),
        Binding("shift+left,pagedown", f"turn(-{_FAR})", "Much less", id="dial-far-less", tooltip="Turn it down far"),
        Binding("shift+right,pageup", f"turn({_FAR})", "Much more", id="dial-far-more", tooltip="Turn it up far"),
        Binding("up", "app.focus_previous", "Up", id="dial-up", tooltip="Go to the dial above"),
        Binding("down", "app.focus_next", "Down", id="dial-down", tooltip="Go to the dial below"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.key, key.action, key.description, id=key.id, tooltip=key.tooltip, show=False) for key in KEYS
    ]

    def __init__(self, state: DialState, on_turn: Turn) -> None:
        super().__init__(_text(state), markup=False)
        self.state = state
        self._on_turn = on_turn

    def show(self, state: DialState) -> None:
        """Stand at another value."""
        if state != self.state:
            self.state = state
            self.update(_text(state), layout=False)

    def action_turn(self, n_steps: int) -> None:
        """Turn it."""
        self._on_turn(self.state.id, n_steps)

    def on_click(self, event: Click) -> None:
        """Less on the left half of the value, more on the right one."""
        n_columns = max(self.content_size.width - _LABEL_COLUMNS, 1)
        self.action_turn(1 if event.x - _LABEL_COLUMNS >= n_columns // 2 else -1)


def _text(state: DialState) -> str:
    less, more = "◀" if state.has_less else " ", "▶" if state.has_more else " "
    return printable(f"{state.label:<{_LABEL_COLUMNS}.{_LABEL_COLUMNS}}{less} {state.value} {more}")
