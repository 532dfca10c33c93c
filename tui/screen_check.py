"""What prevents the full screen in this terminal: no cursor movement, or no UTF-8. Owns the question to the terminal
and the encoding of the standard streams. Imports nothing heavy: it runs before the app."""

from __future__ import annotations

import codecs
import os
import re
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper

_SAMPLE = "é"  # two bytes in UTF-8: a terminal of another encoding shows two characters
_ASK_CURSOR = "\x1b[6n"
_CURSOR = re.compile(rb"\x1b\[\d+;(\d+)R")
_PATIENCE_S = 2.0
_INLINE = "This is the chat without a screen; /help lists its commands."


def prepare_screen(ask: Callable[[], int | None] | None = None) -> str:
    """Make standard output and error write what the terminal shows; return why there can be no full screen, "" if there
    can. A locale without UTF-8 does not say what the terminal shows: `ask` returns the column of the cursor after a
    letter of two bytes, None for a terminal that does not answer."""
    if os.environ.get("TERM") == "dumb":
        _set_encodings(None)
        return f"TERM is dumb: this terminal cannot show the full screen. {_INLINE}"
    try:
        encoding = codecs.lookup(sys.stdout.encoding).name
    except (AttributeError, LookupError, TypeError):  # a stream of a test, or one that takes any text
        return ""
    if encoding == "utf-8":
        return ""
    column = (ask or _ask_terminal)()
    if column == len(_SAMPLE) + 1:
        _set_encodings("utf-8")
        return ""
    _set_encodings(None)
    reason = "the terminal does not say whether it shows UTF-8" if column is None else "the terminal shows no UTF-8"
    return f"The encoding of the locale is {encoding}, and {reason}. {_INLINE} Try LC_ALL=C.UTF-8 for the full screen."


def column_in(answer: bytes) -> int | None:
    found = _CURSOR.search(answer)
    return int(found[1]) if found else None


def _set_encodings(encoding: str | None) -> None:
    """Set the encoding (None: leave it); a character that cannot be shown is replaced."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding=encoding or stream.encoding, errors="replace")


def _ask_terminal() -> int | None:
    """Write the sample and ask for the cursor, on a line that is cleared afterwards."""
    if sys.platform == "win32":
        return None  # its console has an encoding of its own, which Python knows
    import termios
    import tty

    source, target = sys.stdin.fileno(), sys.stdout.fileno()
    usual = termios.tcgetattr(source)
    try:
        tty.setcbreak(source)
        os.write(target, f"\r{_SAMPLE}{_ASK_CURSOR}".encode())
        answer, deadline_s = b"", time.monotonic() + _PATIENCE_S
        while (column := column_in(answer)) is None and (left_s := deadline_s - time.monotonic()) > 0:
            if select.select([source], [], [], left_s)[0]:
                data = os.read(source, 1024)
                if not data:
                    return None
                answer += data
    except (OSError, termios.error):  # the terminal is gone; who reads or writes next learns it
        return None
    finally:
        with suppress(OSError, termios.error):
            os.write(target, b"\r\x1b[K")
            termios.tcsetattr(source, termios.TCSANOW, usual)
    return column
