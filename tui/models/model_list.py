"""The widgets of the models screen: search field, list, and details of the selected row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.common.terminal import printable_line
from tui.models.rows import (
    Columns,
    ModelRow,
    Section,
    columns,
    format_fit,
    format_rate,
    format_size,
    headings,
    row_line,
)
from tui.models.typed_path import completed, typed_path

_ACTIONS = {
    "local": "Enter starts a chat.",
    "external": "Enter starts a chat, I imports it.",
    "engine": "Enter starts a chat.",
    "remote": "Enter downloads it in the background.",
    "file": "Enter imports it: a link, no second copy.",
    "folder": "Enter opens it.",
}
_MARGIN_CELLS = 3  # the scroll bar, and air


class SearchField(Input):
    """Posts its text like Input; Down and Enter go to the list, Tab completes a path, Esc clears the text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "leave_for_list", "List", show=False, id="to-list", tooltip="Go to the list"),
        Binding("enter", "leave_for_list(True)", "List", show=False, id="enter-list", tooltip="Go to the list"),
        Binding("tab", "complete", "Complete", show=False, id="complete-path", tooltip="Complete the path"),
        Binding("escape", "clear_or_leave", "Clear", show=False, id="clear-search", tooltip="Clear the text"),
    ]

    @dataclass
    class Left(Message):
        """The user goes to the list, by Enter if `is_entered`."""

        is_entered: bool = False

    def action_leave_for_list(self, is_entered: bool = False) -> None:
        """Let the screen focus the list."""
        self.post_message(self.Left(is_entered))

    def action_complete(self) -> None:
        """Complete a path; leave the field where there is nothing to complete."""
        path = typed_path(self.value)
        longer = completed(path) if path else path
        if longer == path:
            self.post_message(self.Left())
        else:
            self.value = longer
            self.cursor_position = len(longer)

    def action_clear_or_leave(self) -> None:
        """Clear the text; without one leave the screen, as Esc does elsewhere on it."""
        if not self.value:
            raise SkipAction
        self.value = ""
        self.post_message(self.Left())


class ModelDetail(Static):
    """Two lines; empty while no row is selected."""

    def __init__(self) -> None:
        super().__init__(markup=False)

    def show(self, row: ModelRow | None) -> None:
        """Show `row`."""
        self.update("\n".join(detail_lines(row)) if row is not None else "", layout=False)


def detail_lines(row: ModelRow) -> tuple[str, str]:
    """Return two printable lines: the facts about a row, and its actions."""
    context = f"context {row.n_ctx:,}" if row.n_ctx else ""
    state = {"ready": "loaded", "loading": "loading", "failed": "failed to load"}.get(row.state, "")
    if state == "loaded" and not row.is_staying:
        state = "loaded, unloads when idle"
    name = row.reference or (row.model if row.kind in ("file", "folder") else row.name)
    speed = f"about {format_rate(row.fit)}" if format_rate(row.fit) else ""
    facts = (
        name,
        format_size(row.n_bytes),
        row.type if row.type not in name else "",
        format_fit(row.fit),
        speed,
        context,
        row.takes,
        state,
    )
    action = "X stops it." if row.job_id else "" if row.damaged or row.is_arriving else _ACTIONS[row.kind]
    notes = (row.damaged, row.progress, action, row.note)
    return (
        printable_line(" · ".join(fact for fact in facts if fact)),
        printable_line(" ".join(note for note in notes if note)),
    )


class ModelList(OptionList):
    """The sections; the highlight stays on its row while they change."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("up,down", "", "Rows", id="rows", tooltip="Select a model"),
        Binding("home,end,pageup,pagedown", "", "Pages", id="row-pages", tooltip="Move by a page"),
    )

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._sections: tuple[Section, ...] = ()
        self._shape: tuple[str | None, ...] = ()
        self._first: int | None = None  # the initial highlight

    @property
    def row_id(self) -> str:
        """The id of the highlighted row, "" for none."""
        option = self.highlighted_option
        return (option.id or "") if option is not None else ""

    def show(self, sections: Sequence[Section]) -> None:
        """Show `sections`; if the rows are the same, redraw only changed text."""
        self._sections = tuple(sections)
        options = list(_options(self._sections, columns(self._row_cells)))
        shape = tuple(option.id for option in options)
        if shape == self._shape:
            for index, option in enumerate(options):
                if str(self.get_option_at_index(index).prompt) != str(option.prompt):
                    self.replace_option_prompt_at_index(index, option.prompt)
            return
        chosen, has_moved, self._shape = self.row_id, self.highlighted != self._first, shape
        self.set_options(options)
        is_kept = has_moved and chosen in shape
        self._first = next((index for index, option in enumerate(options) if not option.disabled), None)
        self.highlighted = shape.index(chosen) if is_kept else self._first

    def on_reformat_size(self) -> None:
        """Adapt the columns to the new width."""
        self.show(self._sections)

    @property
    def _row_cells(self) -> int:
        return max(20, self.size.width - _MARGIN_CELLS)


def _options(sections: Sequence[Section], at: Columns) -> Iterator[Option]:
    for number, section in enumerate(sections):
        title = printable_line(section.title) if number else headings(section.title, at)
        yield Option(Content.styled(title, "bold"), id=f"heading-{number}", disabled=True)
        for row in section.rows:
            yield Option(Content(row_line(row, at)), id=row.id)
        if section.note:
            yield Option(Content(f"  {printable_line(section.note)}"), id=f"note-{number}", disabled=True)
