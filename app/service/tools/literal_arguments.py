"""Arguments written as literals with a key before each: Python's calls, and the objects of Gemma 4.

Texts stream, other values come whole. Templates and models write texts without escaping the quotes in them, so a quote
ends a text only where the next argument or the end follows. Anything else becomes a JSON string.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.common.answer_text import partial_match_length
from app.engine.grammar.gbnf import GbnfRules, literal
from app.engine.grammar.json_grammar import schema_rule
from app.engine.grammar.json_schema import constraints
from app.service.tools.argument_forms import (
    ANY_KEY,
    ArgumentsReader,
    as_json,
    inside_string,
    is_undescribed,
    json_types,
    plain_properties,
    raw_text,
)

_WORDS = {"true": True, "false": False, "null": None}
_HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"{_HIGH}{_LOW}|\\(?:x[0-9a-fA-F]{{2}}|u[0-9a-fA-F]{{4}}|U[0-9a-fA-F]{{8}}|.)", re.DOTALL)
_BEGUN_ESCAPE = re.compile(rf"{_HIGH}\\?(?:(?<=\\)u.{{0,3}})?\Z|\\(?:x.?|u.{{0,3}}|U.{{0,7}})?\Z", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_LITERAL = "\\'\"/"
_GEMMA = r'{quote}(?P<text>.*?){quote}|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<sign>[\[\]{{}},:])|(?P<bare>[^\[\]{{}},:<"]+)'
_AFTER_CALL = re.compile(r"\)(?:\s*[\],<]|[ \t]*\n|\s*\Z)")
_NEXT_KEY = re.compile(r",\s*(?:[A-Za-z_-][\w.$-]*\s*(?:=(?!=)|\Z)|\Z)")


@dataclass(frozen=True, slots=True)
class LiteralForm:
    """A notation: keys before `sign`, `separator` between arguments, `end` behind them. Texts are in one of `quotes`,
    of which models write the first. `as_json` turns any value into JSON text."""

    quotes: tuple[str, ...]
    sign: str
    separator: str
    end: str
    as_json: Callable[[str], str]

    @property
    def tags(self) -> tuple[str, ...]:
        return self.quotes

    @property
    def key(self) -> re.Pattern[str]:
        quote = "|".join(map(re.escape, self.quotes))
        return re.compile(
            rf"(?P<quote>{quote})?(?P<key>[^\s,:=(){{}}\[\]'\"<|]{{1,200}})(?(quote)(?:{quote}))\s*{self.sign}"
        )

    @property
    def begun_key(self) -> re.Pattern[str]:
        """What may become a key with its sign; in a call no key has quotes."""
        return re.compile(rf"[\w.$-]*\s*{self.sign}?" if self.end == ")" else rf'[\w.$<|>"-]*\s*{self.sign}?')

    @property
    def mark(self) -> re.Pattern[str]:
        """What decides where a value ends: quotes, brackets and commas."""
        return re.compile("|".join((*map(re.escape, sorted(self.quotes, key=len, reverse=True)), r"[\[\](){},]")))

    def reader(self, schema: Mapping[str, Any]) -> ArgumentsReader:
        properties = schema.get("properties")
        return LiteralArguments(self, tuple(properties) if isinstance(properties, Mapping) else ())

    def rule(self, schema: Mapping[str, Any], rules: GbnfRules) -> str:
        return rules.add(f"{self._pairs(schema, schema, rules)} {literal(self.end)}")

    def written(self, arguments: Mapping[str, Any]) -> str:
        pairs = (f"{key}{self.sign}{self._written(value)}" for key, value in arguments.items())
        return f"{self.separator.join(pairs)}{self.end}"

    @property
    def _quotes_of_its_own(self) -> bool:
        return self.quotes[0] != '"'

    def _written(self, value: object) -> str:
        if not self._quotes_of_its_own:
            return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
        if isinstance(value, str):
            return f"{self.quotes[0]}{value}{self.quotes[0]}"
        if isinstance(value, Mapping):
            return f"{{{self.written(value)}"
        if isinstance(value, list):
            return f"[{self.separator.join(map(self._written, value))}]"
        return json.dumps(value, ensure_ascii=False)

    def _pairs(self, schema: Mapping[str, Any], document: Mapping[str, Any], rules: GbnfRules) -> str:
        """Return a rule for the pairs of an object in the order of `schema`, optional unless required."""
        comma, tail, ways = literal(self.separator), "", [""]
        if is_undescribed(schema):
            pair = rules.add(f"{ANY_KEY} {literal(self.sign)} value")
            return rules.add(f'"" | {pair} ({comma} {pair})*')
        for name, (value, is_required) in reversed(plain_properties(schema).items()):
            pair = rules.add(f"{literal(name + self.sign)} {self._value(value, document, rules)}")
            first = f"{pair} {tail}".rstrip()
            ways = [first] if is_required else [first, *ways]
            tail = rules.add(f"{comma} {first}" if is_required else f"{tail} | {comma} {first}")
        return rules.add(" | ".join(sorted(ways)).strip()) if any(ways) else ""  # an empty way has to come first

    def _value(self, schema: object, document: Mapping[str, Any], rules: GbnfRules) -> str:
        """Return a rule for values: JSON, which the reader takes too, but where the family has quotes of its own."""
        if self._quotes_of_its_own and isinstance(schema, Mapping):
            beside, quote = constraints(schema) - {"type"}, literal(self.quotes[0])
            if json_types(schema) == {"string"}:
                return rules.add(f"{quote} {raw_text(schema, self.quotes[0], rules)}")
            match schema.get("type"):
                case "array" if beside == {"items"}:
                    item = self._value(schema["items"], document, rules)
                    return rules.add(f'"[" ({item} ({literal(self.separator)} {item})*)? "]"')
                case "object" if "properties" in beside <= {"properties", "required"}:
                    return rules.add(f'"{{" {self._pairs(schema, document, rules)} "}}"')
        return schema_rule(schema, rules, document)


class LiteralArguments:
    """Reads the arguments of one call in `form`. Values without a key get those of `names` in order."""

    def __init__(self, form: LiteralForm, names: Sequence[str] = ()) -> None:
        self.rest: str | None = None
        self._form = form
        self._names = names
        self._quotes = sorted(form.quotes, key=len, reverse=True)
        self._held = ""
        self._n_scanned = 0  # of the value that is held
        self._depth = 0
        self._quote = ""
        self._has_escapes = False
        self._has_key = False
        self._n_arguments = 0
        self._is_final = False
        self._step = self._between

    def push(self, text: str) -> str:
        self._held += text
        return self._read()

    def finish(self) -> str:
        self._is_final = True
        return self._read()

    def _read(self) -> str:
        parts = []
        while self.rest is None and (more := self._step()) is not None:
            parts.append(more)
        return "".join(parts)

    def _between(self) -> str | None:
        held = self._held = self._held.lstrip(" \t\r\n,")
        if held.startswith(self._form.end):
            self.rest = held.removeprefix(self._form.end)
            return "}" if self._n_arguments else "{}"
        found = self._form.key.match(held[:256])
        # What could not become a key when it came in pieces is none when it comes at once.
        is_key = found is not None and self._form.begun_key.fullmatch(found[0]) is not None
        if found and is_key and (found.end() < len(held) or self._is_final):
            self._held = held[found.end() :]
            return self._begin(found["key"])
        if not held or (not self._is_final and len(held) < 256 and self._form.begun_key.fullmatch(held)):
            return None
        names = self._names[self._n_arguments :]
        self._has_key = False
        return self._begin(names[0] if names else str(self._n_arguments), has_key=False)

    def _begin(self, key: str, *, has_key: bool = True) -> str:
        self._has_key = has_key
        self._n_arguments += 1
        self._step = self._value
        comma = "{" if self._n_arguments == 1 else ", "
        return f"{comma}{json.dumps(key, ensure_ascii=False)}: "

    def _value(self) -> str | None:
        """Decide whether the value is a string, which streams."""
        held = self._held = self._held.lstrip()
        if not held or (not self._is_final and any(quote != held and quote.startswith(held) for quote in self._quotes)):
            return None
        self._quote = next((quote for quote in self._quotes if held.startswith(quote)), "")
        self._n_scanned = self._depth = 0
        self._has_escapes = self._quote[:1] in ("'", '"')
        self._step = self._text if self._quote else self._other
        self._held = held.removeprefix(self._quote)
        return '"' if self._quote else ""

    def _text(self) -> str | None:
        held, quote = self._held, self._quote
        newline = held.find("\n") if self._has_escapes and len(quote) == 1 else -1
        end = held.find(quote, 0, None if newline < 0 else newline)
        while end >= 0:
            ends = not self._is_escaped(held, end) and self._ends_text(held[end + len(quote) :])
            if ends is None:
                return self._part_of_text(len(held) - end)
            if ends:
                self._held, self._step = held[end + len(quote) :], self._between
                return inside_string(self._decoded(held[:end])) + '"'
            end = held.find(quote, end + len(quote), None if newline < 0 else newline)
        if newline < 0:
            return self._part_of_text(partial_match_length(held, (quote,)))
        self._held, shown = held[newline:], inside_string(self._decoded(held[:newline]))
        self._has_escapes = False  # no text of Python has a line break between such quotes
        return shown

    def _part_of_text(self, n_held: int) -> str | None:
        """Return the text that is certain, without the last `n_held` characters and an incomplete escape."""
        end = len(self._held) - (0 if self._is_final else n_held)
        if self._has_escapes and not self._is_final:
            end -= unread_escape(self._held[:end])
        shown, self._held = self._held[:end], self._held[end:]
        return inside_string(self._decoded(shown)) if shown else None

    def _decoded(self, text: str) -> str:
        return python_text(text) if self._has_escapes else text

    def _is_escaped(self, text: str, index: int) -> bool:
        before = text[:index]
        return self._has_escapes and (len(before) - len(before.rstrip("\\"))) % 2 == 1

    def _ends_text(self, after: str) -> bool | None:
        """Return whether a quote before `after` ends the text, None if that is not clear yet."""
        if len(self._quote) > 1:
            return True
        begun = after.lstrip()
        is_short = not self._is_final and len(after) < 200
        if not begun:
            return None if is_short else True
        if self._form.end != ")" or not self._has_key:
            return begun[0] in f",{self._form.end}"
        follows, last = (_AFTER_CALL, "],<\n") if begun[0] == ")" else (_NEXT_KEY, "=")
        found = follows.match(begun)
        return (True if not is_short or found[0][-1] in last else None) if found else False

    def _other(self) -> str | None:
        """Read a value up to the comma or bracket behind it."""
        held, form = self._held, self._form
        end = len(held) if self._is_final else len(held) - partial_match_length(held, self._quotes)
        position = self._n_scanned
        while found := (_end_of_text(self._quote) if self._quote else form.mark).search(held, position, end):
            mark = found[0]
            if mark == "\\":  # what it escapes is to come
                self._n_scanned = found.start()
                return None
            if self._quote:
                self._quote = "" if mark == self._quote else self._quote
            elif mark in form.quotes:
                self._quote = mark
            elif mark in "([{":
                self._depth += 1
            elif self._depth == 0 and mark in f",{form.end}":
                self._held, self._step = held[found.start() :], self._between
                return form.as_json(held[: found.start()])
            elif mark in ")]}":
                self._depth = max(self._depth - 1, 0)
            position = found.end()
        self._n_scanned = max(position, end)
        return None


def _end_of_text(quote: str) -> re.Pattern[str]:
    """Match the end of a string that began with `quote`, and escaped characters where the notation has them."""
    return re.compile(re.escape(quote) if quote[0] == "<" else rf"\\(?:.|\Z)|{quote}", re.DOTALL)


def python_json(text: str) -> str:
    """Return the Python literal `text` as JSON; names of JSON's values are those values."""
    try:
        with warnings.catch_warnings():  # an unknown escape in a text is a warning
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval")
        return json.dumps(_value(tree.body), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return as_json(text.strip())


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | bool() | None as value):
            return value
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case _:
            raise ValueError("not a literal")


def _key(node: ast.expr | None) -> str:
    value = _value(node) if node else None
    return value if isinstance(value, str) else json.dumps(value)


def python_text(text: str) -> str:
    """Return what `text` means between Python's quotes; unknown escapes stay, half characters become U+FFFD."""
    return _ESCAPE.sub(_unescaped, text)


def unread_escape(text: str) -> int:
    """Return how many of the last characters of `text` may begin an escape that goes on."""
    before = text.rstrip("\\")
    n_slashes = len(text) - len(before)
    if n_slashes:
        pair = re.search(rf"(?<!\\)(?:\\\\)*({_HIGH})\Z", before) if n_slashes % 2 else None
        return n_slashes % 2 + (len(pair[1]) if pair else 0)
    found = _BEGUN_ESCAPE.search(text)
    if not found:
        return 0
    slashes = len(text[: found.start()]) - len(text[: found.start()].rstrip("\\"))
    return 0 if slashes % 2 else len(text) - found.start()


def _unescaped(found: re.Match[str]) -> str:
    escape = found[0]
    if len(escape) == 2:
        character = escape[1]
        return character if character in _LITERAL else _ESCAPED.get(character, escape)
    codes = [int(code, 16) for code in re.split(r"\\[xuU]", escape)[1:]]
    if max(codes) > 0x10FFFF:
        return "\N{REPLACEMENT CHARACTER}"
    text = "".join(map(chr, codes))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def gemma_json(text: str, quote: str = '<|"|>') -> str:
    """Return the value `text` of Gemma as JSON (source: the template of google/gemma-4-31B-it, format_argument)."""
    text = text.strip()
    tokens = list(re.finditer(_GEMMA.format(quote=re.escape(quote)), text, re.DOTALL))
    if "".join(token[0] for token in tokens) != text:
        return as_json(text)
    try:
        reader = _GemmaReader(tokens)
        value = reader.value()
        return as_json(text) if reader.tokens else json.dumps(value, ensure_ascii=False)
    except (ValueError, IndexError, RecursionError):
        return as_json(text)


class _GemmaReader:
    def __init__(self, tokens: list[re.Match[str]]) -> None:
        self.tokens = tokens[::-1]

    def value(self) -> Any:
        token = self.tokens.pop()
        if (token["bare"] or "x").isspace() and self.tokens and self.tokens[-1]["sign"] not in (",", "}", "]", ":"):
            token = self.tokens.pop()  # blanks before a value, as JSON may have them
        if token["sign"] == "{":
            members: dict[str, Any] = {}
            while not self._ends("}"):
                key = self._plain(self.tokens.pop(), is_key=True)
                if self.tokens.pop()["sign"] != ":":
                    raise ValueError("a key without a colon")
                members[key] = self.value()
            return members
        if token["sign"] == "[":
            items = []
            while not self._ends("]"):
                items.append(self.value())
            return items
        return self._plain(token)

    def _ends(self, bracket: str) -> bool:
        """Skip blanks and commas, and the end of the list if that follows."""
        while self.tokens[-1]["sign"] == "," or (self.tokens[-1]["bare"] or "x").isspace():
            self.tokens.pop()
        if self.tokens[-1]["sign"] == bracket:
            self.tokens.pop()
            return True
        return False

    def _plain(self, token: re.Match[str], *, is_key: bool = False) -> Any:
        if token["text"] is not None:
            return token["text"]
        if token["sign"]:
            raise ValueError(token["sign"])
        text = (token["quoted"] or token["bare"]).strip()
        if is_key:
            return json.loads(text) if token["quoted"] else text
        return json.loads(as_json(text))


PYTHON = LiteralForm(('"', "'", '"""', "'''"), "=", ", ", ")", python_json)
GEMMA = LiteralForm(('<|"|>', '"'), ":", ",", "}", gemma_json)
FUNCTION_GEMMA = LiteralForm(("<escape>", '"'), ":", ",", "}", partial(gemma_json, quote="<escape>"))
