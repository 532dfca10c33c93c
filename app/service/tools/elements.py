"""Arguments as nested elements, as MiniMax M3 writes them: objects by key, arrays of <item>.

Each tag begins with the same token, so no text of a value is taken for one. Source: the template of MiniMax M3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.engine.grammar.gbnf import GbnfRules, literal
from app.engine.grammar.json_grammar import schema_rule
from app.engine.grammar.json_schema import constraints
from app.service.tools.argument_forms import json_types, plain_properties
from app.service.tools.call_reader import ArgumentsReader
from app.service.tools.raw_text import raw_text
from app.service.tools.tagged_arguments import ParameterTags, TaggedArguments, as_one_of, is_whole_json

MAX_DEPTH = 32
_ITEM = "item"


_PLAIN_OBJECT = frozenset({"type", "properties", "required", "additionalProperties"})


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
        return f"{_written(arguments, self.mark)}{self.end}"

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
    """Return the content `text` of an element as JSON."""
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
    """Return the elements in `text`: their keys and contents."""
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


def _written(value: object, mark: str) -> str:
    """Return `value` as the content of an element; members that are null are left out."""
    if isinstance(value, Mapping):
        members = [(key, member) for key, member in value.items() if member is not None]
    elif isinstance(value, list):
        members = [(_ITEM, member) for member in value]
    else:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(f"{mark}<{key}>{_written(member, mark)}{mark}</{key}>" for key, member in members)
