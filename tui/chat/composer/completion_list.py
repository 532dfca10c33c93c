"""The list of completions above the prompt: shown while typing, never focused."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.terminal import printable_line
from tui.chat.composer.completion import Completion

__all__ = ["CompletionList"]


class CompletionList(OptionList):
    """A short list, hidden while it is empty. A click posts OptionList's own OptionSelected."""

    can_focus = False

    def __init__(self) -> None:
        super().__init__(markup=False, compact=True)
        self.display = False
        self._completions: Sequence[Completion] = ()

    def show(self, completions: Sequence[Completion]) -> None:
        """Show `completions` with the first one selected; hide if there are none."""
        if completions != self._completions:
            self._completions = completions
            self.clear_options()
            self.add_options(Option(_line(completion)) for completion in completions)
            self.highlighted = 0 if completions else None
        self.display = bool(completions)

    def move(self, n_rows: int) -> None:
        """Move the selection, wrapping around."""
        if self._completions:
            self.highlighted = ((self.highlighted or 0) + n_rows) % len(self._completions)

    @property
    def chosen(self) -> Completion | None:
        """The selected completion; None while hidden."""
        return self._completions[self.highlighted] if self.display and self.highlighted is not None else None


def _line(completion: Completion) -> Text:
    line = Text(printable_line(completion.text), style="bold")
    return line.append(f"  {completion.note}", style="not bold dim") if completion.note else line
