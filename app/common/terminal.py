"""Text for a terminal: untrusted text without control characters, and sizes with three digits and a unit.

Owns which characters may reach the screen. Independent of colours and widgets.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence

from quantizer.figures import format_figure

_KEPT = {"\n", "\t"}
_BIDI_CONTROLS = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
# C0 with ESC, DEL, C1 (its 8-bit CSI and OSC too), lone surrogates, line and paragraph separators, bidi controls.
_DROPPED = {
    code: None
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000), 0x2028, 0x2029, 0xFEFF, *_BIDI_CONTROLS)
    if chr(code) not in _KEPT
}

# Colours and the like (CSI), and titles and links (OSC).
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)")
_WHOLE_TPS = 10.0  # from here on a whole number says it


def printable(text: str) -> str:
    """Return `text` without control characters but newlines and tabs; a stream may be cut anywhere."""
    return text.translate(_DROPPED)


def printable_line(text: str) -> str:
    """Return `text` as one sanitized line, for names and titles."""
    return " ".join(printable(text).split())


def printable_paste(text: str) -> str:
    """Return pasted text sanitized, without the letters of its control sequences, its lines ended by newlines."""
    return printable(_SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))


def quoted_name(name: str) -> str:
    """Return the name or path of a file for a line that a person decides by: as it is where each character shows, else
    in quotes with escapes, so that no name forges a line, turns its direction or looks like another name."""
    return name if name.isprintable() and not name.startswith('"') else json.dumps(name)


def quoted_command(argv: Iterable[str]) -> str:
    """Return the arguments of a command for a line that a person decides by, each as a shell would take it; one with
    characters that do not show has escapes."""
    return " ".join(shlex.quote(each) if each.isprintable() else json.dumps(each) for each in argv)


def format_bytes(n_bytes: int) -> str:
    """Return a size, decimal: 4.92 GB."""
    return _scaled(n_bytes, (" B", " kB", " MB", " GB", " TB"))


def counted(n: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 line", "1,200 lines", "2 entries"."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def speed_words(tps: float) -> str:
    """Return a speed as people read it: "12 tokens a second", "0.7 tokens a second"."""
    shown = f"{tps:,.0f}" if tps >= _WHOLE_TPS else f"{tps:.1f}".removesuffix(".0")
    return f"{shown} token{'' if shown == '1' else 's'} a second"


def format_count(n: int) -> str:
    """Return a number of weights: 1.24B."""
    return _scaled(n, ("", "k", "M", "B", "T"))


def _scaled(n: int, units: Sequence[str]) -> str:
    size, unit = float(n), units[0]
    for larger in units[1:]:
        if size < 999.5:  # what would be rounded to four digits
            break
        size, unit = size / 1000, larger
    return f"{format_figure(size, 3)}{unit}"
