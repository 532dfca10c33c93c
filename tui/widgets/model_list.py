"""The list of models: headings, rows in columns, one of them chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual.binding import Binding
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.terminal import printable_line
from tui.model_rows import Columns, Section, columns, headings, row_line

__all__ = ["ModelList"]

_MARGIN_CELLS = 3  # the scroll bar, and air


class ModelList(OptionList):
    """Shows sections; the highlighted row keeps its place while they change."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("up,down", "", "Rows", id="rows", tooltip="Go from model to model"),
        Binding("home,end,pageup,pagedown", "", "Pages", id="row-pages", tooltip="Go farther"),
    )

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._sections: tuple[Section, ...] = ()
        self._shape: tuple[str | None, ...] = ()
        self._first: int | None = None  # where the highlight is until somebody moves it

    @property
    def row_id(self) -> str:
        """The id of the highlighted row, "" for none."""
        option = self.highlighted_option
        return (option.id or "") if option is not None else ""

    def show(self, sections: Sequence[Section]) -> None:
        """Show `sections`: where the rows are the same ones, only what they say is drawn anew."""
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

    def on_resize(self) -> None:
        """Give the columns the new width."""
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
