"""Whether a line came alone or at the head of a pasted text, where the line editor cannot tell.

Owns a look at the terminal's input. Takes nothing from it.
"""

from __future__ import annotations

import select
import sys

__all__ = ["is_more_waiting"]

_GAP_S = 0.02  # a terminal hands over a paste in pieces that come closer than this; fingers are slower


def is_more_waiting() -> bool:
    """Return whether text follows the line that was read, so soon that it was pasted with it.

    A terminal in its usual mode tells of whole lines only: for a moment it is asked of every character.
    """
    if sys.platform == "win32":
        return False
    import termios

    usual = termios.tcgetattr(0)
    watching = [*usual]
    watching[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(0, termios.TCSANOW, watching)
    try:
        return bool(select.select([0], [], [], _GAP_S)[0])
    finally:
        termios.tcsetattr(0, termios.TCSANOW, usual)
