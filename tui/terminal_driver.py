"""A Textual driver for a terminal that may disappear: its window closes or its connection breaks.

Owns the reaction: it stops writing and quits the app. Textual's own driver would read the end of input in a busy loop,
and the app would hang once its writer thread died; SIGHUP only reaches the processes of the terminal's own session.
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

_CHECK_EVERY_S = 0.25


class DisconnectAwareDriver(LinuxDriver):
    """Textual's driver for Linux and macOS; the end of the terminal ends the app."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        assert sys.__stdout__ is not None  # only None without a console
        self._output = _Output(sys.__stdout__)  # Textual writes to standard error, which may be redirected
        self._file = cast("TextIOWrapper", self._output)
        self._input = select.poll()
        self._input.register(self.fileno, 0)  # no events: a hang-up is always reported
        self._watch: asyncio.TimerHandle | None = None

    def start_application_mode(self) -> None:
        self._check()
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def stop_application_mode(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().stop_application_mode()

    def _run_input_thread(self) -> None:
        """Read keys; an error ends the app like any other. Textual's own method would print its message."""
        try:
            self.run_input_thread()
        except Exception as error:
            self._app.call_later(cast("LocalllmApp", self._app).fail, error)

    def _check(self) -> None:
        if self._output.is_broken or self._input.poll(0):
            cast("LocalllmApp", self._app).quit_without_asking()
        else:
            self._watch = asyncio.get_running_loop().call_later(_CHECK_EVERY_S, self._check)


class _Output:
    """The terminal as a file; output after the terminal closed is dropped."""

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
