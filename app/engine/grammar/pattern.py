"""Regular expressions of JSON schemas → GBNF, for the inside of a JSON string or for plain text. Pure.

Owns the syntax that schemas use (source: ECMA-262, as JSON Schema demands) without what no grammar has: lookaround,
references to groups, boundaries of words. Characters that JSON escapes are allowed in one form: `"`, `\\`, tab and ends
of lines; other control characters and surrogates are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from app.engine.grammar.gbnf import SchemaError, UnsupportedSchemaError, character_class, literal

MAX_CHARACTERS = 2000
MAX_DEPTH = 20
MAX_COPIES = 500  # of what is repeated, groups in groups multiplied: llama.cpp follows each way to match at once

# zod 4 looks ahead in its expression for e-mail addresses; this one allows none that it does not.
_WITHOUT_LOOKING_AHEAD = {
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": (
        r"^[A-Za-z0-9_+-]{1,32}(\.[A-Za-z0-9_+-]{1,32}){0,4}@([A-Za-z0-9][A-Za-z0-9\-]{0,32}\.){1,4}[A-Za-z]{2,24}$"
    )
}
# Formats of JSON Schema that are regular (sources: RFC 3339, 4122, 2673; appendix A of RFC 3339 for durations). Leap
# seconds are left out, and addresses as zod leaves them out.
_YEAR = "([0-9]{4})"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CLOCK = "T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}S)"
_DAYS = "([0-9]{1,4}Y([0-9]{1,4}M([0-9]{1,4}D)?)?|[0-9]{1,4}M([0-9]{1,4}D)?|[0-9]{1,4}D)"
FORMATS: Mapping[str, str] = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": f"^P({_DAYS}({_CLOCK})?|{_CLOCK}|[0-9]{{1,4}}W)$",
    "uuid": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    "ipv4": rf"^{_BYTE}(\.{_BYTE}){{3}}$",
    "email": next(iter(_WITHOUT_LOOKING_AHEAD.values())),
}
_Span = tuple[int, int]  # the first and the last character, by their numbers
_DIGITS: tuple[_Span, ...] = ((0x30, 0x39),)
_WORDS: tuple[_Span, ...] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACES: tuple[_Span, ...] = ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x2028, 0x2029), (0xFEFF, 0xFEFF))
_LINE_ENDS: tuple[_Span, ...] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0x00}
_ESCAPED = {0x22: r"\"", 0x5C: r"\\", 0x09: r"\t", 0x0A: r"\n", 0x0D: r"\r"}  # as JSON writes them
_NEVER_RAW: tuple[_Span, ...] = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF))
_LAST = 0x10FFFF
_HEXADECIMAL = re.compile("[0-9a-fA-F]+")


class InJson:
    """A string of JSON: how its characters are written."""

    any_character = "char"
    excluded = _NEVER_RAW
    escaped = _ESCAPED


class RawText:
    """Plain text, without the character `excluded`, if any, and controls. Equal ones are one in a cache."""

    def __init__(self, excluded: str = "") -> None:
        self._text = excluded
        self.any_character = character_class(*excluded)
        holes = ((0x00, 0x08), (0x0B, 0x0C), (0x0E, 0x1F), (0xD800, 0xDFFF))
        self.excluded = tuple(sorted((*holes, *((ord(character), ord(character)) for character in excluded))))
        self.escaped: dict[int, str] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawText) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


_IN_JSON = InJson()


@dataclass(frozen=True, slots=True)
class Pattern:
    """GBNF for all characters of a string, of which there are `shortest` to `longest`; None is no limit. `n_copies` is
    how many parts llama.cpp makes of its repetitions."""

    text: str
    shortest: int
    longest: int | None
    n_copies: int = 1


_NOTHING = Pattern("", 0, 0)


def pattern_of(schema: Mapping[str, Any]) -> object:
    """Return the `pattern` of texts of `schema`, or that of their `format`, None without one."""
    return schema["pattern"] if "pattern" in schema else FORMATS.get(str(schema.get("format")))


def limited_pattern(
    expression: object, shortest: int, longest: int | None, written: InJson | RawText = _IN_JSON
) -> str:
    """Return GBNF for strings that match and have `shortest` to `longest` characters, as they are `written`. The
    lengths limit how often each part is repeated: one part alone exactly, several of them all alike, which is narrower
    than the schema. Raises SchemaError where there is no such string."""
    if not isinstance(expression, str):
        raise SchemaError("The schema's pattern must be a string.", "Give a regular expression.")
    found = _limits(expression, shortest, longest, written)
    if isinstance(found, str):
        return found
    kind, cause, remedy = found
    raise kind(cause, remedy)  # a new one: each error is given its place


@lru_cache(maxsize=256)  # a tool's schema is tried with less and less of it, two hundred times
def _limits(
    expression: str, shortest: int, longest: int | None, written: InJson | RawText
) -> str | tuple[type[SchemaError], str, str]:
    """Return the GBNF, or the error that `limited_pattern` raises."""
    try:
        return _search(expression, shortest, longest, written)
    except SchemaError as error:
        return type(error), error.cause, error.remedy


def _search(expression: str, shortest: int, longest: int | None, written: InJson | RawText) -> str:
    pattern, most = parse_pattern(expression, written), None
    if longest is not None and (pattern.longest is None or pattern.longest > longest):
        # The largest limit of each repetition that keeps the whole short enough, found by halves.
        low, high = -1, min(longest, MAX_COPIES)
        while low < high:
            most = (low + high + 1) // 2
            found = _limited(expression, written, 0, most)
            is_fit = found is not None and found.longest is not None and found.longest <= longest
            low, high = (most, high) if is_fit else (low, most - 1)
        limited = _limited(expression, written, 0, low) if low >= 0 else None
        if limited is None:
            cause = "The schema's maxLength is below what its pattern demands."
            raise UnsupportedSchemaError(cause, "Let them agree.")
        pattern, most = limited, low
    if pattern.shortest < shortest:
        low, high = 0, min(shortest, MAX_COPIES) + 1
        while low < high:  # the least number of each repetition that makes the whole long enough
            least = (low + high) // 2
            found = _limited(expression, written, least, most)
            low, high = (low, least) if found and found.shortest >= shortest else (least + 1, high)
        raised = _limited(expression, written, low, most)
        if raised is None or raised.shortest < shortest:
            cause = "The schema's minLength beside this pattern is not supported."
            raise UnsupportedSchemaError(cause, "Let the pattern say it.")
        pattern = raised
    return pattern.text


def _limited(expression: str, written: InJson | RawText, least: int, most: int | None) -> Pattern | None:
    """Return `expression` with `least` to `most` of what it repeats, within its own limits; None if too large."""
    try:
        return _Parser(_WITHOUT_LOOKING_AHEAD.get(expression, expression), written, least, most).parse()
    except UnsupportedSchemaError:
        return None


def parse_pattern(expression: str, written: InJson | RawText = _IN_JSON) -> Pattern:
    """Return the strings in which `expression` is found, as they are `written`. Raises UnsupportedSchemaError."""
    expression = _WITHOUT_LOOKING_AHEAD.get(expression, expression)
    if len(expression) > MAX_CHARACTERS:
        raise SchemaError(f"The schema has a pattern of {len(expression)} characters.", "Use a shorter one.")
    return _Parser(expression, written).parse()


def whole_text_pattern(expression: str) -> str:
    """Return GBNF for plain texts that `expression` matches from begin to end. Raises UnsupportedSchemaError."""
    if len(expression) > MAX_CHARACTERS:
        raise SchemaError(f"The regular expression has {len(expression)} characters.", "Use a shorter one.")
    return _Parser(expression, RawText(), is_whole=True).parse().text or '""'


class _Parser:
    def __init__(
        self,
        expression: str,
        written: InJson | RawText,
        least: int = 0,
        most: int | None = None,
        *,
        is_whole: bool = False,
    ) -> None:
        self._expression = expression
        self._is_whole = is_whole  # anchored at both ends, whether it says so or not
        self._written = written
        self._least, self._most = least, most  # of each repetition, within what it allows
        self._at = 0
        self._depth = 0

    def parse(self) -> Pattern:
        ways = [self._anchored()]
        while self._take("|"):
            ways.append(self._anchored())
        if self._at < len(self._expression):
            self._refuse("an unmatched )")
        whole = _either(ways)
        if whole.n_copies > 2 * MAX_COPIES:
            self._refuse("too many repetitions")
        return whole

    def _anchored(self) -> Pattern:
        """Parse an alternative at the top, which may begin or end anywhere in the string unless it is anchored."""
        is_first = self._take("^")
        parts = [self._sequence()]
        if not (is_first or self._is_whole):
            parts.insert(0, self._any_text())
        if not (self._take("$") or self._is_whole):
            parts.append(self._any_text())
        if self._next() not in ("", "|", ")"):
            self._refuse("$ in the middle")
        return _joined(parts)

    def _any_text(self) -> Pattern:
        least, most = self._least, self._most
        if not least and most is None:
            return Pattern(f"{self._written.any_character}*", 0, None)
        text = f"{self._written.any_character}{{{least},{'' if most is None else most}}}"
        return Pattern(text, least, most, max(least, most or 0, 1))

    def _group(self) -> Pattern:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse("groups that nest too deep")
        if self._take("?") and not self._take(":"):
            if not self._take("<") or self._next() in ("=", "!"):
                self._refuse("lookaround")
            end = self._expression.find(">", self._at)
            self._at = end + 1 if end >= 0 else self._refuse("an unfinished name")
        ways = [self._sequence()]
        while self._take("|"):
            ways.append(self._sequence())
        if not self._take(")"):
            self._refuse("an anchor in a group" if self._next() == "$" else "an unmatched (")
        self._depth -= 1
        return _either(ways)

    def _sequence(self) -> Pattern:
        parts = []
        while self._next() not in ("", "|", ")", "$"):
            parts.append(self._repeated(self._atom()))
        return _joined(parts)

    def _atom(self) -> Pattern:
        character = self._pop()
        if character == "(":
            return self._group()
        if character == "[":
            return self._one_of(*self._class())
        if character == ".":
            return self._one_of(_LINE_ENDS, is_negated=True)
        if character == "\\":
            return self._one_of(*self._escape())
        if character in "*+?{^":
            self._refuse(f"a misplaced {character}")
        return self._one_of([(ord(character), ord(character))])

    def _repeated(self, atom: Pattern) -> Pattern:
        low, high = self._repetitions()
        if (low, high) == (1, 1):
            return atom
        if high is None or high > low:
            if self._most is not None:
                high = max(low, self._most if high is None else min(high, self._most))
            low = max(low, self._least if high is None else min(high, self._least))
        n_copies = atom.n_copies * max(low, high or 0, 1)
        if n_copies > MAX_COPIES:
            self._refuse(f"more than {MAX_COPIES} repetitions")
        if atom.shortest == 0 and (high is None or high > 1):  # llama.cpp would follow every way to repeat nothing
            self._refuse("a repetition of what may be empty")
        if high is not None and high < low:
            self._refuse("repetitions in the wrong order")
        self._take("?")  # whether it is lazy decides nothing about what is allowed
        longest = 0 if high == 0 else None if high is None or atom.longest is None else atom.longest * high
        text = f"({atom.text}){{{low},{'' if high is None else high}}}"
        return Pattern(text, atom.shortest * low, longest, n_copies)

    def _repetitions(self) -> tuple[int, int | None]:
        for sign, ends in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return ends
        if not self._take("{"):
            return 1, 1
        low, comma, high = self._until("}").partition(",")
        if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in (low, *filter(None, [high]))):
            self._refuse("{ without a number")
        return int(low), int(high) if high else None if comma else int(low)

    # Sets of characters

    def _class(self) -> tuple[Sequence[_Span], bool]:
        is_negated = self._take("^")
        spans: list[_Span] = []
        while not self._take("]"):
            first, is_single = self._member()
            if is_single and self._next() == "-" and self._expression[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last, is_last_single = self._member()
                if not is_last_single or last[0][0] < first[0][0]:
                    self._refuse("a range that has no end")
                first = [(first[0][0], last[0][0])]
            spans.extend(first)
        return spans, is_negated

    def _member(self) -> tuple[Sequence[_Span], bool]:
        """Return the spans of a member of a class, and whether it is a single character."""
        character = self._pop()
        if character != "\\":
            return [(ord(character), ord(character))], True
        if self._take("b"):
            return [(0x08, 0x08)], True
        spans, is_negated = self._escape()
        return (_others(spans), False) if is_negated else (spans, spans[0][0] == spans[-1][1])

    def _escape(self) -> tuple[Sequence[_Span], bool]:
        """Return the spans of an escape, and whether it means all others."""
        character = self._pop()
        if spans := _CLASSES.get(character.lower()):
            return spans, character.isupper()
        code = _CONTROLS.get(character)
        if character in "xu":
            code = self._number(character)
        elif code is None and character.isascii() and character.isalnum():
            self._refuse(f"\\{character}")
        code = ord(character) if code is None else code
        return [(code, code)], False

    def _number(self, kind: str) -> int:
        n_digits = 2 if kind == "x" else 4
        if kind == "u" and self._take("{"):
            digits, n_digits = self._until("}"), 1
        else:
            digits = self._expression[self._at : self._at + n_digits]
            self._at += n_digits
        # int() takes signs, blanks, underscores and the digits of other scripts too.
        if len(digits) < n_digits or not _HEXADECIMAL.fullmatch(digits):
            self._refuse(f"\\{kind} without a number")
        return min(int(digits, 16), _LAST)

    def _one_of(self, spans: Sequence[_Span], is_negated: bool = False) -> Pattern:
        """Return one character of `spans`, or of all others."""
        allowed = _others(spans) if is_negated else sorted(spans)
        raw = [part for span in allowed for part in _without(span, self._written.excluded)]
        ways = [f"[{''.join(map(_written, raw))}]"] if raw else []
        ways += [
            literal(text)
            for code, text in self._written.escaped.items()
            if any(low <= code <= high for low, high in allowed)
        ]
        if not ways:
            raise SchemaError("A pattern of the schema allows only characters that no answer has.", "Allow others.")
        return Pattern(ways[0] if len(ways) == 1 else f"({' | '.join(ways)})", 1, 1)

    # Characters of the expression

    def _next(self) -> str:
        return self._expression[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        is_next = self._expression.startswith(text, self._at)
        self._at += len(text) if is_next else 0
        return is_next

    def _pop(self) -> str:
        character = self._next() or self._refuse("an unfinished part")
        self._at += 1
        return character

    def _until(self, text: str) -> str:
        end = self._expression.find(text, self._at)
        if end < 0:
            self._refuse(f"no {text}")
        found, self._at = self._expression[self._at : end], end + len(text)
        return found

    def _refuse(self, what: str) -> NoReturn:
        noun = "regular expression" if self._is_whole else "schema's pattern"
        cause = f"The {noun} {self._expression[:60]!r} has {what}, which is not supported."
        raise UnsupportedSchemaError(cause, "Use characters, classes, groups and repetitions.")


def _joined(parts: Iterable[Pattern]) -> Pattern:
    found = [part for part in parts if part != _NOTHING]
    longest = None if any(part.longest is None for part in found) else sum(part.longest or 0 for part in found)
    n_copies = sum(part.n_copies for part in found)
    return Pattern(" ".join(part.text for part in found), sum(part.shortest for part in found), longest, n_copies)


def _either(ways: Sequence[Pattern]) -> Pattern:
    if len(ways) == 1:
        return ways[0]
    longest = None if any(way.longest is None for way in ways) else max(way.longest or 0 for way in ways)
    text = " | ".join(way.text or '""' for way in ways)
    return Pattern(f"({text})", min(way.shortest for way in ways), longest, sum(way.n_copies for way in ways))


def _others(spans: Sequence[_Span]) -> list[_Span]:
    return _without((0, _LAST), sorted(spans))


def _without(span: _Span, holes: Iterable[_Span]) -> list[_Span]:
    """Return the parts of `span` outside the `holes`, which are in order."""
    low, high = span
    parts = []
    for first, last in holes:
        if last < low or first > high:
            continue
        if first > low:
            parts.append((low, first - 1))
        low = max(low, last + 1)
    return [*parts, (low, high)] if low <= high else parts


def _written(span: _Span) -> str:
    low, high = span
    return _code(low) if low == high else f"{_code(low)}-{_code(high)}"


def _code(number: int) -> str:
    character = chr(number)
    return character if character.isascii() and character.isalnum() else f"\\U{number:08X}"
