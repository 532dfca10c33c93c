"""A command of the person's own in the transcript: its line, and its output as it comes."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from app.common.terminal import counted, printable_line
from app.tools.display import plain_lines
from tui.chat.tools.calls import SIGNS, FoldLine, StyledLines

_COMMAND_CELLS = 36  # of one that is not opened, so that its state is seen
_N_TAIL_LINES = 10
_MAX_CHARACTERS = 200_000  # that are kept while it runs
_N_OPEN_LINES = 2_000


class ShellView(Vertical):
    """No message: it is neither stored nor sent. The last lines are shown; a click shows all that is kept."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = printable_line(command)
        self._short = f"{set_cell_size(self._command, _COMMAND_CELLS - 1)}…"
        self._state = "running: Esc stops it"
        self._output = ""
        self._is_open = False
        self._line = FoldLine(markup=False)
        self._lines = StyledLines()

    def compose(self) -> ComposeResult:
        yield self._line
        yield self._lines

    def on_mount(self) -> None:
        self._show()

    def add(self, text: str) -> None:
        self._output = (self._output + text)[-_MAX_CHARACTERS:]
        self._show()

    def end(self, state: str, *, has_failed: bool, output: str | None = None) -> None:
        """Show how it ended; `output` is all that was kept of it."""
        self._state = state
        self._output = self._output if output is None else output
        self.set_class(has_failed, "-failed")
        self._show()

    @on(FoldLine.Clicked)
    def toggle(self) -> None:
        self._is_open = not self._is_open
        self._show()

    def _show(self) -> None:
        lines = plain_lines(self._output.rstrip("\n")) if self._output.strip() else ()
        shown = lines[-_N_OPEN_LINES if self._is_open else -_N_TAIL_LINES :]
        n_hidden = len(lines) - len(shown)
        more = f" · {counted(n_hidden, 'more line')}" if n_hidden else ""
        command = self._command if self._is_open or cell_len(self._command) <= _COMMAND_CELLS else self._short
        self._line.update(f"{SIGNS[self._is_open]} $ {command} · {self._state}{more}", layout=False)
        self._lines.show(shown)
        self._lines.display = bool(shown)
