"""The shape of a JSON schema: which kind of value each keyword has, whatever it means. Pure.

A schema comes from clients of the API and from MCP servers, and is read by grammars, by checks of arguments and by chat
templates, none of which should meet a list where the standard has an object. `null` is taken for a keyword that is left
out, as serializers write it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

_SCHEMA, _SCHEMAS, _NAMED = "a schema", "a list of schemas", "an object with a schema for each name"


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)  # type: ignore[operator, call-overload]


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


# What each keyword holds (source: the meta-schemas of JSON Schema, drafts 4 to 2020-12, and OpenAPI 3.0's booleans).
_HOLDS: Mapping[str, str] = {
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), _NAMED),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _SCHEMAS),
    **dict.fromkeys(
        ("additionalProperties", "propertyNames", "contains", "not", "if", "then", "else", "additionalItems"), _SCHEMA
    ),
    "items": f"{_SCHEMA} or {_SCHEMAS}",
}
_VALUES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "type": ("a name or a list of names", lambda value: isinstance(value, str) or (_is_texts(value) and bool(value))),
    # True at a property itself is draft 3's, which some tools still write.
    "required": ("a list of names", lambda value: _is_texts(value) or isinstance(value, bool)),
    "enum": ("a list", lambda value: isinstance(value, list)),
    **dict.fromkeys(("pattern", "format", "$ref"), ("a string", lambda value: isinstance(value, str))),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        ("a count from 0 on", _is_count),
    ),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), ("a number", _is_number)),
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"),
        ("a number", lambda value: _is_number(value) or isinstance(value, bool)),
    ),
}


def malformed_part(schema: object, place: str = "#") -> str:
    """Return what is wrong with the first malformed part of `schema`, by its JSON pointer behind `place` (source: RFC
    6901), "" where each part has the shape that the standard gives it. Whether it can be kept to is another matter."""
    left: list[tuple[str, object]] = [(place, schema)]
    while left:  # no recursion: what a client sends may be deeper than our stack
        at, part = left.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping):
            return f"{at} must be {_SCHEMA}: an object, true or false"
        for keyword, value in part.items():
            if value is None:
                continue
            if keyword in _VALUES:
                holds, is_sound = _VALUES[keyword]
                if not is_sound(value):
                    return f"{at}/{keyword} must be {holds}"
            elif keyword in _HOLDS:
                inner = _inner(keyword, value)
                if inner is None:
                    return f"{at}/{keyword} must be {_HOLDS[keyword]}"
                left.extend((f"{at}/{keyword}{step}", each) for step, each in inner)
    return ""


def _inner(keyword: str, value: object) -> Iterator[tuple[str, object]] | None:
    """Return the schemas in the `value` of a keyword, with their steps from it, None where it has another shape."""
    holds = _HOLDS[keyword]
    if isinstance(value, Mapping):
        if holds == _NAMED:
            return ((f"/{pointer_step(name)}", each) for name, each in value.items())
        return iter([("", value)]) if holds != _SCHEMAS else None
    if isinstance(value, bool) and holds != _NAMED and holds != _SCHEMAS:
        return iter([("", value)])
    if isinstance(value, list) and holds not in (_NAMED, _SCHEMA):
        return ((f"/{index}", each) for index, each in enumerate(value))
    return None


_MOST_SHOWN = 60  # characters of a name


def pointer_step(name: str) -> str:
    """Return `name` as a step of a JSON pointer, cut where it is long."""
    return name[:_MOST_SHOWN].replace("~", "~0").replace("/", "~1")
