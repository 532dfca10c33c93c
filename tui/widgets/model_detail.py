"""What the chosen row is, in words: two lines under the list."""

from __future__ import annotations

from textual.widgets import Static

from app.terminal import printable_line
from tui.model_rows import ModelRow
from tui.model_words import fit_word, pace, size

__all__ = ["ModelDetail", "detail_lines"]

_ACTIONS = {
    "here": "Enter talks with it.",
    "elsewhere": "Enter talks with it where it is, I imports it.",
    "fetch": "Enter fetches it in the background.",
}


class ModelDetail(Static):
    """Two lines; empty while no row is chosen."""

    def __init__(self) -> None:
        super().__init__(markup=False)

    def show(self, row: ModelRow | None) -> None:
        """Show what `row` is."""
        self.update("\n".join(detail_lines(row)) if row is not None else "", layout=False)


def detail_lines(row: ModelRow) -> tuple[str, str]:
    """Return what is known of a row, and what can be done with it; fit for a terminal."""
    context = f"context {row.n_ctx:,}" if row.n_ctx else ""
    state = {"ready": "loaded", "loading": "loading", "failed": "could not be loaded"}.get(row.state, "")
    if state == "loaded" and not row.is_staying:
        state = "loaded until it was idle for a while"
    name = row.reference or row.name
    speed = f"about {pace(row.fit)}" if pace(row.fit) else ""
    facts = (
        name,
        size(row.n_bytes),
        row.type if row.type not in name else "",
        fit_word(row.fit),
        speed,
        context,
        state,
    )
    action = "X stops it." if row.job_id else "" if row.damaged else _ACTIONS[row.kind]
    notes = (row.damaged, row.progress, action, row.note)
    return (
        printable_line(" · ".join(fact for fact in facts if fact)),
        printable_line(" ".join(note for note in notes if note)),
    )
