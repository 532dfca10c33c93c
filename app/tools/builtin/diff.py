"""The difference of two texts as a unified diff, bounded in time and size. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeAlias

from app.common.terminal import printable

MAX_CHARACTERS = 400_000
_MAX_COMPARED = 1_500  # lines between the first and the last difference; more are shown as replaced
_N_CONTEXT = 3

_Change: TypeAlias = tuple[int, int, int, int]  # lines i to j of the one are lines k to m of the other


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff without its file names; `text` is "" where nothing differs, and says what was left out of it."""

    text: str
    n_added: int
    n_removed: int

    @property
    def summary(self) -> str:
        """How many lines came and went, as "+3 −1 lines"."""
        return f"+{self.n_added:,} −{self.n_removed:,} lines"


def diff_of(before: str, after: str) -> Diff:
    """Return what makes `after` of `before`. Lines end with newlines; a last one without is marked."""
    old, new = _lines(before), _lines(after)
    changes = _changes(old, new)
    pieces, n_characters, n_left_out = [], 0, 0
    for line in _written(old, new, changes):
        n_characters += len(line) + 1
        if n_characters > MAX_CHARACTERS:
            n_left_out += 1
        else:
            pieces.append(line)
    if n_left_out:
        pieces.append(f"[{n_left_out:,} more lines of this difference are not shown]")
    if n_hidden := _n_hidden(after) - _n_hidden(before):
        pieces.append(f"[{abs(n_hidden):,} control characters {'come' if n_hidden > 0 else 'go'}, which are not shown]")
    n_removed, n_added = (sum(change[at + 1] - change[at] for change in changes) for at in (0, 2))
    return Diff("\n".join(pieces), n_added, n_removed)


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if not lines[-1]:
        return lines[:-1]
    return [*lines[:-1], lines[-1] + "\n\\ No newline at end of file"]


def _n_hidden(text: str) -> int:
    """Return how many characters a terminal must not get, but for line endings."""
    return len(text) - len(printable(text)) - text.count("\r\n")


def _changes(old: Sequence[str], new: Sequence[str]) -> list[_Change]:
    """Return the runs of lines that differ."""
    shorter = min(len(old), len(new))
    n_head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    most = shorter - n_head
    n_tail = next((i for i in range(most) if old[-1 - i] != new[-1 - i]), most)
    end_old, end_new = len(old) - n_tail, len(new) - n_tail
    if n_head == end_old and n_head == end_new:
        return []
    if max(end_old, end_new) - n_head > _MAX_COMPARED:
        return [(n_head, end_old, n_head, end_new)]
    matcher = SequenceMatcher(None, old[n_head:end_old], new[n_head:end_new])
    return [
        (n_head + i, n_head + j, n_head + k, n_head + m)
        for tag, i, j, k, m in matcher.get_opcodes()
        if tag != "equal"
    ]  # fmt: skip


def _written(old: Sequence[str], new: Sequence[str], changes: Sequence[_Change]) -> Iterator[str]:
    for group in _groups(changes):
        first, last = group[0], group[-1]
        begin = max(0, first[0] - _N_CONTEXT)
        begin_new = first[2] - (first[0] - begin)
        end = min(len(old), last[1] + _N_CONTEXT)
        end_new = last[3] + (end - last[1])
        yield f"@@ -{_range(begin, end)} +{_range(begin_new, end_new)} @@"
        place = begin
        for i, j, k, m in group:
            yield from (f" {line}" for line in old[place:i])
            yield from (f"-{line}" for line in old[i:j])
            yield from (f"+{line}" for line in new[k:m])
            place = j
        yield from (f" {line}" for line in old[place:end])


def _groups(changes: Sequence[_Change]) -> Iterator[list[_Change]]:
    """Yield changes that are so near that their context meets."""
    group: list[_Change] = []
    for change in changes:
        if group and change[0] - group[-1][1] > 2 * _N_CONTEXT:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _range(begin: int, end: int) -> str:
    n_lines = end - begin
    return f"{begin + 1 if n_lines else begin}" + ("" if n_lines == 1 else f",{n_lines}")
