"""Arguments with a tag around each value: <parameter=key>value</parameter> and its relatives.

Decides which values are text and which JSON, and where a value ends. MiniMax M3 nests elements: objects by key, arrays
of <item>; each of its tags begins with the same token, so no text of a value is taken for one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.common.answer_text import partial_match_length
from app.engine.grammar.gbnf import GbnfRules, literal, text_through
from app.engine.grammar.json_grammar import schema_rule
from app.engine.grammar.json_schema import constraints
from app.service.tools.argument_forms import (
    ANY_KEY,
    ArgumentsReader,
    as_json,
    inside_string,
    is_undescribed,
    json_type,
    json_types,
    plain_properties,
    raw_text,
)
from app.service.tools.literal_arguments import python_json

MAX_KEY_CHARACTERS = 200
_KINDS = {"true": "string", "false": "object"}  # what an attribute `string` says
_BLANK_KEY = "\N{SYMBOL FOR NULL}"  # in the place of a key
_TEXT = frozenset({"string"})
MAX_DEPTH = 32  # of elements; deeper ones are texts
_ITEM = "item"
_PLAIN_OBJECT = frozenset({"type", "properties", "required", "additionalProperties"})
_JSON_BEGINS = ("[", "{", '"')


@dataclass(frozen=True, slots=True)
class ParameterTags:
    """How parameters are marked: `opening`, a key and `before_value`, the value, `closing`; after the last one `end`.

    With `has_lines` a value is on lines of its own. `kind` is an attribute in the opening tag, behind the key, with its
    values for text and for JSON; without the latter it names the JSON type. `between` follows each parameter. Inside
    `raw` brackets a value may contain tags. Models forget the tag `forgotten` right before a value, and the one behind
    the last: `unclosed` is what follows then.
    """

    opening: str
    before_value: tuple[str, ...]
    closing: str
    end: str
    has_lines: bool = False
    between: str = "\n"
    kind: tuple[str, ...] = ()
    raw: tuple[str, str] = ("", "")
    forgotten: str = ""
    unclosed: str = ""
    marks: tuple[str, ...] = ()

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.opening, *self.before_value, self.closing, self.end, *self.marks)))

    @property
    def _never_in_text(self) -> tuple[str, ...]:
        """Texts that a reader would not take for a part of a value."""
        return tuple(filter(None, (self.unclosed, self.forgotten.strip(), self.raw[0])))

    @property
    def key(self) -> re.Pattern[str]:
        """The text before a value; its group `key` is the name of the parameter, `kind` what its attribute says."""
        first, *others = map(re.escape, self.before_value)
        attribute = rf'(?:\s+{self.kind[0]}="(?P<kind>[^"]*)")?' if self.kind else "(?P<kind>(?!))?"
        between = r"\s*".join((f"{first}{attribute}", *others))
        return re.compile(f"{re.escape(self.opening)}(?P<key>.*?){between}", re.DOTALL)

    def reader(self, schema: Mapping[str, Any]) -> ArgumentsReader:
        return TaggedArguments(self, schema)

    def rule(self, schema: Mapping[str, Any], rules: GbnfRules) -> str:
        """Return a rule for parameters in the order of the schema, each in its tags, optional unless required. An
        object that is not described has any of them, with any texts."""
        if is_undescribed(schema):
            return rules.add(f"({self._any_parameter(rules)})* {literal(self.end)}")
        parts = [
            f"{self._parameter(name, value, schema, rules)}{'' if is_required else '?'}"
            for name, (value, is_required) in plain_properties(schema).items()
        ]
        return rules.add(" ".join((*parts, literal(self.end))))

    def written(self, arguments: Mapping[str, Any]) -> str:
        line = "\n" if self.has_lines else ""
        parts = [
            f"{self._opened(key, json_type(value))}{line}"
            f"{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
            f"{line}{self.closing}{self.between}"
            for key, value in arguments.items()
        ]
        return "".join((*parts, self.end))

    def _opened(self, key: str, kind: str) -> str:
        first, *others = self.before_value
        attribute = ""
        if self.kind:
            name, text, *json_value = self.kind
            attribute = f' {name}="{text if kind == "string" else (json_value or [kind])[0]}"'
        return f"{self.opening}{key}{first}{attribute}{''.join(others)}{self.forgotten}"

    def _any_parameter(self, rules: GbnfRules) -> str:
        line = "\n" if self.has_lines else ""
        before, _, after = self._opened(_BLANK_KEY, "string").partition(_BLANK_KEY)
        text = text_through(f"{line}{self.closing}", rules, (*self._never_in_text, *((self.closing,) if line else ())))
        between = f" {literal(self.between)}" if self.between else ""
        return f"{literal(before)} {ANY_KEY} {literal(after + line)} {text}{between}"

    def _parameter(self, name: str, value: object, document: Mapping[str, Any], rules: GbnfRules) -> str:
        line = "\n" if self.has_lines else ""
        begin = literal(self._opened(name, _kind_of_schema(value)) + line)
        if isinstance(value, Mapping) and json_types(value) == _TEXT:
            between = f" {literal(self.between)}" if self.between else ""
            return rules.add(f"{begin} {raw_text(value, self.closing, rules, line, self._never_in_text)}{between}")
        return rules.add(f"{begin} {schema_rule(value, rules, document)} {literal(line + self.closing + self.between)}")


class TaggedArguments:
    """Arguments with a tag around each: strings stream, other values come whole. An attribute of the tag says which are
    strings, else `schema` does; without a type, a value that parses as JSON is JSON."""

    def __init__(self, tags: ParameterTags, schema: Mapping[str, Any]) -> None:
        self.rest: str | None = None
        self._tags = tags
        properties = schema.get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}
        self._held = ""
        self._n_parameters = 0
        self._step = self._between
        self._kinds: frozenset[str] = frozenset()
        self._is_text = False
        self._is_first_of_value = False
        self._is_final = False
        self._n_scanned = 0  # of a value that is not a string
        self._key, self._closing = "", tags.closing

    def push(self, text: str) -> str:
        self._held += text
        parts = []
        while self.rest is None and (more := self._step()) is not None:
            parts.append(more)
        return "".join(parts)

    def finish(self) -> str:
        self._is_final = True
        read = self.push("")
        if self.rest is not None:
            return read
        held, self._held = self._held, ""  # of arguments that do not end
        if self._step == self._value:
            return read + ("" if self._is_text else '"') + inside_string(held)
        self.rest = held
        return read + self._closed()

    def _between(self) -> str | None:
        """Begin the next parameter, or end the arguments, also at any other text."""
        tags = self._tags
        held = self._held = self._held.lstrip()
        if held.startswith(tags.end):
            self.rest = held.removeprefix(tags.end)
            return self._closed()
        if found := tags.key.match(held[:MAX_KEY_CHARACTERS]):
            self._held = held[found.end() :]
            return self._begin(found["key"], found["kind"])
        is_begun = tags.opening.startswith(held) or held.startswith(tags.opening)
        if (is_begun or tags.end.startswith(held)) and len(held) < MAX_KEY_CHARACTERS:
            return None
        self.rest = held
        return self._closed()

    def _begin(self, key: str, kind: str | None) -> str:
        self._kinds = json_types(self._properties.get(key)) if kind is None else frozenset({_KINDS.get(kind, kind)})
        self._is_text = self._kinds == _TEXT
        self._is_first_of_value = self._tags.has_lines or bool(self._tags.raw[0] or self._tags.forgotten)
        self._key, self._closing = key, self._closing_of(key)
        self._n_parameters += 1
        self._step = self._value
        comma = "{" if self._n_parameters == 1 else ", "
        return f"{comma}{json.dumps(key, ensure_ascii=False)}: " + ('"' if self._is_text else "")

    def _value(self) -> str | None:
        if self._is_first_of_value and not self._begins_value():
            return None
        end, rest = self._end_of_value(), len(self._closing)
        unclosed = self._held.find(self._tags.unclosed) if self._tags.unclosed else -1
        if unclosed >= 0 and not 0 <= end < unclosed:
            end, rest = unclosed, 0
        if end < 0 and not self._is_text:
            return None
        if end < 0:
            closing = self._closing
            closings = (closing, "\n" + closing, self._tags.unclosed) if self._tags.has_lines else (closing,)
            n_shown = len(self._held) - partial_match_length(self._held, closings)
            shown, self._held = self._held[:n_shown], self._held[n_shown:]
            return inside_string(shown) if shown else None
        value, self._held, self._step = self._held[:end], self._held[end + rest :], self._between
        self._n_scanned = 0
        value = value.removesuffix("\n") if self._tags.has_lines else value
        return inside_string(value) + '"' if self._is_text else self._as_json(value)

    def _end_of_value(self) -> int:
        """Return where the tag behind the value begins, -1 if it is to come. JSON ends where it is whole: a string in
        it may contain the tag. What is not JSON after all ends with the first; JSON that an answer was cut off in does
        not end."""
        end = self._held.find(self._closing, self._n_scanned)
        if self._is_text or self._held.lstrip()[:1] not in _JSON_BEGINS:
            return end
        while end >= 0 and not is_whole_json(self._held[:end]):
            self._n_scanned = end + len(self._closing)
            end = self._held.find(self._closing, self._n_scanned)
        is_broken = end < 0 and self._is_final and not _is_begun_json(self._held)
        return self._held.find(self._closing) if is_broken else end

    def _as_json(self, value: str) -> str:
        return as_one_of(value, self._kinds)

    def _closing_of(self, key: str) -> str:
        del key
        return self._tags.closing

    def _begins_value(self) -> bool:
        """Drop what stands before a value. Return whether all of it is read."""
        tags, begun = self._tags, self._held.lstrip()
        forgotten = tags.forgotten.lstrip()
        if not self._held or any(begun != tag and tag.startswith(begun) for tag in (forgotten, tags.raw[0]) if tag):
            return False
        if forgotten and begun.startswith(forgotten):
            self._held = begun.removeprefix(forgotten)
        if tags.has_lines:
            self._held = self._held.removeprefix("\n")
        if tags.raw[0] and self._held.startswith(tags.raw[0]):
            self._held, self._closing = self._held.removeprefix(tags.raw[0]), f"{tags.raw[1]}{tags.closing}"
        self._is_first_of_value = False
        return True

    def _closed(self) -> str:
        return "}" if self._n_parameters else "{}"


def is_whole_json(text: str) -> bool:
    """Return whether `text` is a whole JSON string, list or object, or what a Python template prints instead."""
    if text.lstrip()[:1] not in _JSON_BEGINS:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return python_json(text)[0] in "[{"
    return True


def _is_begun_json(text: str) -> bool:
    """Return whether `text` is JSON that more text could make whole."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip())
    except RecursionError:
        return False
    return False


def as_one_of(text: str, kinds: frozenset[str]) -> str:
    """Return `text` as JSON of one of `kinds`, as a string where it cannot be another."""
    value = as_json(text)
    if value[0] == '"' and kinds & {"object", "array"}:
        value = python_json(text)  # templates print objects as Python does
    kind = json_type(json.loads(value))
    is_text = "string" in kinds and not kinds & {kind, *(("integer",) if kind == "number" else ())}
    return json.dumps(text, ensure_ascii=False) if is_text else value


def _kind_of_schema(schema: object) -> str:
    if json_types(schema) == _TEXT:
        return "string"
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return {"integer": "number"}.get(kind, kind) if isinstance(kind, str) else "object"


@dataclass(frozen=True, slots=True)
class ElementForm:
    """Elements up to the end of the call; `mark` is the token before each tag."""

    mark: str

    @property
    def tags(self) -> tuple[str, ...]:
        return (self.mark,)

    @property
    def end(self) -> str:
        return f"{self.mark}</invoke>"

    def reader(self, schema: Mapping[str, Any]) -> ArgumentsReader:
        return ElementArguments(self.mark, self.end, schema)

    def rule(self, schema: Mapping[str, Any], rules: GbnfRules) -> str:
        return rules.add(f"{self._members(schema, schema, rules)} {literal(self.end)}".lstrip())

    def written(self, arguments: Mapping[str, Any]) -> str:
        return f"{_element_content(arguments, self.mark)}{self.end}"

    def _members(self, schema: Mapping[str, Any], document: Mapping[str, Any], rules: GbnfRules) -> str:
        """Return a rule for the members of an object in the order of `schema`, optional unless required."""
        return " ".join(
            f"({self._element(key, value, document, rules)}){'' if is_required else '?'}"
            for key, (value, is_required) in plain_properties(schema).items()
        )

    def _element(self, key: str, schema: object, document: Mapping[str, Any], rules: GbnfRules) -> str:
        begin, closing = literal(f"{self.mark}<{key}>"), f"{self.mark}</{key}>"
        if isinstance(schema, Mapping):
            kind, beside = schema.get("type"), constraints(schema) - {"type"}
            if json_types(schema) == {"string"}:
                return f"{begin} {raw_text(schema, closing, rules)}"
            if kind == "object" and "properties" in beside and constraints(schema) <= _PLAIN_OBJECT:
                return f"{begin} {self._members(schema, document, rules)} {literal(closing)}"
            if kind == "array" and beside == {"items"}:
                return f"{begin} ({self._element(_ITEM, schema['items'], document, rules)})* {literal(closing)}"
        return f"{begin} {schema_rule(schema, rules, document)} {literal(closing)}"


class ElementArguments(TaggedArguments):
    """Reads the elements of one call; texts stream, others come whole."""

    def __init__(self, mark: str, end: str, schema: Mapping[str, Any]) -> None:
        super().__init__(ParameterTags(f"{mark}<", (">",), "", end, between=""), schema)
        self._mark = mark

    def _closing_of(self, key: str) -> str:
        return f"{self._mark}</{key}>"

    def _end_of_value(self) -> int:
        has_elements = self._held.lstrip().startswith(f"{self._mark}<")
        if self._is_text or not has_elements or self._closing not in self._held:
            return super()._end_of_value()
        return _end_of_element(self._held, self._key, self._mark)

    def _as_json(self, value: str) -> str:
        return _json_of(value, self._properties.get(self._key), self._mark, 0)


def _json_of(text: str, schema: object, mark: str, depth: int) -> str:
    if f"{mark}<" not in text or depth > MAX_DEPTH or is_whole_json(text):
        kinds = json_types(schema)
        empty = {frozenset({"array"}): "[]", frozenset({"object"}): "{}"}.get(kinds) if not text.strip() else None
        return empty or (json.dumps(text, ensure_ascii=False) if kinds == {"string"} else as_one_of(text, kinds))
    inner = schema if isinstance(schema, Mapping) else {}
    described = inner.get("properties")
    properties: Mapping[str, Any] = described if isinstance(described, Mapping) else {}
    members = _members_of(text, mark)
    if all(key == _ITEM for key, _ in members) and _ITEM not in properties:
        return f"[{', '.join(_json_of(part, inner.get('items'), mark, depth + 1) for _, part in members)}]"
    values = {key: _json_of(part, properties.get(key), mark, depth + 1) for key, part in members}
    return f"{{{', '.join(f'{json.dumps(key, ensure_ascii=False)}: {value}' for key, value in values.items())}}}"


def _members_of(text: str, mark: str) -> list[tuple[str, str]]:
    members = []
    opening = re.compile(rf"{re.escape(mark)}<([^<>/][^<>]{{0,200}})>")
    while found := opening.search(text):
        text = text[found.end() :]
        end = _end_of_element(text, found[1], mark)
        members.append((found[1], text[:end] if end >= 0 else text))
        text = text[end:] if end >= 0 else ""
    return members


def _end_of_element(text: str, key: str, mark: str) -> int:
    """Return where the end tag of the element `key` stands, whose content `text` begins with; -1 if it is to come."""
    depth = 1
    for found in re.finditer(rf"{re.escape(mark)}<(/?){re.escape(key)}>", text):
        depth += -1 if found[1] else 1
        if depth == 0:
            return found.start()
    return -1


def _element_content(value: object, mark: str) -> str:
    """Return `value` as the content of an element; members that are null are left out."""
    if isinstance(value, Mapping):
        members = [(key, member) for key, member in value.items() if member is not None]
    elif isinstance(value, list):
        members = [(_ITEM, member) for member in value]
    else:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(f"{mark}<{key}>{_element_content(member, mark)}{mark}</{key}>" for key, member in members)
