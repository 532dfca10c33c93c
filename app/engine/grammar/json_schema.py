"""The supported keywords of JSON schemas, each by itself. Pure.

Owns the list of keywords, the checks of their values, and the union of several object schemas. Independent of
references and grammars.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

from app.engine.grammar.gbnf import MAX_REPETITIONS, SchemaError
from app.engine.grammar.number_range import Bound
from app.engine.grammar.pattern import FORMATS

Schema: TypeAlias = Mapping[str, Any]

_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "example", "format", "deprecated", "readOnly", "writeOnly"),
        "discriminator",  # OpenAPI's, as pydantic writes it beside oneOf: which property tells the ways apart
        "nullable",  # OpenAPI's before 3.1, which no validator knows: what may be null there is not null here
        *("$schema", "$id", "$comment", "$defs", "definitions", "$anchor", "contentEncoding", "contentMediaType"),
    )
)
_LARGEST_BOUND = 10**300
MAX_LENGTH = 100_000  # characters of a string that are counted
_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
KEYWORDS_OF = {
    "object": frozenset(("properties", "required", "additionalProperties", "propertyNames")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems", "uniqueItems")),
    "string": frozenset(("minLength", "maxLength", "pattern")),
    "number": _BOUNDS | {"multipleOf"},
}
ANY_OF = ("anyOf", "oneOf")
# Keywords that are supported with values that limit nothing, as zod and others write them.
_IDLE: Mapping[str, Sequence[Any]] = {
    "multipleOf": (1,),
    "propertyNames": ({"type": "string"}, {}, True),
    "uniqueItems": (False,),
}
_APPLICATORS = frozenset((*ANY_OF, "allOf", "$ref", "enum", "const", "type"))
SUPPORTED = _ANNOTATIONS | _APPLICATORS | frozenset().union(*KEYWORDS_OF.values())
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")


def types(schema: Schema) -> Sequence[str]:
    """Return the types that `schema` allows, by its `type` or else by its keywords."""
    declared = schema.get("type")
    if declared is None:
        implied = [kind for kind, keywords in KEYWORDS_OF.items() if keywords & schema.keys()]
        return implied or ("value",)
    kinds = [declared] if isinstance(declared, str) else declared
    if not isinstance(kinds, list) or not kinds or any(kind not in TYPES for kind in kinds):
        raise SchemaError(f"The schema's type is {str(declared)[:40]!r}.", f"Known: {', '.join(TYPES)}.")
    return kinds


def is_supported(keyword: str, schema: Schema) -> bool:
    """Return whether `keyword` of `schema` is known, and has a value that can be kept to."""
    if keyword == "multipleOf" and schema.get("type") != "integer":
        return False
    is_known = keyword in SUPPORTED or keyword.startswith("x-")
    return is_known and (keyword not in _IDLE or any(is_same(schema[keyword], value) for value in _IDLE[keyword]))


def constraints(schema: Schema) -> set[str]:
    return {keyword for keyword in schema if keyword not in _ANNOTATIONS and not keyword.startswith("x-")}


def format_notices(schema: object) -> tuple[str, ...]:
    """Return a sentence for each `format` in `schema` that its texts are not held to."""
    found: dict[str, None] = {}
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            name, kinds = part.get("format"), part.get("type", "string")
            is_of_texts = (
                "string" in (kinds if isinstance(kinds, list) else [kinds]) and not {"enum", "const"} & part.keys()
            )
            if isinstance(name, str) and is_of_texts and ("pattern" in part or name not in FORMATS):
                found[name] = None
            left += part.values()
        elif isinstance(part, list):
            left += part
    return tuple(f"The schema's format {name[:40]!r} is not enforced." for name in found)


def tuple_items(schema: Schema) -> list[Any]:
    """Return the schemas of the first items: `prefixItems`, or `items` as a list, as before the draft of 2020."""
    keyword = "items" if isinstance(schema.get("items"), list) else "prefixItems"
    return listed(schema, keyword, may_be_empty=True)


def listed(schema: Schema, keyword: str, *, may_be_empty: bool = False) -> list[Any]:
    values = schema.get(keyword, [])
    if not isinstance(values, list) or not (values or may_be_empty):
        raise SchemaError(f"The schema's {keyword} is not a list, or is empty.", "Use a list with at least one item.")
    return values


def bounds(schema: Schema, lowest: str, highest: str, most: int = MAX_REPETITIONS) -> tuple[int, int | None]:
    """Return the values of two keywords, each a count of at most `most`."""
    shortest, longest = schema.get(lowest, 0), schema.get(highest)
    for keyword, value in ((lowest, shortest), (highest, 0 if longest is None else longest)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise SchemaError(f"The schema's {keyword} is {str(value)[:40]}.", f"Use 0 to {most}.")
    if longest is not None and longest < shortest:
        raise SchemaError(f"The schema's {highest} is below {lowest}.", "Let them agree.")
    return shortest, longest


def length_bounds(schema: Schema) -> tuple[int, int | None]:
    """Return the least and the most characters of a string; what no answer can reach is no limit."""
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength")
    if isinstance(longest, int) and not isinstance(longest, bool) and longest > MAX_LENGTH:
        longest = None
    checked = {"minLength": shortest} if longest is None else {"minLength": shortest, "maxLength": longest}
    return bounds(checked, "minLength", "maxLength", MAX_LENGTH)


def number_bounds(schema: Schema) -> tuple[Bound | None, Bound | None]:
    """Return the ends of a range, None for an open one. A true `exclusiveMinimum` excludes the `minimum`, as in draft 4
    and OpenAPI 3.0."""
    low = max(_ends(schema, "minimum", "exclusiveMinimum"), key=lambda end: (end.value, end.is_exclusive), default=None)
    high = min(
        _ends(schema, "maximum", "exclusiveMaximum"), key=lambda end: (end.value, not end.is_exclusive), default=None
    )
    return low, high


def _ends(schema: Schema, inclusive: str, exclusive: str) -> Iterator[Bound]:
    is_exclusive = schema.get(exclusive) is True
    if inclusive in schema:
        yield Bound(_number(schema, inclusive), is_exclusive)
    if not isinstance(schema.get(exclusive, False), bool):
        yield Bound(_number(schema, exclusive), is_exclusive=True)


def _number(schema: Schema, keyword: str) -> Decimal:
    value = schema[keyword]
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LARGEST_BOUND:
        raise SchemaError(f"The schema's {keyword} is {str(value)[:40]}.", "Use a number of at most 300 digits.")
    return Decimal(repr(value))


def is_of_type(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return kind in ("integer", "number")
    names = {dict: "object", list: "array", str: "string", float: "number", type(None): "null"}
    return names.get(type(value)) == kind


def is_same(value: object, other: object) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def properties_of(schema: Schema) -> Mapping[str, Any]:
    """Return the schemas of an object's properties by their names."""
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise SchemaError("The schema's properties are not an object.", "Give a schema for each name.")
    return properties


def required_names(schema: Schema) -> dict[str, None]:
    names = listed(schema, "required", may_be_empty=True)
    if not all(isinstance(name, str) for name in names):
        raise SchemaError("The schema's required contains more than names.", "Use a list of strings.")
    return dict.fromkeys(names)


def merge_objects(parts: Sequence[Schema]) -> Schema:
    """Return the schema of the objects that satisfy all `parts`. One part alone, or equal ones, may be of any type.
    Raises SchemaError for several if one is not of objects, or forbids properties of another."""
    parts = [part for index, part in enumerate(parts) if part not in parts[:index]]
    if len(parts) < 2:
        return parts[0] if parts else {}
    for part in parts:
        foreign = constraints(part) - KEYWORDS_OF["object"] - {"type"}
        if foreign or "object" not in (types(part) if "type" in part else ["object"]):
            keyword = min(foreign, default="type")
            cause = f"The schema's keyword {keyword!r} beside allOf, anyOf or $ref is not supported."
            raise SchemaError(cause, "Combine objects only.")
    described: dict[str, list[Any]] = {}
    for part in parts:
        for name, schema in properties_of(part).items():
            described.setdefault(name, []).append(schema)
    merged: dict[str, Any] = {
        "type": "object",
        "required": list(dict.fromkeys(name for part in parts for name in required_names(part))),
    }
    if described:
        merged["properties"] = {
            name: schemas[0] if len(schemas) == 1 else {"allOf": schemas} for name, schemas in described.items()
        }
    if any(_is_closed(part, described) for part in parts):
        merged["additionalProperties"] = False
    return merged


def _is_closed(part: Schema, described: Mapping[str, object]) -> bool:
    """Return whether `part` forbids further properties. Raises SchemaError if that affects one of `described`."""
    others = part.get("additionalProperties", True)
    if others is True:
        return False
    if others is not False or described.keys() - properties_of(part).keys():
        cause = "The schema's additionalProperties affects properties of another part of allOf, anyOf or $ref."
        raise SchemaError(cause, "Leave it out there.")
    return True
