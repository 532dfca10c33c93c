"""A set of texts of which an answer writes one: what is left of them, and the grammar of that. Pure.

A blank behind a colon or a comma is optional. So are, where texts are `loose`, those that a text begins with: any
others may stand there. Independent of what the texts are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from app.engine.grammar.gbnf import literal

BLANKS = r"[ \t\n]{0,8}"
_OPTIONAL = re.compile(r"(?<=[:,]) ")
_BLANK = "\N{SYMBOL FOR SPACE}"  # an optional blank, while texts are compared
_SPACES = (" ", "\t", "\n")


def rest_after(text: str, begun: str, *, is_loose: bool = False) -> str | None:
    """Return what of `text` is to come after `begun`, None where that does not begin it."""
    if is_loose and text.startswith(_SPACES):
        left = begun.lstrip()
        text, begun = text.lstrip() if begun else text, left
    at = 0
    for character in begun:
        if text[at : at + 1] == character:
            at += 1
        elif at and text[at - 1] in ":," and text[at : at + 1] == " " and text[at + 1 : at + 2] == character:
            at += 2
        else:
            return None
    return text[at:]


def without_last_blank(text: str) -> str:
    """Return `text` without an optional blank at its end, which belongs to what follows."""
    return text[:-1] if _OPTIONAL.search(text[-2:]) else text


def common_begin(texts: Sequence[str]) -> str:
    """Return the text that all `texts` begin with."""
    first, last = min(texts), max(texts)
    n_common = next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first[:n_common]


def texts_grammar(texts: Sequence[str], *, is_loose: bool = False) -> str:
    """Return the GBNF of an answer that is one of `texts`."""
    return f"root ::= {texts_rule(texts, is_loose=is_loose)}\n"


def texts_rule(texts: Sequence[str], *, is_loose: bool = False) -> str:
    """Return a text in the place of a rule for one of `texts`; what several begin with is written once.

    llama.cpp follows all ways that begin alike at once: 200 of them for as many tools.
    """
    loose = {text for text in texts if is_loose and text.startswith(_SPACES)}
    ways = [f"{BLANKS} {_tree(_marked({text.lstrip() for text in loose}))}"] if loose else []
    if others := {*texts} - loose:
        ways.append(_tree(_marked(others)))
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


def _marked(texts: Iterable[str]) -> list[str]:
    return sorted(_OPTIONAL.sub(_BLANK, text) for text in texts)


def _tree(texts: Sequence[str]) -> str:
    """Return a rule for one of the sorted `texts`."""
    begin = common_begin(texts)
    if len(texts) == 1:
        return _written(begin)
    ways: dict[str, list[str]] = {}
    for text in texts:
        ways.setdefault(text[len(begin) : len(begin) + 1], []).append(text[len(begin) :])
    branches = [_tree(way) if first else '""' for first, way in ways.items()]
    return f"{_written(begin) + ' ' if begin else ''}({' | '.join(branches)})"


def _written(text: str) -> str:
    """Return `text` as GBNF, with its optional blanks."""
    parts = [literal(part) if part else "" for part in text.split(_BLANK)]
    return ' " "? '.join(parts).strip() or '""'
