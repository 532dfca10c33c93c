"""Where an answer leaves the block of code that it was to fill: at its first line that is indented less.

Owns what counts as indentation. Knows nothing of tokens.
"""

from __future__ import annotations

import re

__all__ = ["Indentation"]


class Indentation:
    """The least indentation, in blanks and tabs, of the lines of a text but for its first; empty lines have none."""

    def __init__(self, n_least: int) -> None:
        less = f"\n[ \t]{{0,{n_least - 1}}}"
        self._dedent = re.compile(rf"{less}(?=[^ \t\r\n])") if n_least else None
        self._undecided = re.compile(rf"{less}\Z") if n_least else None

    def end(self, text: str) -> int | None:
        """Return where the line before the first that is indented less ends, None where no line is."""
        found = self._dedent.search(text) if self._dedent else None
        return found.start() if found else None

    def n_undecided(self, text: str) -> int:
        """Return how many of the last characters of `text` may be the begin of a line that is indented less."""
        found = self._undecided.search(text) if self._undecided else None
        return len(text) - found.start() if found else 0
