"""The arguments of a call against the JSON schema of its tool: a reason for the model to mend it, or none. Pure.

Owns a small, bounded part of JSON Schema: types, enumerations, objects, lists, lengths, ranges, alternatives and
references within the schema. It never refuses what the schema allows; keywords and dialects that it does not know are
left to the server, and so are patterns, since a hostile one takes forever. A schema of a server of others is untrusted:
nothing is fetched for a reference, and a check ends after a number of steps.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeGuard

from app.tools.schema_example import example_arguments
from quantizer.system.errors import UserError

MAX_ARGUMENT_CHARACTERS = 8 << 20
_MAX_STEPS = 100_000
_MAX_DEPTH = 64
_MAX_SHOWN = 100
_DIALECTS = "://json-schema.org/"  # another may give these keywords no meaning

Schema: TypeAlias = Any  # an object, or true and false; untrusted
Problem: TypeAlias = tuple[str, str]  # where, and what


class ArgumentsError(UserError):
    """Arguments of a call that its tool does not take; the model reads it."""


def read_arguments(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, which `schema` allows as far as it is checked. Raises ArgumentsError."""
    remedy = f"Send one JSON object, such as {json.dumps(example_arguments(schema), ensure_ascii=False)}"
    if len(text) > MAX_ARGUMENT_CHARACTERS:
        raise ArgumentsError(f"The arguments have more than {MAX_ARGUMENT_CHARACTERS:,} characters.", remedy)
    try:
        arguments = json.loads(text or "{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        cause = "nested too deep" if isinstance(error, RecursionError) else str(error)[:_MAX_SHOWN]
        raise ArgumentsError(f"The arguments are not valid JSON: {cause}.", remedy) from None
    if not isinstance(arguments, dict):
        raise ArgumentsError("The arguments are not a JSON object.", remedy)
    problem = _Check(schema).problem(arguments, schema, "", 0)
    if problem is not None:
        place, what = problem
        raise ArgumentsError(f"{place or 'The arguments'}: {what}." if place else f"The arguments {what}.", remedy)
    return arguments


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


class _Check:
    """One check against `root`; it counts its steps, and allows what it has no steps left for."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._n_steps = 0

    def problem(self, value: Any, schema: Schema, place: str, depth: int) -> Problem | None:
        """Return the first thing in `value` that `schema` does not allow, None where there is none."""
        self._n_steps += 1
        if self._n_steps > _MAX_STEPS or depth > _MAX_DEPTH:
            return None
        if schema is False:
            return place, "is not allowed"
        if not isinstance(schema, Mapping) or _DIALECTS not in str(schema.get("$schema", _DIALECTS)):
            return None
        if "$id" in schema and schema is not self._root:  # its references begin at itself
            return None
        return next(self._problems(value, schema, place, depth), None)

    def _problems(self, value: Any, schema: Mapping[str, Any], place: str, depth: int) -> Iterator[Problem]:
        if isinstance(reference := schema.get("$ref"), str):
            yield from self._found(value, self._target(reference), place, depth)
            return  # up to draft 7 nothing beside it counts
        types = schema.get("type")
        names = [name for name in (types if isinstance(types, list) else [types]) if isinstance(name, str)]
        if names and all(name in _TYPES and not _TYPES[name](value) for name in names):
            yield place, f"must be of type {' or '.join(names)}"
            return
        if "const" in schema and not _equal(value, schema["const"]):
            yield place, f"must be {_shown(schema['const'])}"
        if isinstance(values := schema.get("enum"), list) and not any(_equal(value, each) for each in values):
            yield place, f"must be one of {_shown(values)}"
        yield from self._alternatives(value, schema, place, depth)
        if isinstance(value, dict):
            yield from self._object(value, schema, place, depth)
        elif isinstance(value, list):
            yield from self._list(value, schema, place, depth)
        yield from _limit_problems(value, schema, place)

    def _found(self, value: Any, schema: Schema, place: str, depth: int) -> Iterator[Problem]:
        if (problem := self.problem(value, schema, place, depth + 1)) is not None:
            yield problem

    def _alternatives(self, value: Any, schema: Mapping[str, Any], place: str, depth: int) -> Iterator[Problem]:
        for each in _listed(schema, "allOf"):
            yield from self._found(value, each, place, depth)
        for name in ("anyOf", "oneOf"):  # that only one of oneOf holds is left to the server
            choices = _listed(schema, name)
            problems = [self.problem(value, each, place, depth + 1) for each in choices]
            if choices and all(problem is not None for problem in problems):
                found = max((problem for problem in problems if problem), key=lambda problem: len(problem[0]))
                yield found if len(choices) == 1 or found[0] != place else (place, "has none of the forms it may have")

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any], place: str, depth: int) -> Iterator[Problem]:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        for name in _listed(schema, "required"):
            if isinstance(name, str) and name not in value:
                yield place, f"must have {_shown(name)}"
        for name, each in value.items():
            if name in properties:
                yield from self._found(each, properties[name], _within(place, name), depth)
            elif "additionalProperties" in schema and "patternProperties" not in schema:
                if schema["additionalProperties"] is False:
                    yield place, f"must not have {_shown(name)}"
                yield from self._found(each, schema["additionalProperties"], _within(place, name), depth)

    def _list(self, value: list[Any], schema: Mapping[str, Any], place: str, depth: int) -> Iterator[Problem]:
        prefix = _listed(schema, "prefixItems")
        for number, (each, form) in enumerate(zip(value, prefix, strict=False)):
            yield from self._found(each, form, f"{place}[{number}]", depth)
        items = schema.get("items")
        if isinstance(items, Mapping | bool):
            for number, each in enumerate(value[len(prefix) :], len(prefix)):
                yield from self._found(each, items, f"{place}[{number}]", depth)

    def _target(self, reference: str) -> Schema:
        """Return the part of the schema that `reference` names; an anchor, or what is not here, allows everything."""
        document, *names = reference.split("/")
        found = self._root if document == "#" else True
        for name in names:
            name = name.replace("~1", "/").replace("~0", "~")
            found = found.get(name, True) if isinstance(found, Mapping) else True
        return found


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
}


_SIZES: Mapping[type, tuple[str, str]] = {
    str: ("Length", "characters"),
    list: ("Items", "items"),
    dict: ("Properties", "members"),
}


def _limit_problems(value: Any, schema: Mapping[str, Any], place: str) -> Iterator[Problem]:
    """Yield where a number is out of its range, or a text, list or object has another size than it may have."""
    limits: list[tuple[str, Callable[[Any, Any], bool], str, str]] = []
    if _is_number(value):
        limits = [
            ("minimum", operator.ge, "be at least", ""),
            ("maximum", operator.le, "be at most", ""),
            ("exclusiveMinimum", operator.gt, "be above", ""),
            ("exclusiveMaximum", operator.lt, "be below", ""),
        ]
    elif type(value) in _SIZES:
        noun, what = _SIZES[type(value)]
        limits = [(f"min{noun}", operator.ge, "have at least", what), (f"max{noun}", operator.le, "have at most", what)]
        value = len(value)
    for name, holds, words, what in limits:
        limit = schema.get(name)
        if _is_number(limit) and not holds(value, limit):
            yield place, f"must {words} {limit} {what}".rstrip()


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _equal(value: Any, other: Any) -> bool:
    """Return whether two values of JSON are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_equal, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_equal(each, other[name]) for name, each in value.items())
    return bool(value == other)


def _listed(schema: Mapping[str, Any], name: str) -> list[Any]:
    found = schema.get(name)
    return found if isinstance(found, list) else []


def _within(place: str, name: str) -> str:
    return f"{place}.{name[:_MAX_SHOWN]}" if place else name[:_MAX_SHOWN]


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:_MAX_SHOWN]
