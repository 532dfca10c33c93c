"""Arguments that a tool's schema takes, as an example for a model: the schema's own where it has any. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, TypeAlias

_MAX_ARGUMENTS, _MAX_CHARACTERS, _MAX_ITEMS = 8, 100, 8
_OF_OBJECTS = ("properties", "required")
_BY_TYPE: Mapping[str, Any] = {"integer": 1, "number": 1, "boolean": True, "array": ["..."], "object": {}}

Schema: TypeAlias = Any  # an object, or true and false; untrusted


def example_arguments(schema: Schema) -> dict[str, Any]:
    """Return a value for each argument that `schema` requires, up to 8: the first of its examples or choices, else one
    of its type."""
    properties, required = (schema.get(name) if isinstance(schema, Mapping) else None for name in _OF_OBJECTS)
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    described = properties if isinstance(properties, Mapping) else {}
    return {name[:_MAX_CHARACTERS]: _value(described.get(name)) for name in names[:_MAX_ARGUMENTS]}


def _value(schema: Schema) -> Any:
    if not isinstance(schema, Mapping):
        return "..."
    for name in ("examples", "enum"):
        if isinstance(choices := schema.get(name), list) and choices and (chosen := _bounded(choices[0])) is not None:
            return chosen
    kind = schema.get("type")
    return _BY_TYPE.get(kind, "...") if isinstance(kind, str) else "..."


def _bounded(value: Any) -> Any:
    """Return a short text, a number, or a list of short texts; None for anything else."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_CHARACTERS else None
    if isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, list) and len(value) <= _MAX_ITEMS and all(isinstance(each, str) for each in value):
        return value if sum(map(len, value)) <= _MAX_CHARACTERS else None
    return None
