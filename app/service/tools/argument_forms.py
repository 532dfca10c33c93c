"""The forms in which models write the arguments of a call, and arguments that are a JSON object.

Owns what a form has to offer: a reader, grammar rules and the text of given arguments. The other forms are in
`tagged_arguments` and `literal_arguments`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.engine.grammar.gbnf import GbnfRules, literal
from app.engine.grammar.json_grammar import schema_rule
from app.engine.grammar.json_schema import constraints, required_names
from app.service.tools.call_reader import ArgumentsReader, JsonArguments
from quantizer.errors import RequestError

__all__ = ["ArgumentForm", "JsonForm", "choices", "plain_properties"]


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


def choices(schema: Mapping[str, Any]) -> str:
    """Return a rule for the texts of an enum, without quotes. Raises RequestError for other limits of a string."""
    values = schema.get("enum", [schema.get("const")])
    texts = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    if constraints(schema) - {"type", "enum", "const"} or not texts:
        cause = "A string parameter of this model's tool calls supports only an enum."
        raise RequestError(cause, "Describe it as a string or an enum.")
    return "(" + " | ".join(literal(text) for text in texts) + ")"
