"""What is typed while an answer runs is not shown in the middle of it: it waits for the next prompt.

Owns that one switch of the terminal. Takes nothing from its input.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["without_echo"]


@contextmanager
def without_echo() -> Iterator[None]:
    """Show nothing of what is typed for as long as this lasts; Ctrl-C does what it does. Nothing where stdin is no
    terminal, and on Windows, whose editor shows what it reads itself."""
    if sys.platform == "win32" or sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    usual = termios.tcgetattr(descriptor)
    silent = [*usual]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, silent)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may be gone by now
            termios.tcsetattr(descriptor, termios.TCSANOW, usual)
