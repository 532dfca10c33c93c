"""The tool calls that an answer may contain, as texts and grammars: what binds the answer, and from where. Pure values.

A call is a head, which names the tool, and the rest: arguments and what closes the call. Heads are texts, of which an
answer writes one; the rest of each tool has a grammar of its own, so that one of 200 tools is read only when it is
called. A blank behind a colon or a comma of such a text is optional.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.engine.grammar.gbnf import literal

# In the text of a head: how many calls the answer has before this one, and that counted from 1.
CALL_NUMBER, CALL_ORDINAL = "\N{SYMBOL FOR RECORD SEPARATOR}", "\N{SYMBOL FOR UNIT SEPARATOR}"


def numbered(text: str, n_calls: int) -> str:
    """Return `text` of a call that `n_calls` come before."""
    return text.replace(CALL_NUMBER, str(n_calls)).replace(CALL_ORDINAL, str(n_calls + 1))


@dataclass(frozen=True, slots=True)
class CallHead:
    """The text of a call from its begin to its arguments; `part` is the index of the grammar of what follows. The first
    `n_committed` characters of a text that may be the answer itself decide that it is a call."""

    text: str
    part: int
    n_committed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """What binds an answer with tools; grammars lack the rules of plain JSON values. A call begins where the answer's
    text has one of `openings`, or where the text begins with one of the characters `bare` and with the committed
    characters of a head. With `begin` the answer is bound from its first character. Where the prompt has `begun` a
    header, the answer is bound from there, too: by heads, and by `answers`, which stand where the first head may and
    begin no call."""

    heads: tuple[CallHead, ...]
    parts: tuple[str, ...]  # what follows a head, by its `part`
    openings: tuple[tuple[str, str], ...] = ()  # each with the part of `first` and a head that it stands for
    first: str = ""  # before the first call
    between: str = ""  # before each other one
    last: str = ""  # behind the last
    is_repeated: bool = False  # else there is one call
    goes_on: bool = False  # text may follow calls, else the answer ends there
    bare: str = ""
    begin: str = ""  # the grammar of reasoning, if any, and all that may come then, calls up to the end of their head
    before_head: tuple[str, ...] = ()  # with `begin`: a head follows directly or behind one of these
    begun: str = ""
    answers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.heads, "some tool may be called"
        assert all(0 <= head.part < len(self.parts) for head in self.heads), "each head has a grammar"


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
    first, last = min(texts), max(texts)
    n_common = next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first[:n_common]


def texts_grammar(texts: Sequence[str], *, is_loose: bool = False) -> str:
    return f"root ::= {texts_rule(texts, is_loose=is_loose)}\n"


def texts_rule(texts: Sequence[str], *, is_loose: bool = False) -> str:
    """Return GBNF for one of `texts`; what several begin with is written once. llama.cpp follows all ways that begin
    alike at once: 200 of them for as many tools."""
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
