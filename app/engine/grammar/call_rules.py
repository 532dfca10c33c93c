"""The tool calls that an answer may contain, as texts and grammars: what binds the answer, and from where. Pure values.

A call is a head, which names the tool, and the rest: arguments and what closes the call. Heads are texts, of which an
answer writes one; the rest of each tool has a grammar of its own, so that one of 200 tools is read only when it is
called. Independent of models, tokens and schemas.
"""

from __future__ import annotations

from dataclasses import dataclass

# In the text of a head: how many calls the answer has before this one, and that counted from 1.
CALL_NUMBER, CALL_ORDINAL = "\N{SYMBOL FOR RECORD SEPARATOR}", "\N{SYMBOL FOR UNIT SEPARATOR}"


def numbered(text: str, n_calls: int) -> str:
    """Return `text` of a call that `n_calls` come before."""
    return text.replace(CALL_NUMBER, str(n_calls)).replace(CALL_ORDINAL, str(n_calls + 1))


@dataclass(frozen=True, slots=True)
class CallHead:
    """The text of a call from its begin to its arguments; `part` is the index of the grammar of what follows.

    The first `n_committed` characters of a text that may be the answer itself decide that it is a call.
    """

    text: str
    part: int
    n_committed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """What binds an answer with tools.

    A call begins where the answer's text has one of `openings`, given with what of `first` and a head that stands for,
    or where the text begins with one of the characters `bare`, and with the committed characters of a head. `first`
    stands before the first call, `between` before each other one, `last` behind the last; without `is_repeated` there
    is one call. Text may follow calls if it `goes_on`, else the answer ends there.

    With `begin` the answer is bound from its first character: it is the grammar of reasoning, if any, and all that may
    come then, calls up to the end of their head. A head follows directly or behind one of `before_head`.
    Grammars lack the rules of plain JSON values.
    """

    heads: tuple[CallHead, ...]
    parts: tuple[str, ...]
    openings: tuple[tuple[str, str], ...] = ()
    first: str = ""
    between: str = ""
    last: str = ""
    is_repeated: bool = False
    goes_on: bool = False
    bare: str = ""
    begin: str = ""
    before_head: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.heads, "some tool may be called"
        assert all(0 <= head.part < len(self.parts) for head in self.heads), "each head has a grammar"
