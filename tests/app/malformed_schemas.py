"""Strategies for schemas whose every part may be wrong: any JSON in the place of any keyword, and expressions that no
parser expects."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

KEYWORDS = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "propertyNames",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "enum",
    "const",
    "$defs",
    "definitions",
    "title",
    "nullable",
    "discriminator",
    "x-own",
    "not",
    "$id",
]
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from((1e30, -1e30, 1e-30, 10**16, -(10**16), 2**63, 10**299, 10**301, 1e300, 5e-324, 0.1, -0.0)),
)
_NAMES = st.one_of(st.sampled_from(("a", "b", "", "$ref", "type", '"', "é", "\0", "\U0001f600")), st.text(max_size=6))
_PARTS = (
    "^", "$", ".", "*", "+", "?", "|", "(", ")", "(?:", "(?<a>", "(?=", "[", "]", "[^", "-", "{", "}", "{1,3}",
    "{0}", "{-1}", "{5,2}", "\\", "\\d", "\\W", "\\b", "\\B", "\\1", "\\k<a>", "\\x", "\\x-1", "\\x4", "\\u",
    "\\u{", "\\u{-1}", "\\u{110000}", "\\uD800", "\\u 12", "\\u{_1}", "\\x+1", "\\c", "\\cA", "\\p{L}", "\\0",
    "\\n", "a", "é", " ", "\x00", "٣", "{٣}", "a-z", "z-a", "\\d-a", "/", '"', "\\-",
)  # fmt: skip
EXPRESSIONS = st.one_of(st.lists(st.sampled_from(_PARTS), max_size=12).map("".join), st.text(max_size=20))

JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _NAMES, EXPRESSIONS, st.sampled_from(TYPES)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_NAMES, inner, max_size=3)),
    max_leaves=6,
)
_REFERENCES = st.sampled_from(
    ["#", "#/", "#/$defs/a", "#/properties/a", "#/allOf/0", "#/enum/0", "#/allOf/²", "#/%zz", "http://a", "#/required"]
)
_MEANT: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), max_size=3),
    "format": st.sampled_from(("date", "uri")),
    "required": st.lists(_NAMES, max_size=3),
    "pattern": EXPRESSIONS,
    "$ref": _REFERENCES,
    "enum": st.lists(JSON, max_size=3),
    **dict.fromkeys([name for name in KEYWORDS if name.startswith(("m", "ex"))], _NUMBERS),
}
_NAMED = frozenset(("properties", "$defs", "definitions"))
_LISTED = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_N_LEVELS, _ODDS = 3, 8  # of a part that is any JSON at all, one in so many


@st.composite
def schemas(draw: st.DrawFn, n_levels: int = _N_LEVELS) -> Any:
    """Return a schema of a few keywords with values of the right shape, or, now and then, any JSON in any place."""
    if not n_levels or not draw(st.integers(0, _ODDS)):
        return draw(JSON)
    schema: dict[str, Any] = {}
    for keyword in draw(st.lists(st.sampled_from(KEYWORDS), max_size=4)):
        schema[keyword] = draw(_value_of(keyword, n_levels - 1))
    return schema


def _value_of(keyword: str, n_levels: int) -> st.SearchStrategy[Any]:
    inner = schemas(n_levels)
    if keyword in _NAMED:
        meant: st.SearchStrategy[Any] = st.dictionaries(_NAMES, inner, max_size=2)
    elif keyword in _LISTED:
        meant = st.lists(inner, max_size=2)
    elif keyword == "items":
        meant = inner | st.lists(inner, max_size=2)
    else:
        meant = _MEANT.get(keyword, inner)
    return st.integers(0, _ODDS).flatmap(lambda number: meant if number else JSON)
