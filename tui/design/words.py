"""Figures in people's words, the same on every screen: moments, durations, counts of tokens, speeds; and where rows of
words end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import PurePath

from rich.cells import cell_len, chop_cells, set_cell_size

# Words for figures that the app below needs too.
from app.common.terminal import counted as counted
from app.common.terminal import speed_words as speed_words

_WORD = re.compile(" *[^ ]+")
_MODEL_END_CELLS = 10
_WORD_ENDS = " ,;:."
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


def relative_time(then: datetime, now: datetime) -> str:
    """Return when something was: "now", "2 min", "3 h", "yesterday", "Tue", "12 Nov", "12 Nov 2025". Both moments have
    a time zone, that of `now` decides on the days. A moment to come, of a clock that was set back, is "now"."""
    then = then.astimezone(now.tzinfo)
    age_s = (now - then).total_seconds()
    if age_s < _MINUTE_S:
        return "now"
    if age_s < _HOUR_S:
        return f"{age_s // _MINUTE_S:.0f} min"
    n_days = (now.date() - then.date()).days
    if n_days == 0:
        return f"{age_s // _HOUR_S:.0f} h"
    if n_days == 1:
        return "yesterday"
    if n_days < 7:
        return f"{then:%a}"
    return f"{then.day} {then:%b}" if then.year == now.year else f"{then.day} {then:%b %Y}"


def day_heading(then: datetime, now: datetime) -> str:
    """Return the heading that a list puts over a moment: "Today", "Yesterday", "This week", "November", "2025"."""
    then = then.astimezone(now.tzinfo)
    n_days = (now.date() - then.date()).days
    if n_days < 1:
        return "Today"
    if n_days == 1:
        return "Yesterday"
    if then.date() > now.date() - timedelta(days=7):
        return "This week"
    return f"{then:%B}" if then.year == now.year else f"{then.year}"


def duration(seconds: float) -> str:
    """Return a duration, such as "45 s", "3 min" or "2.5 h"."""
    if seconds < _MINUTE_S:
        return f"{max(1, round(seconds))} s"
    if seconds < _HOUR_S:
        return f"{round(seconds / _MINUTE_S)} min"
    return f"{seconds / _HOUR_S:.1f} h" if seconds < _DAY_S else f"{seconds / _DAY_S:.0f} days"


def short_count(n: int) -> str:
    """Return a count such as "512", "2.1k" or "128k": thousands, as sizes of contexts are written (8,192 is "8k")."""
    if n < 1000:
        return str(n)
    thousands = n / 1024 if n % 1024 == 0 else n / 1000
    return f"{thousands:.0f}k" if thousands >= 10 or thousands == int(thousands) else f"{thousands:.1f}k"


def cut(text: str, n_cells: int) -> str:
    """Return a line in at most `n_cells`: of a longer one the beginning."""
    return text if cell_len(text) <= n_cells else f"{set_cell_size(text, n_cells - 1)}…"


def cut_at_word(text: str, n_cells: int) -> str:
    """Return a line in at most `n_cells`: of a longer one whole words, unless its first is longer."""
    shown = cut(text, n_cells)
    if shown == text:
        return text
    kept = shown[:-1]
    if text[len(kept)] not in _WORD_ENDS:
        kept = kept.rpartition(" ")[0] or kept
    return f"{kept.rstrip(_WORD_ENDS)}…"


def model_label(model: str, n_cells: int) -> str:
    """Return the name that a model's list shows, also for a path, in at most `n_cells`: of a long one the beginning,
    and the end with its size and type."""
    path, name = PurePath(model), model
    if path.is_absolute():
        from app.library.local.model_files import id_of  # with the GGUF names: the first frame has no path

        name = id_of(path.name)
    if cell_len(name) <= n_cells:
        return name
    end = name[-1:]
    while cell_len(end) < min(_MODEL_END_CELLS, n_cells // 2):
        end = name[-len(end) - 1 :]
    return f"{set_cell_size(name, max(n_cells - cell_len(end) - 1, 0)).rstrip()}…{end}"


def wrapped(text: str, n_cells: int) -> list[str]:
    """Return a line as rows of at most `n_cells`, at least 2, broken between its words, or within one that is longer
    than a row. Each row is indented as the line is."""
    indent = text[: min(len(text) - len(text.lstrip(" ")), n_cells // 2)]
    rows = [""]
    for word in _WORD.findall(text.rstrip(" ")):  # its time would grow with the square of spaces without a word
        if cell_len(rows[-1]) + cell_len(word) <= n_cells:
            rows[-1] += word
            continue
        rows = [*(rows if rows[-1].strip() else rows[:-1]), *chop_cells(indent + word.lstrip(" "), n_cells)]
    return rows


def side_by_side(widths: Iterable[int], n_cells: int, gap: int) -> list[list[int]]:
    """Return rows of the indexes of what has these `widths`, as many beside each other as have room in `n_cells`, with
    `gap` cells between them. What is wider has a row alone."""
    rows: list[list[int]] = []
    n_used = 0
    for index, width in enumerate(widths):
        if rows and n_used + gap + width <= n_cells:
            rows[-1].append(index)
            n_used += gap + width
        else:
            rows.append([index])
            n_used = width
    return rows
