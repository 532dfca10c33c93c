"""A scrolling container whose rows stay where a person looks while others come and go above them.

Owns that one habit. Textual's own anchor does the same for the end.
"""

from __future__ import annotations

from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.widget import Widget

__all__ = ["SteadyScroll"]


class SteadyScroll(VerticalScroll):
    """Keeps the child that is topmost in view on its row, through mounting, removing and resizing, unless it follows
    the end."""

    _held: Widget | None = None
    _held_row = 0

    @property
    def is_following(self) -> bool:
        """Whether the end stays in view when text comes."""
        return self._anchored and not self._anchor_released

    def follow(self) -> None:
        """Go to the end and stay there until a person scrolls away."""
        self._held = None
        self.anchor()

    def hold(self, child: Widget, row: int) -> None:
        """Keep `child` on a row of what is in view, from 0 on."""
        self._held, self._held_row = child, row

    def reveal(self, widget: Widget) -> None:
        """Bring `widget`, which is somewhere within, into view."""
        if self.max_scroll_y:
            widget.scroll_visible(animate=False)
        else:
            self.anchor()  # where all fits, Textual puts it at the bottom, and keeps it there only while it follows

    def may_hold(self, child: Widget) -> bool:  # noqa: ARG002
        """Whether `child` is one that a person looks at; one that others are put behind must not be held."""
        return True

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Arrange the children, and scroll so that the held one does not move: before anything is drawn, as Textual's
        compositor does for an anchor."""
        arranged = super().arrange(size, optimal)
        if self._held is not None and not self.is_following:
            y = next((placed.region.y for placed in arranged.placements if placed.widget is self._held), None)
            if y is not None:
                self._put(y - self._held_row, arranged.total_region.bottom - size.height)
        return arranged

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Hold what is topmost in view now."""
        super().watch_scroll_y(old_value, new_value)
        shown = (child for child in self.children if child.display and self.may_hold(child))
        top = next((child for child in shown if child.virtual_region.bottom > new_value), None)
        if top is not None:
            self.hold(top, top.virtual_region.y - round(new_value))

    def _put(self, y: int, max_y: int) -> None:
        place = max(0, min(y, max_y))
        self.set_reactive(Widget.scroll_y, place)
        self.set_reactive(Widget.scroll_target_y, place)
        self.vertical_scrollbar.position = place
