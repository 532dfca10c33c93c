"""Code blocks as coloured rows, finished or growing.

Owns how Pygments reads code that grows: rows far above the end are read once, the others again when some were added.
What a row looks like depends on the text alone, not on the pieces in which it came. Only rows that are asked for are
read and drawn.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache, cached_property, lru_cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.segment import Segment
from rich.style import Style

from app.common.terminal import printable_line

if TYPE_CHECKING:
    from pygments.lexer import Lexer
    from rich.syntax import SyntaxTheme


# A growing block is read again from a place so many rows, at least, above its end: later rows may change what is read.
_WINDOW = 16
_MAX_WHOLE = 600  # a finished block of so many rows is read as a whole: 30 ms
_MAX_ROW = 1000  # characters; a longer row has no colours
_MAX_DRAWN = 500  # rows whose lines are kept
_TAB_SIZE = 4
_ROOT = ("root",)
_LANGUAGE = re.compile(r"[\w#+.-]+")

Word = tuple[Any, str]
"""A piece of code with Pygments' type of token."""
Stack = tuple[str, ...]
"""The state of a lexer."""

COPY = "copy"
"""The key of a segment's meta by which a click copies the block."""
_COPY_LABEL = "c copy"


class Code:
    """The rows of a code block. `info` is what stands behind the opening fence. Its words depend on whether the block
    is `is_finished`: the end of one that grows is read without what may follow."""

    def __init__(self, info: str, text: str = "", *, is_finished: bool = False) -> None:
        self.info = printable_line(info)
        self._rows: list[str] = []  # complete ones, without tabs
        self._rest = ""  # the last row, if it is incomplete
        self._is_finished = is_finished
        self._reader: _Reader | None = None
        self._forget()
        *rows, rest = text.split("\n")
        self.grow(rows, rest, is_finished=is_finished)

    def _forget(self) -> None:
        self._final: list[list[Word]] = []
        self._begun: list[Word] = []  # of the row behind the final ones
        self._stack: Stack = _ROOT  # behind those words
        self._others: list[list[Word]] | None = None  # the rows behind the final ones; None if they are not read
        self._n_waited_for = 2 * _WINDOW  # complete rows behind the final ones, until some of them are final

    def __len__(self) -> int:
        return len(self._rows) + bool(self._rest)

    @property
    def n_complete(self) -> int:
        return len(self._rows)

    def grow(self, rows: Iterable[str], rest: str, *, is_finished: bool) -> None:
        """Append complete rows, and replace the incomplete one behind them."""
        self._rows += (row.expandtabs(_TAB_SIZE) for row in rows)
        self._rest = rest.expandtabs(_TAB_SIZE)
        self._others = None
        if is_finished != self._is_finished and len(self) <= _MAX_WHOLE:
            self._forget()
        self._is_finished = is_finished

    def row(self, number: int) -> str:
        return self._rows[number] if number < len(self._rows) else self._rest

    def words(self, number: int) -> list[Word]:
        if self._others is None:
            self._reader = reader = self._reader or _Reader(self.info)
            is_read_whole = self._is_finished and len(self) <= _MAX_WHOLE
            while not is_read_whole and self._make_final(reader):
                pass
            rows = [self.row(row) for row in range(0 if is_read_whole else len(self._final), len(self))]
            if is_read_whole:
                words: Iterable[Word] = reader.read_whole(_text(rows))
            else:
                read = reader.read(_text(rows), self._stack, _length(self._begun))
                words = chain(self._begun, (word for word, _ in read))
            self._others = _checked(_in_rows(words), rows)
        n_final = len(self._final)
        return self._final[number] if number < n_final else self._others[number - n_final]

    def _make_final(self, reader: _Reader) -> bool:
        """Read rows of which enough others follow for good; return False if there are none."""
        first, end = len(self._final), len(self._final) + self._n_waited_for
        if len(self._rows) < end:
            return False
        rows = self._rows[first:end]
        words, n_rows = [*self._begun], 0
        for word, stack in reader.read(_text(rows), self._stack, _length(self._begun)):
            words.append(word)
            n_rows += word[1].count("\n")
            if stack is not None and _WINDOW <= n_rows < len(rows):
                break
        else:  # one word has all rows
            self._n_waited_for *= 2
            return True
        read = _in_rows(words)
        self._begun = read.pop()
        self._final += _checked(read, rows[: len(read)])
        self._stack, self._n_waited_for = stack, 2 * _WINDOW
        return True


@lru_cache(maxsize=64)
def finished_code(info: str, text: str) -> Code:
    """Return a finished block, read once however often it is drawn."""
    return Code(info, text, is_finished=True)


class CodeRows:
    """`code` as lines of `width` cells in the colours of a Pygments style: a line with the language and what copies it,
    its rows, broken where they are too long, and an empty line."""

    def __init__(self, code: Code, width: int, theme: str) -> None:
        self._code = code
        self._width = width
        self._n_cells = max(width - 2, 1)  # for code: a cell stays free on both sides
        self._theme = _theme_of(theme)
        self._ends: list[int] = []  # of each complete row, in lines from the first row on
        self._drawn: dict[int, tuple[list[Word], list[list[Segment]]]] = {}  # rows with their lines

    def __len__(self) -> int:
        n_lines = self._ends[-1] if self._ends else 0
        for number in range(len(self._ends), self._code.n_complete):
            n_lines += len(self._lines_of(number))
            self._ends.append(n_lines)
        return 1 + n_lines + sum(len(self._lines_of(row)) for row in range(len(self._ends), len(self._code))) + 1

    def __getitem__(self, y: int) -> list[Segment]:
        """Return a line: the same object as long as it looks the same."""
        n_lines = len(self)
        if not 0 <= y < n_lines:
            raise IndexError(y)
        if y in {0, n_lines - 1}:
            return self._top if y == 0 else self._bottom
        number = bisect_right(self._ends, y - 1)
        n_before = self._ends[number - 1] if number else 0
        return self._row(number)[y - 1 - n_before]

    def _row(self, number: int) -> list[list[Segment]]:
        words = self._code.words(number)
        drawn = self._drawn.get(number)
        if drawn is None or drawn[0] != words:
            if len(self._drawn) > _MAX_DRAWN:
                self._drawn.clear()
            lines = [self._padded(self._words(words, *span)) for span in self._lines_of(number)]
            self._drawn[number] = drawn = (words, lines)
        return drawn[1]

    def _lines_of(self, number: int) -> list[tuple[int, int]]:
        return _line_ends(self._code.row(number), self._n_cells)

    def _words(self, words: Iterable[Word], start: int, end: int) -> Iterator[Segment]:
        position = 0
        for kind, word in words:
            if part := word[max(start - position, 0) : max(end - position, 0)]:
                yield Segment(part, self._theme.get_style_for_token(kind))
            position += len(word)

    @property
    def _top(self) -> list[Segment]:
        """Return the head: what has no text yet has nothing to copy."""
        has_text = any(self._code.row(row).strip() for row in range(len(self._code)))
        return self._head_with_copy if has_text else self._head

    @cached_property
    def _head(self) -> list[Segment]:
        name = set_cell_size(self._code.info, min(cell_len(self._code.info), self._n_cells))
        return self._padded([Segment(name, self._comment)])

    @cached_property
    def _head_with_copy(self) -> list[Segment]:
        n_left = self._n_cells - cell_len(_COPY_LABEL) - 1
        if n_left < 0:
            return self._head
        name = set_cell_size(self._code.info, n_left)
        label = Segment(_COPY_LABEL, self._comment + Style(meta={COPY: True}))
        return self._padded([Segment(f"{name} ", self._comment), label])

    @cached_property
    def _comment(self) -> Style:
        from pygments.token import Comment

        return self._theme.get_style_for_token(Comment)

    @cached_property
    def _bottom(self) -> list[Segment]:
        return self._padded(())

    def _padded(self, segments: Iterable[Segment]) -> list[Segment]:
        ground = self._theme.get_background_style()
        return Segment.adjust_line_length([Segment(" ", ground), *segments], self._width, ground)


def _line_ends(row: str, n_cells: int) -> list[tuple[int, int]]:
    """Return where the lines of a row begin and end: at a space if there is one, none wider than `n_cells`."""
    if cell_len(row) <= n_cells:
        return [(0, len(row))]
    lines, start = [], 0
    while start < len(row):
        end = start + max(len(chop_cells(row[start : start + n_cells], n_cells)[0]), 1)
        if end < len(row) and row[start : row.rfind(" ", start, end + 1) + 1].strip():
            end = row.rfind(" ", start, end + 1)
        lines.append((start, end))
        start = end + row.startswith(" ", end)
    return lines


@cache
def _theme_of(name: str) -> SyntaxTheme:
    from rich.syntax import Syntax

    return Syntax.get_theme(name)


class _Reader:
    """Pygments' lexer of a language, which can go on in the middle of a text."""

    def __init__(self, info: str) -> None:
        from pygments.lexer import ExtendedRegexLexer, RegexLexer

        self._lexer = _lexer_of(info)
        self._keeps_stack = isinstance(self._lexer, RegexLexer) and not isinstance(self._lexer, ExtendedRegexLexer)

    def read_whole(self, text: str) -> Iterator[Word]:
        if self._lexer is None:
            return iter([(_plain(), text)])
        return ((kind, word) for _, kind, word in self._lexer.get_tokens_unprocessed(text))

    def read(self, text: str, stack: Stack, position: int) -> Iterator[tuple[Word, Stack | None]]:
        """Yield the words behind a position where the lexer's state is `stack`, each with the state behind it, or None
        if reading cannot go on there. A lexer whose state is not known begins anew anywhere."""
        if self._keeps_stack:
            yield from _read_by_rules(self._lexer, text, stack, position)
        elif self._lexer is None:
            yield from (((_plain(), row), _ROOT) for row in text[position:].splitlines(keepends=True))
        else:
            for _, kind, word in self._lexer.get_tokens_unprocessed(text[position:]):
                yield (kind, word), _ROOT


def _read_by_rules(lexer: Any, text: str, stack: Stack, position: int) -> Iterator[tuple[Word, Stack | None]]:
    """Read like `RegexLexer.get_tokens_unprocessed`, which does not tell its state."""
    from pygments.token import Error, _TokenType

    rules, states = lexer._tokens, [*stack]  # noqa: SLF001 - the rules as Pygments prepared them
    while position < len(text):
        for matches, action, change in rules[states[-1]]:
            if (found := matches(text, position)) is None:
                continue
            is_word = type(action) is _TokenType
            words = [(0, action, found.group())] if is_word else [*action(lexer, found)] if action else []
            position = found.end()
            _change(states, change)
            for number, (_, kind, word) in enumerate(words, start=1):
                yield (kind, word), tuple(states) if number == len(words) else None
            break
        else:  # no rule knows this character
            is_end = text[position] == "\n"
            states = [*_ROOT] if is_end else states
            yield (_plain() if is_end else Error, text[position]), tuple(states)
            position += 1


def _change(states: list[str], change: tuple[str, ...] | int | str | None) -> None:
    """Push and pop as a rule says; the first state stays."""
    if isinstance(change, int):  # it pops as many, as a negative number
        del states[max(1, len(states) + change) :]
        return
    for name in (change,) if isinstance(change, str) else change or ():
        if name == "#pop":
            del states[max(1, len(states) - 1) :]
        else:
            states.append(states[-1] if name == "#push" else name)


@lru_cache(maxsize=64)
def _lexer_of(info: str) -> Lexer | None:
    """Return the lexer of the language that a fence names first, None if there is none."""
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    name = _LANGUAGE.search(info)
    try:
        return get_lexer_by_name(name[0]) if name else None
    except ClassNotFound:
        return None


@cache
def _plain() -> Any:
    from pygments.token import Token

    return Token.Text


def _text(rows: Iterable[str]) -> str:
    return "".join(f"{row if len(row) <= _MAX_ROW else ''}\n" for row in rows)


def _length(words: list[Word]) -> int:
    return sum(len(word) for _, word in words)


def _in_rows(words: Iterable[Word]) -> list[list[Word]]:
    """Return words row by row; the last row does not end."""
    rows: list[list[Word]] = [[]]
    for kind, word in words:
        first, *others = word.split("\n")
        if first:
            rows[-1].append((kind, first))
        rows += ([(kind, part)] if part else [] for part in others)
    return rows


def _checked(read: Iterable[list[Word]], rows: Iterable[str]) -> list[list[Word]]:
    """Return what was read of `rows`; a row of which another text was read, or none, has no colours."""
    pairs = zip(chain(read, repeat([])), rows, strict=False)
    return [words if "".join(word for _, word in words) == row else [(_plain(), row)] for words, row in pairs]
