"""The table of the models screen: its columns at a given width, and a row as coloured text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from app.common.terminal import printable_line
from tui.design.words import cut
from tui.models.rows import ModelRow, format_context, format_size, short_rate

if TYPE_CHECKING:
    from app.protocol.library import ModelFit


# Sign, colour and word of a verdict.
_VERDICTS = {
    "fits": ("●", "$text-success", "yes"),
    "tight": ("▲", "$text-warning", "tight"),
    "partial": ("▲", "$text-warning", "partly"),
    "wont_run": ("✕", "$text-error", "no"),
}
_MIN_NAME_CELLS = 20
_WHOLE_NAME_CELLS = 48  # a name of up to so many is whole before a light column is shown
_LIGHT = 4
_LOADED_MARKS = {"ready": ("▶", "$text-success"), "loading": ("◌", "$text-warning"), "failed": ("!", "$text-error")}
# The columns of a list behind the name: heading, cells, whether at the right of its cells, and how late it is hidden.
_COLUMNS = (
    ("type", 8, False, 5),
    ("size", 8, True, 7),
    ("context", 7, True, 3),
    ("fits", 8, False, 6),
    ("writes", 11, True, 4),
    ("used", 9, True, 2),
    ("", 7, False, 1),  # the default model
)
_GAP = "  "
# What stands behind a name, the most important first.
_SIGNS: tuple[tuple[Callable[[ModelRow], object], tuple[str, str]], ...] = (
    (lambda row: row.verified and not row.is_sound, (" ✕", "$text-error")),
    (lambda row: row.newer, (" ↑", "$text-accent")),
    (lambda row: row.is_sound, (" ✓", "$text-success")),
)


@dataclass(frozen=True, slots=True)
class Columns:
    """The cells of the name, and the columns behind it, in a list of `width` cells."""

    name: int
    shown: tuple[int, ...]
    width: int


def columns(width: int, longest_name: int) -> Columns:
    """Return the columns of a list of `width` cells: a name is as wide as the longest, and least as wide as
    `_MIN_NAME_CELLS`; where that leaves no room the columns that matter least are hidden."""
    wanted = max(_MIN_NAME_CELLS, longest_name)
    shown: list[int] = []
    n_taken = 2
    for number in sorted(range(len(_COLUMNS)), key=lambda number: -_COLUMNS[number][3]):
        _, n_cells, _, weight = _COLUMNS[number]
        n_taken += n_cells + len(_GAP)
        n_name = min(wanted, _WHOLE_NAME_CELLS) if weight < _LIGHT else _MIN_NAME_CELLS
        if n_taken + n_name > width:
            break
        shown.append(number)
    taken = sum(_COLUMNS[number][1] + len(_GAP) for number in shown)
    return Columns(min(wanted, max(_MIN_NAME_CELLS, width - 2 - taken)), tuple(sorted(shown)), width)


def row_line(row: ModelRow, at: Columns) -> Content:
    """Return one row. Its text is printable; what is wrong with a file takes the place of its figures, in one line."""
    mark, color = _LOADED_MARKS.get(row.state, (" ", ""))
    sign = next((sign for is_so, sign in _SIGNS if is_so(row)), ("", ""))
    shown = _cut(row.name, at.name - len(sign[0]))
    padding = " " * (at.name - cell_len(shown) - len(sign[0]))
    ending = (sign, padding) if sign[0] else ()
    whole = shown if ending else f"{shown}{padding}"
    name = Content.assemble((f"{mark} ", color), (whole, "" if row.damaged else "$foreground"), *ending)
    n_left = at.width - name.cell_length - len(_GAP)
    if row.damaged:
        return Content.assemble(name, _GAP, (_cut(f"✕ {row.damaged}", n_left), "$text-error"))
    cells = _figures(row)
    if row.progress:
        size = Content.assemble(cells[0], _GAP, cells[1]) if {0, 1} <= set(at.shown) else cells[1]
        progress = _cut(row.progress, n_left - size.cell_length - len(_GAP))
        return Content.assemble(name, _GAP, size, _GAP, (progress, "$text-accent"))
    return Content(_GAP).join([name, *(cells[number] for number in at.shown)]).rstrip()


def _figures(row: ModelRow) -> list[Content]:
    """Return the cells behind the name, all of them, each as wide as its column."""
    is_awaited = row.kind == "local" and not row.damaged
    fit = fit_mark(row.fit) if row.fit is not None else Content.styled("…" if is_awaited else "", "$text-muted")
    texts = (
        Content.styled(printable_line(row.type), "$text-muted"),
        Content.styled(format_size(row.n_bytes), "$text-muted"),
        Content.styled(format_context(row.n_ctx), "$text-muted"),
        fit,
        Content(short_rate(row.fit) or ("…" if is_awaited and row.fit is None else "")),
        Content.styled(row.used or ("–" if row.kind == "local" else ""), "$text-muted"),
        Content.styled("default" if row.is_default else "", "$text-accent"),
    )
    cells = []
    for text, (_, n_cells, is_right, _) in zip(texts, _COLUMNS, strict=True):
        shown = text.truncate(n_cells, ellipsis=True)
        padding = " " * (n_cells - shown.cell_length)
        cells.append(Content.assemble(padding, shown) if is_right else Content.assemble(shown, padding))
    return cells


def headings(title: str, at: Columns) -> Content:
    """Return the title of the first section with the headings of the columns."""
    named = (_COLUMNS[number] for number in at.shown)
    cells = (f"{text:>{n_cells}}" if is_right else f"{text:<{n_cells}}" for text, n_cells, is_right, _ in named)
    shown = set_cell_size(_cut(title, at.name + 2), at.name + 2)
    return Content.assemble((shown, "bold $text-accent"), (_GAP + _GAP.join(cells), "$text-muted")).rstrip()


def fit_mark(fit: ModelFit | None) -> Content:
    """Return whether a model fits as a sign and a word in one colour, of at most eight cells."""
    if fit is None:
        return Content()
    sign, color, word = _VERDICTS[fit.verdict]
    return Content.assemble((sign, color), " ", (word, color))


def _cut(text: str, n_cells: int) -> str:
    """Return one line of at most `n_cells`, with its leading spaces."""
    indent = len(text) - len(text.lstrip(" "))
    line = " " * indent + printable_line(text)
    return cut(line, n_cells)
