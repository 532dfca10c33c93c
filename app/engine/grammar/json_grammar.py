"""JSON schema → GBNF grammar, all of whose texts satisfy the schema. Pure.

Owns the conversion of supported keywords; any other is an error, since an answer that only seems to fit would be worse.
Five rules are narrower than the standard: properties come in the order of the schema; an object with `properties` has
no others unless `additionalProperties` allows them; an array with `prefixItems` has just these; `oneOf` equals `anyOf`,
and has only the ways that are supported. A `format` that is regular is kept to, for texts; any other is an annotation,
as there, and named by `format_notices`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

from app.common.schema_shape import malformed_part, pointer_step
from app.common.terminal import printable_line
from app.engine.grammar.gbnf import (
    PLAIN_VALUES,
    GbnfRules,
    SchemaError,
    UnsupportedSchemaError,
    json_literal,
    keys_other_than,
    repeated,
)
from app.engine.grammar.json_schema import (
    ANY_OF,
    KEYWORDS_OF,
    TYPES,
    Schema,
    bounds,
    constraints,
    format_notices,
    is_of_type,
    is_same,
    is_supported,
    length_bounds,
    listed,
    merge_objects,
    number_bounds,
    properties_of,
    required_names,
    tuple_items,
    types,
)
from app.engine.grammar.number_range import integers_between, numbers_between
from app.engine.grammar.pattern import limited_pattern, pattern_of

MAX_DEPTH = 32
_MAX_POINTER = 200  # characters that an error shows
MAX_VISITS = 4000  # references can double the work with each level
# Of all patterns together, each as often as it is met: with lengths beside it one is read twenty times, 0.4 s for 2,000
# characters.
MAX_PATTERN_CHARACTERS = 20_000


def schema_grammar(schema: object) -> str:
    """Return the grammar of `schema`, as parsed from JSON. Raises SchemaError for a malformed part, an unsupported
    keyword, a schema that allows nothing and past 32 levels of nesting, RequestError when the grammar would be too
    large."""
    if fault := malformed_part(schema):
        raise SchemaError(f"The schema is malformed: {printable_line(fault)}.", "Correct it.")
    rules = GbnfRules()
    return rules.text(schema_rule(schema, rules))


def schema_rule(schema: object, rules: GbnfRules, document: object = None) -> str:
    """Return a rule of `rules`, or GBNF in its place, for the values of `schema`, whose references are to `document`.
    Without a `document` that is the schema itself. Raises SchemaError as `schema_grammar` does."""
    return _Converter(schema if document is None else document, rules).visit(schema, _Place())


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """An answer that is JSON of `schema`, as parsed from JSON; `grammar` is the GBNF of that JSON alone, and `notices`
    say what of the schema that does not enforce. Raises SchemaError as `schema_grammar` does."""

    schema: Any
    grammar: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grammar", schema_grammar(self.schema))

    @property
    def notices(self) -> tuple[str, ...]:
        return format_notices(self.schema)

    def rule(self, rules: GbnfRules) -> str:
        return schema_rule(self.schema, rules)


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a visit in the schema: its depth, the references followed since the last character, and its JSON
    pointer."""

    depth: int = 0
    references: frozenset[str] = frozenset()
    pointer: str = "#"

    def inside(self, step: str) -> _Place:
        """Return the place of a value inside this one, with a character in between."""
        return _Place(self.depth + 1, pointer=f"{self.pointer}/{step}")

    def beside(self, step: str) -> _Place:
        """Return the place of a schema for the same value."""
        return _Place(self.depth + 1, self.references, f"{self.pointer}/{step}")

    def through(self, reference: str) -> _Place:
        if reference in self.references:
            raise SchemaError(f"$ref {reference[:80]!r} refers to itself.", "Let it describe a value.")
        return _Place(self.depth + 1, self.references | {reference}, reference[:_MAX_POINTER])


class _Converter:
    def __init__(self, document: object, rules: GbnfRules) -> None:
        self.rules = rules
        self._document = document
        self._of_reference: dict[str, str] = {}
        self._unsupported: dict[str, UnsupportedSchemaError] = {}  # by the reference: a union may meet it often
        self._n_visits = 0
        self._n_pattern_characters = 0
        self._builders: dict[str, Callable[[Schema, _Place], str]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": partial(self._number, integers_between),
            "number": partial(self._number, numbers_between),
        }

    def visit(self, schema: object, place: _Place) -> str:
        """Return the name of a rule, or GBNF in its place, for the values of `schema`. Raises SchemaError with the
        place of what is at fault."""
        try:
            return self._rule(schema, place)
        except SchemaError as error:
            error.set_place(place.pointer)
            raise

    def _rule(self, schema: object, place: _Place) -> str:
        checked = self._checked(schema, place)
        if "$ref" in checked and not constraints(checked) - {"$ref"}:
            return self._reference(checked["$ref"], place)
        if "allOf" in checked or "$ref" in checked:
            return self.visit(self._merged(checked, place), place)
        if any(keyword in checked for keyword in ANY_OF):
            return self._any_of(checked, place)
        if "const" in checked or "enum" in checked:
            return self._enum(checked)
        return self._union([self._of_type(kind, checked, place) for kind in types(checked)])

    def _checked(self, schema: object, place: _Place) -> Schema:
        self._n_visits += 1
        if self._n_visits > MAX_VISITS:
            raise SchemaError("The schema is too large.", "Use a smaller one.")
        if place.depth > MAX_DEPTH:
            raise SchemaError("The schema nests too deep.", f"Nest at most {MAX_DEPTH} levels.")
        if schema is True:
            return {}
        if not isinstance(schema, Mapping):
            shown = "false, which allows nothing" if schema is False else f"a {type(schema).__name__}"
            raise SchemaError(f"A schema is {shown}.", "Give an object.")
        for keyword in schema:
            if not is_supported(keyword, schema):
                cause = f"The schema's keyword {keyword[:40]!r} is not supported."
                raise UnsupportedSchemaError(cause, "Leave it out.")
        return schema

    # References and combinations

    def _reference(self, reference: object, place: _Place) -> str:
        target = self._target(reference)
        inner = place.through(str(reference))
        if fault := self._unsupported.get(str(reference)):
            raise fault
        if str(reference) not in self._of_reference:
            name = self._of_reference[str(reference)] = self.rules.reserve()
            try:
                self.rules.write(name, self.visit(target, inner))
            except UnsupportedSchemaError as fault:  # a union may do without; llama.cpp reads no rule without a body
                self.rules.write(name, '""')
                del self._of_reference[str(reference)]
                self._unsupported[str(reference)] = fault
                raise
        return self._of_reference[str(reference)]

    def _target(self, reference: object) -> object:
        """Return the target of a `$ref`: "#" and the steps from there (source: RFC 6901)."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise SchemaError(f"$ref {str(reference)[:80]!r} is not supported.", "Refer to a part of this schema: #/…")
        target = self._document
        for step in reference.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isascii() and key.isdigit() and int(key[:9]) < len(target):
                target = target[int(key[:9])]
            else:
                raise SchemaError(f"$ref {reference[:80]!r} does not exist.", "Define it in this schema.")
        return target

    def _merged(self, schema: Schema, place: _Place) -> Schema:
        """Return one schema for `allOf`, or for a `$ref` with other keywords beside it."""
        own = {keyword: value for keyword, value in schema.items() if keyword not in ("allOf", "$ref")}
        parts = [self._checked(part, place) for part in listed(schema, "allOf")] if "allOf" in schema else []
        if "$ref" in schema:
            parts.insert(0, {"$ref": schema["$ref"]})
        flat = [self._flattened(part, place) for part in parts]
        return merge_objects([*([own] if constraints(own) else []), *(part for part in flat if constraints(part))])

    def _flattened(self, schema: Schema, place: _Place) -> Schema:
        if constraints(schema) == {"$ref"}:
            inner = place.through(str(schema["$ref"]))
            return self._flattened(self._checked(self._target(schema["$ref"]), inner), inner)
        if "allOf" in schema or "$ref" in schema:
            return self._merged(schema, _Place(place.depth + 1, place.references, place.pointer))
        return schema

    def _any_of(self, schema: Schema, place: _Place) -> str:
        keyword = next(keyword for keyword in ANY_OF if keyword in schema)
        own = {name: value for name, value in schema.items() if name != keyword}
        branches: list[Any] = listed(schema, keyword)
        if constraints(own):
            others = listed(own, "allOf", may_be_empty=True)
            branches = [{**own, "allOf": [*others, branch]} for branch in branches]
        ways: list[str] = []
        faults: list[UnsupportedSchemaError] = []
        for index, branch in enumerate(branches):  # a union may do without those that are not supported
            try:
                ways.append(self.visit(branch, place.beside(f"{keyword}/{index}")))
            except UnsupportedSchemaError as fault:
                faults.append(fault)
        if not ways:
            raise faults[0]
        return self._union(ways)

    def _enum(self, schema: Schema) -> str:
        beside = constraints(schema) - {"enum", "const", "type"}
        if beside:
            cause = f"The schema's keyword {min(beside)!r} beside an enum is not supported."
            raise SchemaError(cause, "Leave it out.")
        values = listed(schema, "enum") if "enum" in schema else [schema["const"]]
        if "const" in schema:
            values = [value for value in values if is_same(value, schema["const"])]
        kinds = types(schema) if "type" in schema else TYPES
        values = [value for value in values if any(is_of_type(value, kind) for kind in kinds)]
        return self._union([json_literal(value) for value in values])

    def _union(self, ways: Sequence[str]) -> str:
        if not ways:
            raise SchemaError("A part of the schema allows no value.", "Let its keywords agree.")
        distinct = list(dict.fromkeys(ways))
        return distinct[0] if len(distinct) == 1 else self.rules.add(" | ".join(distinct))

    # Values by type

    def _of_type(self, kind: str, schema: Schema, place: _Place) -> str:
        keywords = KEYWORDS_OF.get("number" if kind == "integer" else kind, frozenset())
        has_format = kind == "string" and pattern_of(schema) is not None
        if kind in PLAIN_VALUES and not (keywords & schema.keys() or has_format):
            return kind
        return self.rules.add(self._builders[kind](schema, place))

    def _number(self, between: Callable[..., str], schema: Schema, _place: _Place) -> str:
        return self._union([way for way in [between(*number_bounds(schema))] if way])

    def _string(self, schema: Schema, _place: _Place) -> str:
        shortest, longest = length_bounds(schema)
        if (pattern := pattern_of(schema)) is not None:
            self._n_pattern_characters += len(str(pattern))
            if self._n_pattern_characters > MAX_PATTERN_CHARACTERS:
                cause = f"The schema's patterns have more than {MAX_PATTERN_CHARACTERS:,} characters together."
                raise SchemaError(cause, "Use fewer or shorter ones.")
            return f'"\\"" {limited_pattern(pattern, shortest, longest)} "\\""'
        return f'"\\"" {repeated("char", shortest, longest, self.rules)} "\\""'

    def _array(self, schema: Schema, place: _Place) -> str:
        shortest, longest = bounds(schema, "minItems", "maxItems")
        if longest == 0:
            return '"[" ws "]"'
        if first := tuple_items(schema):  # exactly the items that are described one by one
            if shortest > len(first) or (longest is not None and longest < len(first)):
                raise SchemaError("The schema's minItems or maxItems differs from its prefixItems.", "Let them agree.")
            keyword = "items" if isinstance(schema.get("items"), list) else "prefixItems"
            visited = [self.visit(item, place.inside(f"{keyword}/{index}")) for index, item in enumerate(first)]
            described = ' "," ws '.join(visited)
            return f'"[" ws {described} ws "]"'
        item = self.visit(schema.get("items", True), place.inside("items"))
        more = self.rules.add(f'"," ws {item}')
        least, most = max(shortest - 1, 0), "" if longest is None else longest - 1
        items = f"{item} {more}{{{least},{most}}} ws" if least or longest is not None else f"{item} {more}* ws"
        return f'"[" ws {items} "]"' if shortest else f'"[" ws ({items})? "]"'

    def _object(self, schema: Schema, place: _Place) -> str:
        properties = properties_of(schema)
        required = required_names(schema)
        undescribed = schema.get("additionalProperties", True)
        of_others = place.inside("additionalProperties")
        names = {**properties, **{name: undescribed for name in required if name not in properties}}
        pairs = [
            (
                self._pair(
                    json_literal(name),
                    value,
                    place.inside(f"properties/{pointer_step(name)}") if name in properties else of_others,
                ),
                name in required,
            )
            for name, value in names.items()
        ]
        if undescribed is False or ("properties" in schema and "additionalProperties" not in schema):
            return self._braced(pairs, None)
        key = keys_other_than(names, self.rules) if names else "string"
        return self._braced(pairs, self._pair(key, undescribed, of_others))

    def _pair(self, key: str, value: object, place: _Place) -> str:
        return self.rules.add(f'{key} ":" ws {self.visit(value, place)}')

    def _braced(self, pairs: Sequence[tuple[str, bool]], extra: str | None) -> str:
        """Return an object of `pairs` in order, the optional ones present or not, then any number of `extra`. Built
        from the last pair to the first: what may follow it, and the ways to begin with it or with a later one."""
        more = None if extra is None else self.rules.add(f'"," ws {extra}')
        tail = "" if more is None else f" {more}*"
        ways = [] if extra is None else [f"{extra}{tail}"]
        can_be_empty = True
        for pair, is_required in reversed(pairs):
            ways = [f"{pair}{tail}", *(() if is_required else ways)]
            can_be_empty = can_be_empty and not is_required
            following = self.rules.add(f'"," ws {pair}{tail}')
            skipped = f"{following} |{tail}" if tail else f"{following}?"
            tail = f" {following}" if is_required else f" {self.rules.add(skipped)}"
        if not ways:
            return '"{" ws "}"'
        inside = f"({' | '.join(ways)}) ws"
        return f'"{{" ws ({inside})? "}}"' if can_be_empty else f'"{{" ws {inside} "}}"'


ANY_OBJECT = JsonFormat({"type": "object"})
