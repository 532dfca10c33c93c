"""Which messages of a long chat are on the screen as widgets.

Pure: a range of positions and how it moves. What a widget is it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["STEP", "Window"]

# Each costs 10 to 20 ms to draw: so many at once are not felt.
STEP = 4


@dataclass(frozen=True, slots=True)
class Window:
    """The positions from `first` up to `last`, which is not one of them."""

    first: int = 0
    last: int = 0

    @classmethod
    def at_end(cls, n_messages: int) -> Window:
        """Return the window on the last ones."""
        return cls(max(0, n_messages - STEP), n_messages)

    @classmethod
    def at(cls, position: int, n_messages: int) -> Window:
        """Return a window that begins with `position`, or shortly before where little follows."""
        first = max(0, min(position, n_messages - STEP))
        return cls(first, min(first + STEP, n_messages))

    def __len__(self) -> int:
        return self.last - self.first

    def __contains__(self, position: int) -> bool:
        return self.first <= position < self.last

    def earlier(self) -> Window:
        """Return it with some more before."""
        return Window(max(0, self.first - STEP), self.last)

    def later(self, n_messages: int) -> Window:
        """Return it with some more behind."""
        return Window(self.first, min(n_messages, self.last + STEP))

    def cut(self, n_messages: int) -> Window:
        """Return what is left of it where only the first `n_messages` stay."""
        last = min(self.last, n_messages)
        return Window(min(self.first, last), last)

    def common(self, other: Window) -> Window:
        """Return the positions that are in both; where none is, an empty window at the beginning of `other`."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return Window(first, last) if first < last else Window(other.first, other.first)
