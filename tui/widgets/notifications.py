"""Notifications in one line of the screen, the newest with the number of others, and all of the session in a list.

Owns what is shown now and where. Covers nothing: the line takes a row of its own, above the prompt of the chat, above
the keys of other screens, and at the bottom of a dialog.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import strftime
from typing import TYPE_CHECKING, ClassVar, Literal

from rich.cells import cell_len, set_cell_size
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.widgets import Static

from app.common.terminal import printable, printable_line
from tui.widgets.dialogs import TableDialog

if TYPE_CHECKING:
    from textual.app import App


Severity = Literal["information", "warning", "error"]
_KEY = "Alt+N"
_N_KEPT = 100
_WIDE_CELLS = 60
_NOTICED_S = 0.5  # a key that is pressed sooner was meant for what was on the screen before


@dataclass(frozen=True, slots=True, eq=False)
class Notification:
    """A text for the user. `at` is the time of day; two with the same text are different notifications."""

    text: str
    severity: Severity = "information"
    at: str = ""


class NotificationBoard:
    """The notifications that are shown, and the latest of the session. Pure."""

    def __init__(self) -> None:
        self._shown: list[Notification] = []
        self._latest: deque[Notification] = deque(maxlen=_N_KEPT)

    @property
    def newest(self) -> Notification | None:
        return self._shown[-1] if self._shown else None

    @property
    def n_others(self) -> int:
        return max(0, len(self._shown) - 1)

    @property
    def latest(self) -> tuple[Notification, ...]:
        return tuple(reversed(self._latest))

    def add(self, notification: Notification) -> None:
        self._shown = [each for each in self._shown if each.text != notification.text]
        self._shown.append(notification)
        self._latest.append(notification)

    def remove(self, notification: Notification) -> None:
        self._shown = [each for each in self._shown if each is not notification]

    def dismiss(self) -> None:
        self._shown = []


def line_text(notification: Notification, n_others: int, n_cells: int) -> str:
    """Return the line for `n_cells`: the text, cut if it must be, the number of others and the key to read them all."""
    text = f"{'·' if notification.severity == 'information' else '!'} {printable_line(notification.text)}"
    if not n_others and cell_len(text) <= n_cells:
        return text
    others = f"+{n_others}  " if n_others else ""
    tail = f"  {others}{_KEY}{' shows all' if n_cells >= _WIDE_CELLS else ''}"
    n_left = n_cells - cell_len(tail)
    cut = text if cell_len(text) <= n_left else f"{set_cell_size(text, max(n_left - 1, 2)).rstrip()}…"
    return f"{set_cell_size(cut, max(n_left, 3))}{tail}"


class NotificationLine(Static):
    """The one row of the screen that shows the newest notification; a click shows all."""

    DEFAULT_CSS = """
    NotificationLine {
        dock: bottom;
        height: 1;
        width: 1fr;
        padding: 0 1;
        background: $panel;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    NotificationLine.-warning { color: $text-warning; }
    NotificationLine.-error { color: $text-error; text-style: bold; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.display = False
        self._notification: Notification | None = None
        self._n_others = 0

    def show(self, notification: Notification | None, n_others: int) -> None:
        self._notification, self._n_others = notification, n_others
        self.display = notification is not None
        if notification is not None:
            self.set_classes(f"-{notification.severity}")
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    async def on_click(self, event: Click) -> None:
        event.stop()
        await self.run_action("app.show_notifications")

    def _draw(self) -> None:
        if self._notification is not None and self.content_size.width:
            text = line_text(self._notification, self._n_others, self.content_size.width)
            self.update(Content(text), layout=False)


class NotificationsScreen(TableDialog):
    """The notifications of this session, whole, the newest first."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "Close", id="notifications-close", tooltip="Go back")
    ]

    def __init__(self, notifications: Sequence[Notification]) -> None:
        rows = [(each.at, each.text if each.severity == "information" else f"! {each.text}") for each in notifications]
        super().__init__("Notifications, newest first", rows or [("", "No notifications in this session.")])


class NotificationCenter:
    """Shows the notifications of `app` on whichever screen is in front; `clock` counts seconds."""

    def __init__(self, app: App[None], clock: Callable[[], float]) -> None:
        self._app = app
        self._clock = clock
        self._board = NotificationBoard()
        self._drawn: Notification | None = None
        self._drawn_s = 0.0

    @property
    def is_noticed(self) -> bool:
        """Whether a notification is on the screen, for so long that a key may be meant for it."""
        newest = self._board.newest
        return newest is not None and newest is self._drawn and self._clock() - self._drawn_s >= _NOTICED_S

    def add(self, text: str, severity: Severity, for_s: float) -> None:
        self._app.set_timer(for_s, partial(self._end, self._show(text, severity)))

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        """Show `text` while the block runs, unless it is dismissed before."""
        notification = self._show(text, "information")
        try:
            yield
        finally:
            self._end(notification)

    def withdraw(self, text: str) -> None:
        """Stop to show a text that is true no longer."""
        for notification in self._board.latest:
            if notification.text == printable(text):
                self._end(notification)

    def dismiss(self) -> None:
        self._board.dismiss()
        self.draw()

    def draw(self) -> None:
        newest, stack = self._board.newest, self._app.screen_stack
        front = stack[-1]
        is_ready = front.is_mounted and front.is_attached
        if newest is not None and is_ready and not front.query(NotificationLine):
            front.mount(NotificationLine())
        for screen in stack:
            for line in screen.query(NotificationLine):
                line.show(newest, self._board.n_others)
                if newest is not self._drawn:
                    self._drawn, self._drawn_s = newest, self._clock()

    def show_all(self) -> None:
        self._board.dismiss()
        self.draw()
        if not isinstance(self._app.screen, NotificationsScreen):
            self._app.push_screen(NotificationsScreen(self._board.latest))

    def _show(self, text: str, severity: Severity) -> Notification:
        notification = Notification(printable(text), severity, strftime("%H:%M"))
        self._board.add(notification)
        self.draw()
        return notification

    def _end(self, notification: Notification) -> None:
        self._board.remove(notification)
        if self._app.is_running:
            self.draw()
