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
        self._offers: Sequence[Completion] = ()

    def show(self, offers: Sequence[Completion]) -> None:
        """Show `offers` with the first one selected; hide if there are none."""
        if offers != self._offers:
            self._offers = offers
            self.clear_options()
            self.add_options(Option(_line(offer)) for offer in offers)
            self.highlighted = 0 if offers else None
        self.display = bool(offers)

    def move(self, n_rows: int) -> None:
        """Move the selection, wrapping around."""
        if self._offers:
            self.highlighted = ((self.highlighted or 0) + n_rows) % len(self._offers)

    @property
    def chosen(self) -> Completion | None:
        """The selected completion; None while hidden."""
        return self._offers[self.highlighted] if self.display and self.highlighted is not None else None


def _line(offer: Completion) -> Text:
    line = Text(printable_line(offer.text), style="bold")
    return line.append(f"  {offer.note}", style="not bold dim") if offer.note else line
