"""A simulated user of a line-based command in a pseudo-terminal: types, and reads what appears."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from quantizer.system.process import python_command
from tests.patience import PATIENCE_S

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)

import termios

from tests.tui.at_terminal import start_at_terminal

__all__ = ["CTRL_C", "CTRL_D", "PROMPT", "Typist"]

CTRL_C, CTRL_D = "\x03", "\x04"
PROMPT = ">>> "


class Typist:
    """`shown` is all that was read so far, controls and all."""

    def __init__(
        self, environment: Mapping[str, str], *arguments: str, n_columns: int = 80, folder: Path | None = None
    ) -> None:
        self.shown = ""
        self._unread = ""
        self.process, self._terminal = start_at_terminal(
            python_command("tui", *arguments),
            {"TERM": "dumb", **environment},
            (n_columns, 24),
            folder=folder,
            is_leader=True,
        )

    def __enter__(self) -> Typist:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def read_until(self, words: str) -> str:
        """Return what is shown up to and with `words`; the rest is kept for the next call."""
        deadline_s = time.monotonic() + PATIENCE_S
        while words not in self._unread:
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, f"no {words!r} in {self._unread!r}"
            came = os.read(self._terminal, 4096).decode("utf-8", "replace")
            self._unread += came
            self.shown += came
        seen, _, self._unread = self._unread.partition(words)
        return seen + words

    def sends(self, text: str) -> str:
        """Enter `text` and return what is shown up to the next prompt."""
        self.type(f"{text}\n")
        return self.read_until(PROMPT)

    def leaves(self) -> int:
        """Press Ctrl-D and return the exit status."""
        self.type(CTRL_D)
        return self.process.wait(timeout=PATIENCE_S)
