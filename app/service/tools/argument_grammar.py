"""The grammar of a call behind its head: the arguments of one tool, and what closes the call. Pure.

Owns how far arguments follow the schema of their tool: wholly; or but for the properties that no grammar describes; or
no more than the types of its properties. Whatever is less than the whole has a cause, which is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from app.engine.grammar.gbnf import GbnfRules, check_grammar, literal, with_plain_values
from app.protocol.errors import RequestError
from app.service.tools.argument_forms import ArgumentForm
from app.service.tools.tool import Tool

_MAX_REMEMBERED = 1024  # an agent sends the same tools with each request
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a family writes a call behind its head: the `form` of arguments, then the text `after`."""

    form: ArgumentForm
    after: str

    def rule(self, schema: Mapping[str, Any], rules: GbnfRules) -> str:
        """Return a text in the place of a rule of `rules`. Raises RequestError for a schema that is not supported."""
        if schema.get("type", "object") != "object":
            raise RequestError("The parameters are not described as an object.", "Describe an object.")
        after = f" {literal(self.after)}" if self.after else ""
        return f'" "? {self.form.rule(schema, rules)}{after}'


@dataclass(frozen=True, slots=True)
class ArgumentGrammar:
    """The GBNF `text` of what follows a head, without the rules of plain JSON values.

    `schema` is the JSON text of what it follows; `cause` says why that is not the whole schema.
    """

    text: str
    schema: str
    cause: str = ""


def argument_grammar(end: CallEnd, tool: Tool) -> ArgumentGrammar:
    """Return the grammar of a call of `tool`, as whole as can be."""
    try:
        return _argument_grammar(end, json.dumps(tool.parameters, ensure_ascii=False))
    except RecursionError:
        return _argument_grammar(end, '{"type": "a schema that nests too deep"}')


@lru_cache(maxsize=_MAX_REMEMBERED)
def grouped_grammar(end: CallEnd, grammars: tuple[tuple[str, ArgumentGrammar], ...]) -> ArgumentGrammar:
    """Return one grammar for tools whose names begin alike, of any arguments if it would be too large."""
    cause = ""
    wanted: list[Mapping[str, Any]] = [json.loads(grammar.schema) for _, grammar in grammars]
    undescribed: list[Mapping[str, Any]] = [{} for _ in grammars]
    for schemas in (wanted, undescribed):
        rules = GbnfRules()
        try:
            ways = [
                f"{literal(rest) if rest else ''} {end.rule(schema, rules)}".strip()
                for (rest, _), schema in zip(grammars, schemas, strict=True)
            ]
            return ArgumentGrammar(rules.own_text(" | ".join(ways)), "", cause)
        except RequestError as error:
            cause = cause or error.cause
    raise AssertionError("no more tools than there may be have rules of one way each")


@lru_cache(maxsize=_MAX_REMEMBERED)
def _argument_grammar(end: CallEnd, schema_text: str) -> ArgumentGrammar:
    schema, cause = json.loads(schema_text), ""
    for attempt in _attempts(end.form, schema):
        rules = GbnfRules()
        try:
            text = rules.own_text(end.rule(attempt, rules))
            check_grammar(with_plain_values(text))
        except RequestError as error:
            cause = cause or error.cause
        else:
            return ArgumentGrammar(text, json.dumps(attempt, ensure_ascii=False), cause)
    raise AssertionError("any form describes an object without properties")


def _attempts(form: ArgumentForm, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield `schema`, and schemas that ask for less and less."""
    yield schema
    described = schema.get("properties")
    properties = described if isinstance(described, Mapping) else {}
    required = schema.get("required")
    names = [name for name in required if name in properties] if isinstance(required, list) else []
    parts = {key: schema[key] for key in _DEFINITIONS if isinstance(schema.get(key), Mapping)}
    base = {"type": "object", "required": names, **parts}
    loosened = {name: _type_of(value) for name, value in properties.items()}
    kept = {
        name: value if _is_supported(form, {"properties": {name: value}, **parts}) else loosened[name]
        for name, value in properties.items()
    }
    if properties:
        yield {**base, "properties": kept}
        yield {"type": "object", "required": names, "properties": loosened}
    yield {}


def _is_supported(form: ArgumentForm, schema: Mapping[str, Any]) -> bool:
    rules = GbnfRules()
    try:
        check_grammar(rules.text(form.rule(schema, rules)))
    except RequestError:
        return False
    return True


def _type_of(schema: Any) -> dict[str, Any]:
    """Return no more than the type of a property: a text, which forms write in their own way, or anything."""
    is_text = isinstance(schema, Mapping) and schema.get("type") == "string"
    return {"type": "string"} if is_text else {}
