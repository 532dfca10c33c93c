"""The terminal that the app draws on, which may vanish at any time: its window is closed, its connection breaks.

Owns what happens then: nothing more is written, and the app leaves. Textual's own driver would read the end of input
without pause, on a whole core, and the app would stand still for ever once its thread that writes had died; the signal
that tells of a closed terminal (SIGHUP) reaches only the processes of the terminal's own session.
"""

from __future__ import annotations

import asyncio
import select
import sys
from io import TextIOWrapper
from typing import IO, TYPE_CHECKING, Any, cast

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from tui.app import LocalllmApp

__all__ = ["DisconnectAwareDriver"]

_LOOK_EVERY_S = 0.25


class DisconnectAwareDriver(LinuxDriver):
    """Textual's driver for a terminal of Linux or macOS; the end of the terminal is the end of the app."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        assert sys.__stdout__ is not None  # only a program without a console has none
        self._output = _Output(sys.__stdout__)  # Textual writes on standard error, which may lead into a file
        self._file = cast("TextIOWrapper", self._output)
        self._input = select.poll()
        self._input.register(self.fileno, 0)  # nothing is waited for; that it hung up is told unasked
        self._watch: asyncio.TimerHandle | None = None

    def start_application_mode(self) -> None:
        self._look()
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def stop_application_mode(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().stop_application_mode()

    def _run_input_thread(self) -> None:
        """Read keys; an error ends the app as any other does. Textual's own way would print its text."""
        try:
            self.run_input_thread()
        except Exception as error:
            self._app.call_later(cast("LocalllmApp", self._app).fail, error)

    def _look(self) -> None:
        if self._output.is_broken or self._input.poll(0):
            cast("LocalllmApp", self._app).quit_without_asking()
        else:
            self._watch = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)


class _Output:
    """A terminal to write on: once it takes nothing more, what is written is dropped, for nobody looks any more."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.is_broken = False

    def write(self, text: str) -> None:
        if not self.is_broken:
            try:
                self._file.write(text)
            except OSError:
                self.is_broken = True

    def flush(self) -> None:
        if not self.is_broken:
            try:
                self._file.flush()
            except OSError:
                self.is_broken = True

    def fileno(self) -> int:
        return self._file.fileno()
