"""Starting a program in a pseudo-terminal. POSIX only."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["start_at_terminal"]

_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)

_SIZE_VARIABLES = {"COLUMNS", "LINES"}  # a test runner says there how large its own terminal is


def start_at_terminal(
    command: Sequence[str],
    environment: Mapping[str, str],
    size: tuple[int, int],
    *,
    folder: Path | None = None,
    is_leader: bool = False,
    stderr: int | None = None,
) -> tuple[subprocess.Popen[bytes], int]:
    """Start `command` in a terminal of `size`, columns and rows; return its process and our end of the terminal.

    As the leader of the terminal's session it is told by a signal of Ctrl-C and of the terminal's end. What it writes
    on standard error may go to a file, the descriptor `stderr`.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    taking = [sys.executable, "-c", _TAKE_TERMINAL] if is_leader else []
    try:
        process = subprocess.Popen(
            [*taking, *command],
            env={name: value for name, value in environment.items() if name not in _SIZE_VARIABLES},
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs if stderr is None else stderr,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    return process, ours
