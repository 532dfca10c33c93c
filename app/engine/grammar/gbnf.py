"""GBNF, llama.cpp's grammar format: rules of plain JSON values, parts to build others from, and limits. Pure.

llama.cpp reads a grammar in the process of the model, and a hostile one would overflow its parser, its stack or the
memory: `check_grammar` refuses what would. Whether the text is valid is for llama.cpp to say.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

from app.common.terminal import printable_line
from app.protocol.errors import RequestError
from app.protocol.sampling import MAX_GRAMMAR_BYTES

MAX_DEPTH = 100  # of groups: llama.cpp's parser is recursive
MAX_RULES = 1000
MAX_TIMES = 2000  # llama.cpp takes more for any number, and would let through what the grammar excludes
# It writes every repetition out: 16 bytes for each element, 220 for each that may be missing, so 110 MiB at most. One
# request with "a"{5,2} took all memory of a machine of 24 GB, and others within 64 KiB of grammar 2 GiB and 5 s.
MAX_WRITTEN_OUT = 500_000

# A string, a character class, a token, a comment, a name or number, a sign. One that is not closed goes to the end: 64
# KiB of "[" took minutes, when the end of each was looked for.
_WORD = re.compile(r""""(?:\\.|[^"\\])*+"?|\[(?:\\.|[^\]\\])*+\]?|<[^>]*+>?|#[^\r\n]*+|[\w-]++|\S""", re.DOTALL)
_NUMBERED = re.compile(r"\\[uU]([0-9a-fA-F]{4}|[0-9a-fA-F]{8})")
_ELEMENT = re.compile(r"\\x..|\\u.{4}|\\U.{8}|\\.|.", re.DOTALL)
_NEEDS_ESCAPE = re.compile(r'["\\\x00-\x1F\x7F]')
_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

MAX_REPETITIONS = 1000  # llama.cpp makes a rule of each and takes 2000 at most
_BLOCK = 250  # so many are one rule, where there may be more

# One space or one line break with its indentation: compact and pretty-printed JSON, but never blanks without end.
_COMMON: Mapping[str, str] = {
    "ws": r'| " " | "\n" [ \t]{0,20}',
    "plain": r'[^"\\\x00-\x1F\x7F]',
    "escape": r'"\\" (["\\/bfnrt] | "u" ([0-9a-cA-Ce-fE-F] hex{3} | [dD] [0-7] hex{2}))',
    "hex": "[0-9a-fA-F]",
    "char": "plain | escape",
    "integer": '"-"? ("0" | [1-9] [0-9]{0,15})',
    "number": 'integer ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?',
    "string": r'"\"" char* "\""',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "value": "object | array | string | number | boolean | null",
    "pair": r'string ":" ws value',
    "next-pair": '"," ws pair',
    "object": '"{" ws (pair next-pair* ws)? "}"',
    "next-value": '"," ws value',
    "array": '"[" ws (value next-value* ws)? "]"',
}
PLAIN_VALUES = frozenset({"string", "integer", "number", "boolean", "null", "value", "object", "array"})


class SchemaError(RequestError):
    """A part of a schema or regular expression that is malformed, or allows nothing."""

    place = ""

    def set_place(self, place: str) -> None:
        """Name the JSON pointer to the part, unless that is done or the part is the whole."""
        if place != "#" and not self.place:
            self.place = place
            self.cause = f"{printable_line(place)}: {self.cause}"


class UnsupportedSchemaError(SchemaError):
    """A part of a schema that no grammar describes here."""


class GbnfRules:
    """Rules by name; equal ones are stored once. Raises RequestError when they exceed the limits of llama.cpp."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self.texts_through: dict[tuple[str, ...], str] = {}  # rules of `text_through`
        self._n_bytes = sum(len(name) + len(body) + 6 for name, body in _COMMON.items())

    def reserve(self) -> str:
        """Return the name of a rule that is written later, so that it can refer to itself."""
        name = f"r{len(self._rules)}"
        self._rules[name] = ""
        return name

    def write(self, name: str, body: str) -> None:
        self._rules[name] = body
        self._n_bytes += len(name) + len(body.encode()) + 6
        if self._n_bytes > MAX_GRAMMAR_BYTES or len(self._rules) + len(_COMMON) > MAX_RULES:
            raise RequestError("The schema makes a grammar that is too large.", "Use a smaller schema.")

    def add(self, body: str) -> str:
        if body not in self._names:
            name = self.reserve()
            self.write(name, body)
            self._names[body] = name
        return self._names[body]

    def text(self, root: str) -> str:
        """Return the grammar that allows the texts of the rule `root`."""
        return with_plain_values(self.own_text(root))

    def own_text(self, root: str) -> str:
        """Return the grammar without the rules of plain JSON values, which `with_plain_values` adds."""
        self.write("root", root)
        return _written(self._rules)


def with_plain_values(grammar: str) -> str:
    """Return `grammar` with the rules of plain JSON values that it may refer to."""
    return grammar + _written(_COMMON)


def _written(rules: Mapping[str, str]) -> str:
    return "".join(f"{name} ::= {body}\n" for name, body in rules.items())


def literal(text: str) -> str:
    written = (_ESCAPED.get(letter) or (letter if letter.isprintable() else _code(letter)) for letter in text)
    return f'"{"".join(written)}"'


def character_class(*excluded: str) -> str:
    """Return any character but those that are `excluded` and NUL."""
    return f"[^\\x00{''.join(map(_code, excluded))}]"


def repeated(item: str, least: int, most: int | None, rules: GbnfRules) -> str:
    """Return `least` to `most` of the rule `item`, None without end: many of them in blocks, which llama.cpp reads."""
    if most is None and least <= _BLOCK:
        return f"{item}{{{least},}}" if least else f"{item}*"
    if most is not None and most <= MAX_REPETITIONS:
        return f"{item}{{{least},{most}}}"
    block = rules.add(f"{item}{{{_BLOCK}}}")
    n_first, n_rest = divmod(least, _BLOCK)
    begin = " ".join(
        filter(None, (f"{block}{{{n_first}}}" if n_first else "", f"{item}{{{n_rest}}}" if n_rest else ""))
    )
    if most is None:
        return f"{begin} {item}*"
    n_blocks, n_last = divmod(most - least, _BLOCK)
    fewer = f"{block}{{0,{n_blocks - 1}}} {item}{{0,{_BLOCK - 1}}} | " if n_blocks else ""
    last = f"{block}{{{n_blocks}}} " if n_blocks else ""
    return f"{begin} ({fewer}{last}{item}{{0,{n_last}}})".strip()


def json_literal(value: object) -> str:
    """Return a GBNF string of `value` in compact JSON."""
    return literal(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def keys_other_than(names: Iterable[str], rules: GbnfRules) -> str:
    """Return a rule for quoted keys without escapes that are not in `names`. Such a key leaves the tree of names
    somewhere: at a character that no name has there, or by ending where none ends."""
    root = rules.reserve()
    nodes = [(root, sorted({name for name in names if not _NEEDS_ESCAPE.search(name)}))]
    while nodes:
        node, suffixes = nodes.pop()
        ways = [] if "" in suffixes else ['""']
        branches: dict[str, list[str]] = {}
        for suffix in filter(None, suffixes):
            branches.setdefault(suffix[0], []).append(suffix[1:])
        ways.append(f'[^"\\\\\\x00-\\x1F\\x7F{"".join(map(_code, branches))}] plain*')
        for character, rest in branches.items():
            nodes.append((rules.reserve(), rest))
            ways.append(f"{literal(character)} {nodes[-1][0]}")
        rules.write(node, " | ".join(ways))
    return f'"\\"" {root} "\\""'


def text_through(tag: str, rules: GbnfRules, without: Sequence[str] = ()) -> str:
    """Return a rule for any text up to and including the first `tag`, which has none of `without` elsewhere. It has a
    rule for each begin of these texts that the text so far may end with (Aho and Corasick, 1975)."""
    texts = (tag, *without)
    if texts in rules.texts_through:
        return rules.texts_through[texts]
    begins = {text[:end] for text in texts for end in range(len(text))}
    names = {begin: rules.reserve() for begin in sorted(begins)}
    characters = sorted({character for text in texts for character in text})
    for begin, name in names.items():
        ways, others = [], []
        for character in characters:
            text = begin + character
            reached = next(text[at:] for at in range(len(text) + 1) if text[at:] in begins)  # the longest
            if text.endswith(tag):
                ways.append(literal(character))
            elif reached and not text.endswith(tuple(without)):
                ways.append(f"{literal(character)} {names[reached]}")
            if reached or text.endswith(texts):
                others.append(character)
        rules.write(name, " | ".join((*ways, f"[^{''.join(map(_code, others))}] {names['']}")))
    rules.texts_through[texts] = names[""]
    return names[""]


def _code(character: str) -> str:
    return f"\\U{ord(character):08X}"


@dataclass(frozen=True, slots=True)
class _Repetition:
    """`{least,most}` after something of `n_elements`; without end, `most` is None."""

    n_elements: int
    least: str
    most: str | None

    @property
    def times(self) -> int:
        return int(self.most if self.most is not None else self.least)


def check_grammar(grammar: str) -> None:
    """Raise RequestError for a GBNF text that would overflow llama.cpp's parser, its stack or the memory.
    SamplingParams limits its size."""
    n_rules = grammar.count("::=")
    if n_rules > MAX_RULES:
        raise RequestError(f"The grammar has {n_rules} rules.", f"Use at most {MAX_RULES}.")
    words = _WORD.findall(grammar)
    if max(accumulate((word == "(") - (word == ")") for word in words), default=0) > MAX_DEPTH:
        raise RequestError("The grammar is nested too deeply.", f"Use at most {MAX_DEPTH} nested groups.")
    if "\0" in grammar or any(0xD800 <= ord(character) < 0xE000 for character in grammar):
        raise RequestError("The grammar contains a NUL or a lone surrogate.", "Remove it.")
    if escape := next(_escapes_of_no_character(words), ""):
        raise RequestError(f"The grammar contains {escape}, which is not a character.", "Remove it.")
    n_written_out = 0
    for repetition in _repetitions(words):
        numbers = [number for number in (repetition.least, repetition.most) if number is not None]
        if any(len(number) > len(str(MAX_TIMES)) or int(number) > MAX_TIMES for number in numbers):
            cause = "The grammar repeats something too often."
            raise RequestError(cause, f"Use at most {MAX_TIMES:,} times, or no end.")
        if int(numbers[-1]) < int(numbers[0]):
            shown = f"{{{','.join(numbers)}}}"
            raise RequestError(f"The grammar repeats something {shown} times.", "Name the smaller number first.")
        n_written_out += repetition.n_elements * repetition.times
    if n_written_out > MAX_WRITTEN_OUT:
        cause = f"The grammar's repetitions amount to {n_written_out:,} characters and rules."
        raise RequestError(cause, f"Use at most {MAX_WRITTEN_OUT:,}, or * and +, which need no copies.")


def _escapes_of_no_character(words: Iterable[str]) -> Iterator[str]:
    """Yield the escapes of halves of pairs and of numbers beyond Unicode: no text has what they would force."""
    for word in words:
        for element in _ELEMENT.findall(word) if word[0] in '"[' else ():
            number = _NUMBERED.fullmatch(element)
            code = int(number[1], 16) if number else 0
            if 0xD800 <= code < 0xE000 or code > sys.maxunicode:
                yield element


def _repetitions(all_words: Iterable[str]) -> Iterator[_Repetition]:
    """Yield the repetitions with numbers, but for malformed ones, which llama.cpp refuses."""
    words = (word for word in all_words if not word.startswith("#"))
    n_elements = 1
    for word in words:
        if word != "{":
            # What a repetition after it repeats: a text or characters by each, a group or a rule as one.
            if word not in "*+?":
                n_elements = len(_ELEMENT.findall(word[1:-1])) if word[0] in '"[' else 1
            continue
        inside = list(takewhile(lambda word: word != "}", words))
        numbers = [number for number in inside if number.isascii() and number.isdigit()]
        if not numbers:
            continue
        if inside == numbers[:1]:
            yield _Repetition(n_elements, inside[0], inside[0])
        elif inside == [*numbers[:1], ",", *numbers[1:2]]:
            yield _Repetition(n_elements, numbers[0], numbers[1] if numbers[1:] else None)
        else:
            continue
        n_elements *= max(1, int(numbers[-1]))  # as the whole is repeated by the next one
