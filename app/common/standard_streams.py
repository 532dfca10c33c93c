"""The streams that a process starts with: those that its parent closed, and an output that takes no more.

The next file that is opened gets the number of a closed stream: a database, say, into which all that is printed goes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

_MODES = ("r", "w", "w")


def open_missing_streams() -> None:
    """Open the null device in place of each standard stream that is closed, as a shell's `>&-` leaves it."""
    for descriptor, (name, mode) in enumerate(zip(("stdin", "stdout", "stderr"), _MODES, strict=True)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest one that is free
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", errors="replace", closefd=False))


def private_streams() -> tuple[int, int]:
    """Return descriptors of stdin and stdout for messages alone: from now on what native code, a library or a child
    process prints goes to stderr, and none reads the input."""
    messages_in, messages_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return messages_in, messages_out


def discard_output() -> None:
    """Send what is still to be printed nowhere: the reader of stdout is gone, or its disk is full. Without this Python
    fails once more when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):  # a stream of a test has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def say_no_more() -> None:
    """Let the interpreter print no warnings or ignored exceptions while it takes down what a fault of the system left
    half-made, such as an event loop without its socket: the error was told."""
    sys.unraisablehook = lambda _unraisable: None
    warnings.simplefilter("ignore")


def print_error(text: str) -> None:
    """Print a line on stderr, if that can be written."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
