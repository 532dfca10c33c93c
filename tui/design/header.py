"""The first row of every screen: where one is, the other screens, and at the right what matters here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from app.common.terminal import printable_line
from tui.commands import FEATURES, Feature
from tui.design.words import model_label

if TYPE_CHECKING:
    from app.chat.backend import ConnectionState

_NAME = "localllm"
_LEAST_GAP = 3  # cells between the left and the right
_LEAST_MODEL_CELLS = 12
# By the phase of the connection, or what the shown chat is at: sign, colour and word.
_STATES = {
    "idle": ("◌", "$text-muted", "starting"),
    "starting": ("◌", "$text-muted", "starting"),
    "loading": ("◌", "$text-warning", "loading"),
    "ready": ("●", "$text-success", "ready"),
    "unloaded": ("○", "$text-muted", "unloaded"),
    "failed": ("✕", "$text-error", "not available"),
    "reading": ("◐", "$text-accent", "reading"),
    "answering": ("◐", "$text-accent", "answering"),
    "summarising": ("◐", "$text-accent", "summarising"),
    "asking": ("!", "$text-warning", "asks you"),
}


class ScreenHeader(Widget):
    """The current feature, the others with their keys where there is room, and `facts` at the right, of which the
    left gives way last. `keys` are custom keys by command."""

    DEFAULT_CSS = """
    ScreenHeader {
        dock: top;
        height: 1;
        width: 1fr;
        padding: 0 1;
        background: $panel;
        text-wrap: nowrap;
        link-color: $text-muted;
        link-style: none;
        link-background-hover: transparent;
        link-color-hover: $text-accent;
        link-style-hover: none;
    }
    """
    ALLOW_SELECT = False

    def __init__(self, current: str, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._current = next(feature for feature in FEATURES if feature.id == current)
        self._keys = keys
        self._others: Content | None = None  # links to the other screens; they are parsed from markup
        self._facts = Content()
        self._state: ConnectionState | None = None
        self._activity = ""

    def show_keys(self, keys: Mapping[str, str]) -> None:
        if keys != self._keys:
            self._keys, self._others = keys, None
            self.refresh()

    def show_facts(self, facts: str | Content) -> None:
        """Show `facts`, one printable line, instead of the model."""
        content = Content.styled(facts, "$text-muted") if isinstance(facts, str) else facts
        if content != self._facts or self._state is not None:
            self._facts, self._state = content, None
            self.refresh()

    def show_model(self, state: ConnectionState, activity: str = "") -> None:
        """Show the model, and what the chat is at, if it is at something, else the phase of the connection."""
        if (state, activity) != (self._state, self._activity):
            self._state, self._activity = state, activity
            self.refresh()

    def render(self) -> Content:
        n_cells = self.content_size.width
        place = Content.assemble((_NAME, "$text-muted"), (" · ", "$faint"), (self._current.title, "bold $bright"))
        n_left = n_cells - place.cell_length - _LEAST_GAP
        if self._state is None:
            facts = (
                self._facts
                if self._facts.cell_length <= n_left
                else self._facts.truncate(max(n_left, 0), ellipsis=True)
            )
        else:
            facts = model_facts(self._state, n_left, self._activity)
        tabs = self._tabs()
        if tabs.cell_length + 2 * _LEAST_GAP <= n_left - facts.cell_length:
            place = place + Content(" " * 2 * _LEAST_GAP) + tabs
        gap = max(n_cells - place.cell_length - facts.cell_length, 1)
        return place + Content(" " * gap) + facts

    def _tabs(self) -> Content:
        if self._others is None:
            others = (feature for feature in FEATURES if feature is not self._current)
            self._others = Content("   ").join(map(self._link, others))
        return self._others

    def _link(self, feature: Feature) -> Content:
        key = self._keys.get(f"go-{feature.id}", feature.key).upper()
        shown = f"[$text-accent]{key}[/] " if key else ""
        return Content.from_markup(f"{shown}[@click=screen.command('go-{feature.id}')]{feature.title}[/]")


def model_facts(state: ConnectionState, n_cells: int, activity: str = "") -> Content:
    """Return the model and its state in at most `n_cells`, the state first where there is room for one only."""
    sign, color, word = _STATES[activity or state.phase]
    if state.phase == "loading" and state.progress:
        word = f"{word} {state.progress:.0%}"
    shown = Content.assemble((f"{sign} ", color), (word, "$text-muted"))
    n_name = n_cells - shown.cell_length - 2
    if n_name < min(_LEAST_MODEL_CELLS, cell_len(state.model)):
        return shown if shown.cell_length <= n_cells else Content.styled(sign, color)
    return Content.assemble((model_label(printable_line(state.model), n_name), "$foreground"), "  ", shown)
