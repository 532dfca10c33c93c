"""The line above the composer: what the chat is at, with a sign that moves while one waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import constants
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from app.chat.activity import Activity, spinner

_TICK_S = 0.2

Look = Callable[[], tuple[Activity | None, Sequence[tuple[str, str]]]]


class ActivityLine(Static):
    """Shows what `look` returns: an activity, None for nothing, and the keys that matter meanwhile, each with a word.
    While something moves it looks again five times a second, for between two events of an engine minutes may pass, and
    draws its one row without a new layout. The sign moves with `clock`."""

    ALLOW_SELECT = False

    def __init__(self, look: Look, clock: Callable[[], float]) -> None:
        super().__init__(markup=False)
        self.display = False
        self._look = look
        self._clock = clock
        self._timer: Timer | None = None
        self._shown = Content()

    def on_mount(self) -> None:
        self._timer = self.set_interval(_TICK_S, self.look, pause=True)
        self.look()

    def look(self) -> None:
        """Show what the chat is at now."""
        activity, keys = self._look()
        content = Content() if activity is None else self._content(activity, keys)
        if content != self._shown:
            self._shown = content
            self.update(content, layout=False)
        is_shown = activity is not None
        if self.display != is_shown:
            self.display = is_shown
        if self._timer is None:
            return
        if activity is not None and activity.is_moving:
            self._timer.resume()
        else:
            self._timer.pause()

    def _content(self, activity: Activity, keys: Sequence[tuple[str, str]]) -> Content:
        if not activity.is_moving:
            sign = Content.styled("! ", "$text-warning")
        elif constants.TEXTUAL_ANIMATIONS == "none":  # what the person chose: the app itself animates nothing else
            sign = Content.styled("● ", "$text-accent")
        else:
            sign = Content.styled(f"{spinner(self._clock())} ", "$text-accent")
        bar = Content.styled(f" {activity.bar}" if activity.bar else "", "$text-accent")
        parts = [Content.assemble(sign, (activity.word, "$foreground"), bar)]
        parts += [Content.styled(fact, "$text-muted") for fact in activity.facts]
        parts += [Content.assemble((key, "$text-accent"), (f" {word}", "$text-muted")) for key, word in keys]
        if activity.warning:  # last: the end is cut where there is little room
            parts.append(Content.styled(activity.warning, "$text-warning"))
        if activity.bar and len(parts) > 1:  # a bar and its figures belong together
            parts[:2] = [Content.assemble(parts[0], " ", parts[1])]
        return Content.styled(" · ", "$faint").join(parts)
