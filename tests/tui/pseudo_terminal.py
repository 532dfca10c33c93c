"""A program in a pseudo-terminal: what is typed are bytes, what is seen are the bytes that came over it.

Owns the two ends of the terminal and the program's process; knows no screen, only what was written in what order.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from quantizer.system.process import python_command
from tests.patience import PATIENCE_S
from tests.tui.at_terminal import start_at_terminal
from tests.tui.hostile import letters

__all__ = ["PseudoTerminal"]

_LOOK_EVERY_S = 0.02
_ESC_PAUSE_S = 0.5


class PseudoTerminal:
    """A window with the app in it, which is the leader of the terminal's session; made by `app`."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process = process
        self._ours = ours
        self._written = bytearray()
        self._is_there = True
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @classmethod
    @contextmanager
    def app(
        cls,
        environment: Mapping[str, str],
        folder: Path,
        *arguments: str,
        size: tuple[int, int] = (100, 30),
        is_told_of_its_end: bool = True,
        stderr: int | None = None,
        program: Sequence[str] | None = None,
    ) -> Iterator[PseudoTerminal]:
        """Run the terminal app in `folder`, in columns and rows of `size`; kill it at the end where it still runs.

        `program` is run in place of the command `localllm`. The session is told by SIGHUP of the end of its terminal,
        if this is its terminal: `is_told_of_its_end`. What it writes on standard error may go to a file, the descriptor
        `stderr`.
        """
        process, ours = start_at_terminal(
            [*(program or python_command("tui")), *arguments],
            {**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            size,
            folder=folder,
            is_leader=is_told_of_its_end,
            stderr=stderr,
        )
        terminal = cls(process, ours)
        try:
            yield terminal
        finally:
            process.kill()
            process.wait()
            terminal.vanish()

    @property
    def written(self) -> str:
        """All that came over the terminal so far; bytes that are no UTF-8 are lone surrogates."""
        return self._written.decode("utf-8", "surrogateescape")

    def types(self, keys: str) -> None:
        """Press keys; behind Esc comes the pause that tells it from the beginning of another key."""
        os.write(self._ours, keys.encode())
        if keys.endswith("\x1b"):
            time.sleep(_ESC_PAUSE_S)

    def resizes(self, n_columns: int, n_rows: int) -> None:
        """Make the window another size; the system tells the program."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", n_rows, n_columns, 0, 0))

    def sees(self, *texts: str, since: int = 0) -> None:
        """Wait until each of the texts was written in one piece, after the first `since` characters of `written`."""
        for text in texts:
            self.until(lambda text=text: text in letters(self.written[since:]), f"{text!r} was never written")

    def until(self, predicate: Callable[[], bool], complaint: str) -> None:
        """Wait until `predicate` holds; else fail with the complaint and what was written last."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not predicate():
            assert time.monotonic() < deadline_s, f"{complaint}:\n{letters(self.written)[-3000:]}"
            time.sleep(_LOOK_EVERY_S)

    def vanish(self) -> None:
        """Close our end, as a window does that is closed."""
        if self._is_there:
            self._is_there = False
            self._reader.join()  # a read under way would hold the terminal
            os.close(self._ours)

    def _read(self) -> None:
        while self._is_there:
            if select.select([self._ours], [], [], _LOOK_EVERY_S)[0]:
                try:
                    self._written += os.read(self._ours, 1 << 16)
                except OSError:  # nobody has the other end any more
                    return
