"""Lines of text of a few kinds, safe for a terminal: a diff, arguments, an output. Pure.

What a line looks like is the display's; each kind also shows without colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from app.common.terminal import printable

LineKind = Literal["plain", "added", "removed", "place", "heading"]

_TAB_CELLS = 4
_FILES, _PLACE = ("--- ", "+++ "), "@@ "
_SIGNS: dict[str, LineKind] = {"+": "added", "-": "removed"}


@dataclass(frozen=True, slots=True)
class StyledLine:
    """A line without control characters. `kind` "place" says where in a file a part of a diff is."""

    text: str
    kind: LineKind = "plain"


def plain_lines(text: str, kind: LineKind = "plain") -> tuple[StyledLine, ...]:
    """Return the lines of an untrusted text."""
    return tuple(StyledLine(line.expandtabs(_TAB_CELLS), kind) for line in printable(text).split("\n"))


def diff_lines(text: str) -> tuple[StyledLine, ...]:
    """Return the lines of an untrusted text, of which those of a unified diff have their kinds."""
    return tuple(_diff_lines(text.split("\n")))


def _diff_lines(lines: Sequence[str]) -> Iterator[StyledLine]:
    is_in_diff = False
    for number, line in enumerate(lines):
        is_header = line.startswith(_FILES[0]) and number + 1 < len(lines) and lines[number + 1].startswith(_FILES[1])
        ends_header = line.startswith(_FILES[1]) and number > 0 and lines[number - 1].startswith(_FILES[0])
        is_in_diff = is_in_diff or line.startswith(_PLACE)
        if is_header or ends_header:
            kind: LineKind = "heading"
        elif line.startswith(_PLACE):
            kind = "place"
        else:
            kind = _SIGNS.get(line[:1], "plain") if is_in_diff else "plain"
        yield from plain_lines(line, kind)
