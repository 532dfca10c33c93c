"""The forms in which models write the arguments of a call, and arguments that are a JSON object.

A form offers a reader, grammar rules and the text of given arguments; the other forms are in `tagged_arguments` and
`literal_arguments`. Shared by them: questions to a schema, and rules for texts that are written as is up to a tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from app.engine.grammar.gbnf import GbnfRules, character_class, literal, text_through
from app.engine.grammar.json_grammar import schema_rule
from app.engine.grammar.json_schema import ANY_OF, constraints, length_bounds, listed, properties_of, required_names
from app.engine.grammar.pattern import RawText, limited_pattern, pattern_of
from app.protocol.errors import RequestError

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}  # as Jinja prints them, which models imitate
_JSON_MARK = re.compile(r'\\(?:.|\Z)|["{}\[\]]', re.DOTALL)
_BLOCK, _LARGE_BLOCK = 32, 1024  # characters of a text that are counted together
_LENGTHS = frozenset({"type", "minLength", "maxLength"})
_CHOICES = frozenset({"type", "enum", "const"})

MAX_OBJECT_CHARACTERS = 64 * 1024
_WINDOW_CHARACTERS = 512  # names and ids are short
_NAME_KEYS = ("name", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters")
_OTHER_PAIRS = r'(?:"(?:id|type|tool_call_id)"\s*:\s*"[\w:.-]*"\s*,\s*)*'
# The order in which models are trained to write a call, which lets its arguments stream.
_NAME_FIRST = re.compile(
    rf'\{{\s*{_OTHER_PAIRS}"(?:{"|".join(_NAME_KEYS)})"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*'
    rf'{_OTHER_PAIRS}"(?:{"|".join(_ARGUMENT_KEYS)})"\s*:\s*(?=\{{)'
)
# A key that no call has, before which only those that calls begin with come.
_FOREIGN_KEY = re.compile(
    rf'\{{\s*(?:"(?:{"|".join(_NAME_KEYS)}|id|type|tool_call_id)"\s*:\s*"[^"\\]*"\s*,\s*)*'
    rf'"(?!(?:{"|".join((*_NAME_KEYS, *_ARGUMENT_KEYS))}|id|type|tool_call_id|function|index)")[^"\\]*"\s*:'
)
_END = re.compile(r'\s*(?:,\s*"\w*"\s*:\s*(?:"[\w:.-]*"|[\w.-]+)\s*)*\}')
ANY_KEY = "[A-Za-z_] [A-Za-z0-9_]{0,40}"  # of an argument that no schema describes


class ArgumentForm(Protocol):
    """How a family writes arguments. `schema` is the JSON schema of a tool's arguments, an object's."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Texts that may be special tokens of these models."""

    def reader(self, schema: Mapping[str, Any]) -> ArgumentsReader: ...

    def rule(self, schema: Mapping[str, Any], rules: GbnfRules) -> str:
        """Return a rule of `rules` for the arguments. Raises RequestError for a schema that is not supported."""

    def written(self, arguments: Mapping[str, Any]) -> str: ...


@dataclass(frozen=True, slots=True)
class JsonForm:
    """Arguments that are a JSON object."""

    tags: tuple[str, ...] = ()

    def reader(self, schema: Mapping[str, Any]) -> ArgumentsReader:
        del schema  # JSON says itself what its values are
        return JsonArguments()

    def rule(self, schema: Mapping[str, Any], rules: GbnfRules) -> str:
        return schema_rule({"type": "object", **schema}, rules)

    def written(self, arguments: Mapping[str, Any]) -> str:
        return json.dumps(arguments, ensure_ascii=False)


class ArgumentsReader(Protocol):
    """Turns arguments into JSON text; `rest` is None until they end, then the text after them."""

    rest: str | None

    def push(self, text: str) -> str:
        """Return the JSON text that is certain after `text`."""

    def finish(self) -> str:
        """Return the remaining JSON text at the end of the answer."""


class JsonArguments:
    """Arguments that are JSON already: one object, whose content may be invalid, as long as brackets are balanced."""

    def __init__(self) -> None:
        self.rest: str | None = None
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def push(self, text: str) -> str:
        begin = int(self._is_escaped and bool(text))
        self._is_escaped = self._is_escaped and not text
        for found in _JSON_MARK.finditer(text, begin):
            mark = found[0]
            if mark == '"':
                self._is_in_string = not self._is_in_string
            elif mark[0] == "\\":
                self._is_escaped = len(mark) == 1
            elif not self._is_in_string:
                self._depth += 1 if mark in "{[" else -1
                if self._depth == 0:
                    self.rest = text[found.end() :]
                    return text[: found.end()]
        return text

    def finish(self) -> str:
        return ""


def inside_string(text: str) -> str:
    """Return `text` as JSON has it between quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def as_json(text: str) -> str:
    """Return `text` if it is JSON, or one of Python's words for it, else as a JSON string."""
    value = _PYTHON_WORDS.get(text.strip(), text.strip())
    try:
        json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """The first `n_characters` of a call of `name`, "" for no call; `arguments` are JSON text, None if they follow."""

    n_characters: int
    name: str = ""
    arguments: str | None = None


class ObjectReader:
    """Reads one object at the start of the text. An `is_bare` one may be the answer, so that it is soon given up."""

    def __init__(self, *, is_bare: bool = False) -> None:
        self._object = JsonArguments()
        self._is_bare = is_bare
        self._n_scanned = 0

    def read(self, text: str, *, is_final: bool) -> ObjectHead | None:
        """Return the head of `text`, which grows with each call; None if more is needed and will come."""
        if found := _NAME_FIRST.match(text[:_WINDOW_CHARACTERS]):
            return ObjectHead(found.end(), found["name"])
        if self._is_bare and _FOREIGN_KEY.match(text[:_WINDOW_CHARACTERS]):
            return ObjectHead(0)
        window = text[:MAX_OBJECT_CHARACTERS]
        self._object.push(window[self._n_scanned :])
        if self._object.rest is not None:
            return _head_of(window[: len(window) - len(self._object.rest)])
        self._n_scanned = len(window)
        return ObjectHead(len(window)) if is_final or len(window) == MAX_OBJECT_CHARACTERS else None


def n_after_arguments(text: str, *, is_final: bool) -> int | None:
    """Return how many characters of `text` after the arguments end their object, None if more is needed, and 0 if
    other text follows: models forget the brace."""
    window = text[:_WINDOW_CHARACTERS]
    if found := _END.match(window):
        return found.end()
    begin = window.lstrip()[:1]
    may_still_end = begin in ("", ",") and "}" not in window and len(window) < _WINDOW_CHARACTERS
    return None if may_still_end and not is_final else 0


def _head_of(text: str) -> ObjectHead:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ObjectHead(len(text))
    call = value.get("function") if isinstance(value.get("function"), Mapping) else value
    name = next((call[key] for key in _NAME_KEYS if isinstance(call.get(key), str)), "")
    arguments: object = next((call[key] for key in _ARGUMENT_KEYS if call.get(key) is not None), {})
    json_text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ObjectHead(len(text), name if json_text.lstrip().startswith("{") else "", json_text)


def is_undescribed(schema: Mapping[str, Any]) -> bool:
    """Return whether an object may have any properties, and the schema says nothing of them."""
    return not constraints(schema) - {"type"} or (
        constraints(schema) <= {"type", "additionalProperties"} and schema["additionalProperties"] is True
    )


def plain_properties(schema: Mapping[str, Any]) -> dict[str, tuple[Any, bool]]:
    """Return the properties of an object by name, and whether each is required. Raises RequestError where the schema
    says more of the object, which only JSON could follow."""
    foreign = constraints(schema) - {"type", "properties", "required", "additionalProperties"}
    properties = properties_of(schema)
    required = required_names(schema)
    if foreign or required.keys() - properties.keys():
        cause = "This model's tool calls support only plain properties of an object."
        raise RequestError(cause, "Describe each parameter in properties.")
    return {name: (value, name in required) for name, value in properties.items()}


def json_types(schema: object) -> frozenset[str]:
    """Return the JSON types that `schema` plainly allows, none where it does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(kind for kind in declared if isinstance(kind, str))
    for keyword in ("anyOf", "oneOf"):
        if isinstance(ways := schema.get(keyword), list):
            found = [json_types(way) for way in ways]
            return frozenset().union(*found) if all(found) else frozenset()
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return frozenset(map(json_type, values)) if isinstance(values, list) else frozenset()


def json_type(value: object) -> str:
    """Return the JSON type of `value`; any number is one."""
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (str, "string"), (bool, "boolean"), ((int, float), "number"), (Mapping, "object"), (list, "array"),
    )  # fmt: skip
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")


def raw_text(
    schema: Mapping[str, Any], tag: str, rules: GbnfRules, before_tag: str = "", without: Sequence[str] = ()
) -> str:
    """Return a rule of `rules` for a text of `schema` through `before_tag` and the first `tag`, with none of `without`.

    A text of limited length does not contain the first two characters of the tag in a row either, one with a pattern
    not even the first: narrower than the schema, and never wrong.
    Raises RequestError where the schema is not of texts, or limits them in ways that no grammar has here.
    """
    if pattern_of(schema) is not None and not constraints(schema) - {*_LENGTHS, "pattern"}:  # a `format` is one
        schema = {**schema, "pattern": pattern_of(schema)}
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
    """Rules for texts of a certain length without the first two characters of `tag` in a row, by blocks, the last
    character of which is not the first one of the tag."""

    def __init__(self, tag: str, rules: GbnfRules) -> None:
        self._rules = rules
        first, second = tag[0], tag[1]
        self._first = literal(first)
        self._free, self._behind_first = character_class(first), character_class(first, second)

    def exactly(self, n: int) -> str:
        n_large, n_left = divmod(n, _LARGE_BLOCK)
        n_blocks, n_rest = divmod(n_left, _BLOCK)
        blocks = (f"{self._large_block()}{{{n_large}}}", f"{self._block(_BLOCK)}{{{n_blocks}}}", self._block(n_rest))
        return " ".join(block for block, count in zip(blocks, (n_large, n_blocks, n_rest), strict=True) if count)

    def between(self, least: int, most: int) -> str:
        return f"{self.exactly(least)} {self._up_to(most - least)}".strip()

    def _up_to(self, n: int) -> str:
        if n < _BLOCK:
            free = behind = '""'
            for _ in range(n):
                ways = self._longer(free, behind, is_last=False)
                free, behind = (self._rules.add(f'"" | {way}') for way in ways)
            return free
        size, block = (_LARGE_BLOCK, self._large_block()) if n >= _LARGE_BLOCK else (_BLOCK, self._block(_BLOCK))
        n_blocks, n_rest = divmod(n, size)
        return f"({block}{{0,{n_blocks - 1}}} {self._up_to(size - 1)} | {block}{{{n_blocks}}} {self._up_to(n_rest)})"

    def _large_block(self) -> str:
        return self._rules.add(f"{self._block(_BLOCK)}{{{_LARGE_BLOCK // _BLOCK}}}")

    def _block(self, n: int) -> str:
        free = behind = ""
        for number in range(n):
            free, behind = self._longer(free, behind, is_last=number == 0)
        return free

    def _longer(self, free: str, behind: str, *, is_last: bool) -> tuple[str, str]:
        """Return rules for a character more before what `free` and `behind` allow, the latter behind the first one."""
        other = "" if is_last else f" | {self._first} {behind}"
        return (
            self._rules.add(f"{self._free} {free}{other}".strip()),
            self._rules.add(f"{self._behind_first} {free}{other}".strip()),
        )
