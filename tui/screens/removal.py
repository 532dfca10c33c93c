"""What would be removed, and whether it shall be."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.terminal import printable_line
from tui.model_words import size

if TYPE_CHECKING:
    from app.client import Removed

__all__ = ["RemovalScreen"]

_YES, _NO = "remove", "keep"


class RemovalScreen(ModalScreen[bool]):
    """Names the files that go; the answer that changes nothing is chosen first."""

    CSS_PATH = "panel.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(False)", "Keep it", id="removal-close", tooltip="Go back and remove nothing"),
    ]

    def __init__(self, going: Removed) -> None:
        super().__init__()
        self._going = going

    def compose(self) -> ComposeResult:
        going = self._going
        frees = (
            f"That frees {size(going.n_bytes_freed)}."
            if going.n_bytes_freed
            else "That frees nothing: its bytes have another name."
        )
        files = "\n".join(f"  {printable_line(path)}" for path in going.paths)
        with VerticalScroll(classes="panel") as panel:
            panel.border_title = "Remove a model"
            yield Static(f"{printable_line(going.id)} goes, with its files:\n{files}\n{frees}\n", markup=False)
            yield OptionList(Option("Keep it", id=_NO), Option("Remove it", id=_YES))

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer, and go away."""
        self.dismiss(event.option_id == _YES)
