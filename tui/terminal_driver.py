"""A Textual driver for a terminal that may disappear, and whose pastes may contain anything.

After a closed window or a broken connection it stops writing and quits the app. Textual's own driver would read the end
of input in a busy loop, and the app would hang once its writer thread died; SIGHUP only reaches the processes of the
terminal's own session.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys
from codecs import getincrementaldecoder
from collections.abc import Generator, Iterator
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO, cast

from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Paste
from textual.message import Message

from tui.pictures.terminal_graphics import GraphicsQuery

if TYPE_CHECKING:
    from tui.app import LocalllmApp


_CHECK_EVERY_S = 0.25
_READ_EVERY_S = 0.1


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
        self.graphics_query = GraphicsQuery()

    def start_application_mode(self) -> None:
        self._check()
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def stop_application_mode(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().stop_application_mode()

    def _sigcont_application(self, *arguments: Any) -> None:
        """Go on after a suspension. A terminal that vanishes sends the same signal to an app that never stopped, which
        Textual would start a second time: its first threads would outlive it."""
        if self._must_signal_resume:
            super()._sigcont_application(*arguments)

    def _run_input_thread(self) -> None:
        """Read keys; an error ends the app like any other. Textual's own method would print its message."""
        try:
            self.run_input_thread()
        except Exception as error:
            self._app.call_later(cast("LocalllmApp", self._app).fail, error)

    def run_input_thread(self) -> None:
        parser = InputParser(self.graphics_query)
        decode = getincrementaldecoder("utf-8")("replace").decode  # a paste may be invalid UTF-8
        with selectors.SelectSelector() as selector:  # the only one that macOS has for terminals
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(_READ_EVERY_S):
                    data = os.read(self.fileno, 1 << 16)
                    for event in parser.feed(decode(data)):
                        self.process_message(event)
                    if not data:
                        self.exit_event.wait(_READ_EVERY_S)  # the terminal is gone: `_check` quits
                for event in parser.tick():
                    self.process_message(event)

    def _check(self) -> None:
        if self._output.is_broken or self._input.poll(0):
            cast("LocalllmApp", self._app).quit_without_asking()
        else:
            self._watch = asyncio.get_running_loop().call_later(_CHECK_EVERY_S, self._check)


class InputParser:
    """Turns what a terminal sends into events. Textual's parser alone takes an escape character in a paste, and what
    follows it, for keys: Enter would send half a paste, and any other key would do what it does. Replies to the
    question about pictures go to `graphics`."""

    def __init__(self, graphics: GraphicsQuery | None = None) -> None:
        self._parser = XTermParser()
        self._graphics = graphics or GraphicsQuery()
        self._tail = ""  # the last input, which may be the beginning of the mark of a paste
        self._paste: str | None = None

    def feed(self, data: str) -> Iterator[Message]:
        """Yield the events of `data`, which may begin and end anywhere."""
        while data:
            data = yield from self._keys(data) if self._paste is None else self._pasted(data)

    def tick(self) -> Iterator[Message]:
        """Yield the events for which the time has come, such as a press of the Escape key."""
        if keys := self._graphics.overdue():
            yield from self._parser.feed(keys)
        yield from self._parser.tick()

    def _keys(self, data: str) -> Generator[Message, None, str]:
        """Yield the events before a paste; return what follows."""
        recent = self._tail + data
        start = recent.find(BRACKETED_PASTE_START)
        n_keys = len(data) if start < 0 else start + len(BRACKETED_PASTE_START) - len(self._tail)
        self._tail = recent[1 - len(BRACKETED_PASTE_START) :] if start < 0 else ""
        self._paste = None if start < 0 else ""
        if keys := self._graphics.filtered(data[:n_keys]):  # none would be the end of the input
            yield from self._parser.feed(keys)
        return data[n_keys:]

    def _pasted(self, data: str) -> Generator[Message, None, str]:
        """Yield the paste once its end has come; return what follows."""
        assert self._paste is not None
        searched_from = max(0, len(self._paste) - len(BRACKETED_PASTE_END))
        paste = self._paste + data
        end = paste.find(BRACKETED_PASTE_END, searched_from)
        if end < 0:
            self._paste = paste
            return ""
        # The text itself may contain the mark of an end: the last one before another paste counts.
        next_start = paste.find(BRACKETED_PASTE_START, end)
        end = paste.rfind(BRACKETED_PASTE_END, end, None if next_start < 0 else next_start)
        self._paste = None
        yield from (event for event in self._parser.feed(BRACKETED_PASTE_END) if not isinstance(event, Paste))
        yield Paste(paste[:end])
        return paste[end + len(BRACKETED_PASTE_END) :]


class _Output:
    """The terminal as a file; output after the terminal closed is dropped."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.is_broken = False

    def write(self, text: str) -> None:
        if self.is_broken:
            return
        try:
            self._file.write(text)
        except UnicodeEncodeError:  # would end Textual's writer, and leave an app that draws nothing
            encoding = self._file.encoding
            self._file.write(text.encode(encoding, "replace").decode(encoding))
        except (OSError, ValueError):  # ValueError: another part of the program closed it
            self.is_broken = True

    def flush(self) -> None:
        if not self.is_broken:
            try:
                self._file.flush()
            except (OSError, ValueError):
                self.is_broken = True

    def fileno(self) -> int:
        return self._file.fileno()
