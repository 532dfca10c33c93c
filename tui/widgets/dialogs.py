"""Modal dialogs: a choice from a list, one line of text, and a table of labelled texts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.chat.activity import bar_of
from app.common.terminal import printable, printable_line
from quantizer.system.errors import UserError
from tui.key_queue import KEYS_WAIT

_NUMBERS = frozenset("123456789")
_DRAWN_EVERY_S = 0.2


class TableDialog(ModalScreen[None]):
    """Labelled printable texts; scrollable, closed with Esc. A subclass defines its keys and its CSS_PATH."""

    def __init__(self, title: str, rows: Iterable[tuple[str, str]]) -> None:
        super().__init__()
        self._title = title
        self._rows = rows

    def compose(self) -> ComposeResult:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(ratio=1, overflow="fold")
        for label, text in self._rows:
            table.add_row(Text(label, style="bold"), Text(text))
        with VerticalScroll() as panel:
            panel.border_title = Text(self._title).markup
            panel.border_subtitle = "Esc closes"
            yield Static(table)


class Dialog(ModalScreen[str | None]):
    """A panel with an explanation, if there is one, above what a subclass asks; Escape returns None."""

    CSS_PATH = "dialogs.tcss"
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-tall")]  # noqa: RUF012 - Textual declares no class variable
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="ask-cancel", tooltip="Cancel without changes")
    ]

    def __init__(self, title: str, subtitle: str, explanation: str) -> None:
        super().__init__()
        self._title, self._subtitle = title, f"{subtitle} · Esc cancels"
        self._explanation = Static(printable(explanation), markup=False, id="explanation")
        self._explanation.display = bool(explanation)

    def compose(self) -> ComposeResult:
        with Vertical(id="ask") as panel:
            panel.border_title, panel.border_subtitle = self._title, self._subtitle
            yield self._explanation
            yield from self.fields()

    def fields(self) -> ComposeResult:
        raise NotImplementedError


class ChoiceDialog(Dialog):
    """Returns the id of the choice, or None after Escape. The first choice is highlighted; `title` is trusted text. If
    `is_numbered`, the keys 1 to 9 choose too."""

    def __init__(self, title: str, explanation: str, choices: Mapping[str, str], *, is_numbered: bool = False) -> None:
        super().__init__(title, f"{'Number or ' if is_numbered else ''}Enter selects", explanation)
        self._choices = choices
        self._is_numbered = is_numbered

    def fields(self) -> ComposeResult:
        width = len(str(len(self._choices)))
        options = [
            Option(printable(f"{number:{width}}  {text}" if self._is_numbered else text), choice_id)
            for number, (choice_id, text) in enumerate(self._choices.items(), start=1)
        ]
        yield OptionList(*options, markup=False, compact=True, classes="-numbered" if self._is_numbered else None)

    def on_key(self, event: Key) -> None:
        number = int(event.key) if self._is_numbered and event.key in _NUMBERS else 0
        if 0 < number <= len(self._choices):
            event.stop()
            self.dismiss(list(self._choices)[number - 1])

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option_id)


class InputDialog(Dialog):
    """Asks until `take` accepts the line without a UserError, or the user cancels. `title` is trusted text.
    `suggester` completes the line."""

    def __init__(
        self,
        title: str,
        take: Callable[[str], Awaitable[None]],
        *,
        value: str = "",
        explanation: str = "",
        suggester: Suggester | None = None,
    ) -> None:
        super().__init__(title, "Enter confirms", explanation)
        self._take = take
        self._line = Input(printable_line(value), compact=True, select_on_focus=False, suggester=suggester)

    def fields(self) -> ComposeResult:
        yield self._line
        yield Static("", markup=False, id="fault")

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._offer(event.value)

    @work(group=KEYS_WAIT, exclusive=True)
    async def _offer(self, line: str) -> None:
        fault = self.query_one("#fault", Static)
        fault.update("…")
        try:
            await self._take(line)
        except UserError as error:
            fault.update(printable(str(error)))
        else:
            self.dismiss()


class ProgressDialog(Dialog, inherit_bindings=False):
    """Shows how far something is, by the `share` of it that is done, until `end`; Esc calls `stop`. `title` is trusted
    text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="progress-stop", tooltip="Stop what is going on")
    ]

    def __init__(self, title: str, explanation: str, share: Callable[[], float], stop: Callable[[], None]) -> None:
        super().__init__(title, "", explanation)
        self._subtitle = "Esc stops"
        self._share, self._stop = share, stop
        self._bar = Static(markup=False)
        self._has_ended = False

    def fields(self) -> ComposeResult:
        yield self._bar

    def on_mount(self) -> None:
        self._draw()
        self.set_interval(_DRAWN_EVERY_S, self._draw)

    def action_stop(self) -> None:
        self._subtitle = "stopping …"
        self.query_one("#ask").border_subtitle = self._subtitle
        self._stop()

    def end(self) -> None:
        """Close it, once a dialog that was opened over it is closed."""
        self._has_ended = True
        if self.is_attached and self.is_current:
            self.dismiss()

    def on_screen_resume(self) -> None:
        if self._has_ended:
            self.dismiss()

    def _draw(self) -> None:
        share = self._share()
        self._bar.update(f"{bar_of(share)} {share:.0%}", layout=False)
