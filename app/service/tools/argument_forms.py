"""The forms in which models write the arguments of a call, and arguments that are a JSON object.

Owns what a form has to offer: a reader, grammar rules and the text of given arguments. The other forms are in
`tagged_arguments` and `literal_arguments`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.engine.grammar.gbnf import GbnfRules
from app.engine.grammar.json_grammar import schema_rule
from app.engine.grammar.json_schema import constraints, required_names
from app.protocol.errors import RequestError
from app.service.tools.call_reader import ArgumentsReader, JsonArguments


class ArgumentForm(Protocol):
    """How a family writes arguments. `schema` is the JSON schema of a tool's arguments, an object's."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Texts that may be special tokens of these models."""
        ...

    def reader(self, schema: Mapping[str, Any]) -> ArgumentsReader:
        """Return a reader of the arguments of one call."""
        ...

    def rule(self, schema: Mapping[str, Any], rules: GbnfRules) -> str:
        """Return a rule of `rules` for the arguments. Raises RequestError for a schema that is not supported."""
        ...

    def written(self, arguments: Mapping[str, Any]) -> str:
        """Return `arguments` as models write them."""
        ...


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


ANY_KEY = "[A-Za-z_] [A-Za-z0-9_]{0,40}"  # of an argument that no schema describes


def is_undescribed(schema: Mapping[str, Any]) -> bool:
    """Return whether an object may have any properties, and the schema says nothing of them."""
    return not constraints(schema) - {"type"} or (
        constraints(schema) <= {"type", "additionalProperties"} and schema["additionalProperties"] is True
    )


def plain_properties(schema: Mapping[str, Any]) -> dict[str, tuple[Any, bool]]:
    """Return the properties of an object by name, and whether each is required.

    Raises RequestError where the schema says more of the object, which only JSON could follow.
    """
    foreign = constraints(schema) - {"type", "properties", "required", "additionalProperties"}
    properties = schema.get("properties", {})
    required = required_names(schema)
    if foreign or not isinstance(properties, Mapping) or required.keys() - properties.keys():
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
