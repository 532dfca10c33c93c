"""120 strings that a model, a file or a hub may send to take over a terminal, and the judge of what reached it.

Every parameter of their control sequences is 1337, which the app's own never use. The judge knows Unicode's categories
and the grammar of ECMA-48, and nothing of `app.common.terminal`.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["BENIGN", "HOSTILE", "controls_in", "heads", "letters", "sequence_kinds", "sequences"]

ESC, BEL, ST = "\x1b", "\x07", "\x1b\\"

_CSI = [f"{ESC}[1337{final}" for final in "mAEFGHJKLMPSTX@dbnrt"] + [
    f"{ESC}[?1337h",
    f"{ESC}[?1337l",
    f"{ESC}[>1337c",
    f"{ESC}[1337;1337H",
    f"{ESC}[1337 q",
    f"{ESC}[!p1337",
    f"{ESC}[38;5;1337m red {ESC}[m",
]
_OSC = [
    f"{ESC}]{code};1337{end}"
    for code, end in (
        ("0", BEL),
        ("0", ST),
        ("2", "\x9c"),
        ("4;1;rgb:ff/00/00", BEL),
        ("7;file://evil/", ST),
        ("8;;http://evil.example/", ST),
        ("9;4;3", BEL),
        ("10;#ff0000", BEL),
        ("11;?", BEL),
        ("52;c;cm0gLXJmIC8K", BEL),
        ("52;p;?", ST),
        ("104", BEL),
        ("133;A", BEL),
        ("777;notify;title", BEL),
        ("1337;File=inline=1:AAAA", BEL),
        ("50", ""),  # never ended
    )
]
_STRINGS = [
    f"{ESC}{kind}1337{end}"
    for kind, end in (
        ("P$q", ST),
        ("Pq#0;2;0;0;0", ST),
        ("Ptmux;\x1b\x1b]52;c;AAAA\x07", ST),
        ("_Ga=T,f=24;", ST),
        ("^", ST),
        ("X", ST),
        ("k", ST),
    )
]
_PLAIN_ESCAPES = [
    f"{ESC}{rest}" for rest in ("c", "7", "8", "M", "D", "E", "H", "Z", "=", "#8", "(0", "N", "|", "", ESC)
]
_C1 = [f"{control}1337{rest}" for control, rest in (
    ("\x9b", "m"), ("\x9b", "H"), ("\x9b?", "h"), ("\x9d", "\x9c"), ("\x9d52;c;", "\x07"), ("\x90", "\x9c"),
    ("\x9f", "\x9c"), ("\x9e", "\x9c"), ("\x98", "\x9c"), ("\x84", ""), ("\x85", ""), ("\x8d", ""), ("\x8e", ""),
)]  # fmt: skip
_C0 = ["\0", "\b\b\b", "\a", "\v", "\f", "\rover", "\x0e", "\x0f", "\x11\x13", "\x1a", "\x05", "\x7f", "\x1c\x1f"]
_BIDI = ["\u202egpj.exe", "\u202d", "\u202a\u202c", "\u202b", "\u2066\u2069", "\u2067", "\u2068", "\u200f", "\u061c"]
_SEPARATORS = ["\u2028", "\u2029", "\ufeff"]
_SURROGATES = ["\ud800", "\udc1b[1337m", "\udc9b1337m"]
_MARKUP = ["[bold]", "[/]", "[@click=app.exit]go[/]", "[link=http://evil.example]", "[on red]", "\\[", "[#f00"]
_MARKDOWN = [
    "&#x202e;",
    "&#27;[1337m",
    "<http://x/%1b%5d52;c;1337%07>",
    "[a](http://x/%1b[1337m)",
    "http://x/%c2%9b1337m",
]
_WIDTHS = ["\u0301" * 2000, "\u200b" * 500]

_EVIL = [*_CSI, *_OSC, *_STRINGS, *_PLAIN_ESCAPES, *_C1, *_C0, *_BIDI, *_SEPARATORS, *_SURROGATES, *_MARKUP]
_EVIL += [*_MARKDOWN, *_WIDTHS]

HOSTILE = tuple(f"h{number:03}{evil}t{number:03}" for number, evil in enumerate(_EVIL))
"""Each between a head and a tail by which it is found on a screen."""

BENIGN = tuple(f"h{number:03} is plain t{number:03}" for number in range(len(HOSTILE)))

_SEQUENCE = re.compile(
    r"\x1b(?:\[(?P<parameters>[0-?]*)(?P<final>[ -/]*[@-~])|(?P<string>[\]P_^Xk]).*?(?:\x07|\x1b\\)|[ -/]*[0-~])",
    re.DOTALL,
)
_REORDERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_MARKS = "\u061c\u200e\u200f\ufeff"


def heads() -> list[str]:
    """Return what each string begins with."""
    return [text[:4] for text in HOSTILE]


def sequences(output: str) -> list[str]:
    """Return the escape sequences in what was written to a terminal, in order."""
    return [found.group() for found in _SEQUENCE.finditer(output)]


def letters(output: str) -> str:
    """Return what stands between the escape sequences."""
    return _SEQUENCE.sub("", output)


def sequence_kinds(output: str) -> set[str]:
    """Return what kinds of sequences there are: how each begins and ends, without its numbers."""
    return {re.sub(r"\d+", "", found.group()) if found["final"] != "m" else "m" for found in _SEQUENCE.finditer(output)}


def controls_in(output: str) -> set[str]:
    """Return what in the text between the sequences a terminal would obey, or reorder text for."""
    return {repr(character) for character in letters(output) if _is_control(character)} - {repr("\n")}


def _is_control(character: str) -> bool:
    return (
        unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}
        or unicodedata.bidirectional(character) in _REORDERING
        or character in _MARKS
    )
