"""Texts of arguments that are written as they are, up to a tag behind them: grammar rules for limited ones. Pure.

Owns that no such text contains its tag. One that is limited in length or form does not even contain the first two
characters of the tag in a row, or of its form not the first one: narrower than the schema, and never wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.engine.grammar.gbnf import GbnfRules, character_class, literal, text_through
from app.engine.grammar.json_schema import ANY_OF, constraints, length_bounds, listed
from app.engine.grammar.pattern import RawText, limited_pattern
from app.protocol.errors import RequestError

_BLOCK, _LARGE_BLOCK = 32, 1024  # characters of a text that are counted together
_LENGTHS = frozenset({"type", "minLength", "maxLength"})
_CHOICES = frozenset({"type", "enum", "const"})


def raw_text(
    schema: Mapping[str, Any], tag: str, rules: GbnfRules, before_tag: str = "", without: Sequence[str] = ()
) -> str:
    """Return a rule of `rules` for a text of `schema` through `before_tag` and the first `tag`, with none of `without`.

    Raises RequestError where the schema is not of texts, or limits them in ways that no grammar has here.
    """
    limits, behind = constraints(schema), f"{before_tag}{tag}"
    foreign = (*without, *((tag,) if before_tag else ()))
    if limits <= {"type"}:
        return text_through(behind, rules, foreign)
    if keyword := next((keyword for keyword in ANY_OF if limits <= {"type", keyword} and keyword in limits), ""):
        ways = [raw_text({"type": "string", **way}, tag, rules, before_tag, without) for way in listed(schema, keyword)]
        return rules.add(" | ".join(ways))
    if limits <= _CHOICES:
        return rules.add(f"{_choices(schema, tag)} {literal(behind)}")
    shortest, longest = length_bounds(schema)
    if limits <= _LENGTHS:
        if longest is None:
            return rules.add(f"{_Counted(tag, rules).exactly(shortest)} {text_through(behind, rules, foreign)}".strip())
        return rules.add(f"{_Counted(tag, rules).between(shortest, longest)} {literal(behind)}")
    if limits <= {*_LENGTHS, "pattern"}:
        return rules.add(f"{limited_pattern(schema['pattern'], shortest, longest, RawText(tag[0]))} {literal(behind)}")
    keyword = min(limits - _CHOICES - _LENGTHS, default="enum")
    raise RequestError(f"A text with {keyword!r} beside other keywords is not supported.", "Leave it out.")


def _choices(schema: Mapping[str, Any], tag: str) -> str:
    values = listed(schema, "enum") if "enum" in schema else [schema["const"]]
    texts = [value for value in values if isinstance(value, str) and schema.get("const", value) == value]
    if not texts or any(tag in text for text in texts):
        raise RequestError("An enum allows no text that can be written in a call.", "Use an enum of texts.")
    return "(" + " | ".join(map(literal, texts)) + ")"


class _Counted:
    """Rules for texts of a certain length without the first two characters of `tag` in a row.

    They go by blocks, the last character of which is not the first one of the tag.
    """

    def __init__(self, tag: str, rules: GbnfRules) -> None:
        self._rules = rules
        first, second = tag[0], tag[1]
        self._first = literal(first)
        self._free, self._behind_first = character_class(first), character_class(first, second)

    def exactly(self, n: int) -> str:
        """Return a text in the place of a rule for `n` characters."""
        n_large, n_left = divmod(n, _LARGE_BLOCK)
        n_blocks, n_rest = divmod(n_left, _BLOCK)
        blocks = (f"{self._large_block()}{{{n_large}}}", f"{self._block(_BLOCK)}{{{n_blocks}}}", self._block(n_rest))
        return " ".join(block for block, count in zip(blocks, (n_large, n_blocks, n_rest), strict=True) if count)

    def between(self, least: int, most: int) -> str:
        """Return a text in the place of a rule for `least` to `most` characters."""
        return f"{self.exactly(least)} {self._up_to(most - least)}".strip()

    def _up_to(self, n: int) -> str:
        """Return a text in the place of a rule for at most `n` characters."""
        if n < _BLOCK:
            return self._at_most(n)
        size, block = (_LARGE_BLOCK, self._large_block()) if n >= _LARGE_BLOCK else (_BLOCK, self._block(_BLOCK))
        n_blocks, n_rest = divmod(n, size)
        return f"({block}{{0,{n_blocks - 1}}} {self._up_to(size - 1)} | {block}{{{n_blocks}}} {self._up_to(n_rest)})"

    def _large_block(self) -> str:
        return self._rules.add(f"{self._block(_BLOCK)}{{{_LARGE_BLOCK // _BLOCK}}}")

    def _block(self, n: int) -> str:
        """Return a rule for `n` characters, the last of which is not the first one of the tag."""
        free = behind = ""
        for number in range(n):
            free, behind = self._longer(free, behind, is_last=number == 0)
        return free

    def _at_most(self, n: int) -> str:
        """Return a rule for no more than `n` characters."""
        free = behind = '""'
        for _ in range(n):
            ways = self._longer(free, behind, is_last=False)
            free, behind = (self._rules.add(f'"" | {way}') for way in ways)
        return free

    def _longer(self, free: str, behind: str, *, is_last: bool) -> tuple[str, str]:
        """Return rules for a character more before what `free` and `behind` allow, the latter behind the first one."""
        other = "" if is_last else f" | {self._first} {behind}"
        return (
            self._rules.add(f"{self._free} {free}{other}".strip()),
            self._rules.add(f"{self._behind_first} {free}{other}".strip()),
        )
