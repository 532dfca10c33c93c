"""Literals as JSON text: those of Python, and the objects and arrays of Gemma 4. Pure.

Owns which literals are understood; any other text becomes a JSON string.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any

from app.service.tools.call_reader import as_json

_WORDS = {"true": True, "false": False, "null": None}
_HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"{_HIGH}{_LOW}|\\(?:x[0-9a-fA-F]{{2}}|u[0-9a-fA-F]{{4}}|U[0-9a-fA-F]{{8}}|.)", re.DOTALL)
_BEGUN_ESCAPE = re.compile(rf"{_HIGH}\\?(?:(?<=\\)u.{{0,3}})?\Z|\\(?:x.?|u.{{0,3}}|U.{{0,7}})?\Z", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_LITERAL = "\\'\"/"


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


_GEMMA = r'{quote}(?P<text>.*?){quote}|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<sign>[\[\]{{}},:])|(?P<bare>[^\[\]{{}},:<"]+)'


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
    """Reads values from tokens."""

    def __init__(self, tokens: list[re.Match[str]]) -> None:
        self.tokens = tokens[::-1]

    def value(self) -> Any:
        token = self.tokens.pop()
        if (token["bare"] or "x").isspace() and self.tokens and self.tokens[-1]["sign"] not in (",", "}", "]", ":"):
            token = self.tokens.pop()  # blanks before a value, as JSON may have them
        if token["sign"] == "{":
            return self._object()
        if token["sign"] == "[":
            return self._array()
        if token["sign"]:
            raise ValueError(token[0])
        return self._plain(token)

    def _object(self) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while not self._ends("}"):
            key = self._plain(self.tokens.pop(), is_key=True)
            if self.tokens.pop()["sign"] != ":":
                raise ValueError("a key without a colon")
            members[key] = self.value()
        return members

    def _array(self) -> list[Any]:
        items = []
        while not self._ends("]"):
            items.append(self.value())
        return items

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
