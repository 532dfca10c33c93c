from __future__ import annotations

import datetime
import ipaddress
import json
import random
import re
import uuid
from collections.abc import Callable, Mapping

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.engine.grammar.gbnf import check_grammar
from app.engine.grammar.json_grammar import schema_grammar
from app.engine.grammar.json_schema import format_notices
from app.engine.grammar.pattern import FORMATS, limited_pattern, parse_pattern
from app.protocol.errors import RequestError
from tests.app.gbnf_texts import Grammar

ZOD_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
ZOD_UUID = (
    r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
    r"|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$"
)
EXPRESSIONS = [
    r"^[A-Z]{2}\d{3,5}$", r"^\w+@\w+\.(com|org)$", r"a|^b+$|c$", r"^(?:x|yz)*$", r"^[^\s,]{1,4}$", r"^\S+ \S+$",
    r"^.{0,3}$", r'^["\\/]+$', r"^\x41\u0042\u{43}?$", r"^(?<year>\d{4})-(?<month>0[1-9]|1[0-2])$", r"b", r"", r"^$",
    r"^[-+]?[0-9]*\.?[0-9]+$", r"^[a-z_$][\w$]*?$", r"^\t\n$", r"^[\d\-.]+$", r"^[^\W\d]+$", r"^éä?[à-ü]+$",
    r"^(([01]?\d|2[0-3]):[0-5]\d)$", ZOD_UUID, ZOD_EMAIL,
]  # fmt: skip


def python_form(expression: str) -> str:
    """Return the expression as Python writes it."""
    return expression.replace(r"\u{43}", "C").replace("(?<year>", "(").replace("(?<month>", "(")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_texts_of_the_grammar_match_the_expression(expression: str) -> None:
    text = schema_grammar({"type": "string", "pattern": expression})
    check_grammar(text)
    grammar, chance = Grammar(text), random.Random(expression)
    pattern, matcher = parse_pattern(expression), re.compile(python_form(expression))
    for _ in range(60):
        value = json.loads(grammar.sample(chance))
        assert matcher.search(value), value
        assert pattern.shortest <= len(value)
        assert pattern.longest is None or len(value) <= pattern.longest


ATOMS = ["a", "b", r"\d", "[a-c]", "[^a]", ".", r"\."]
SIGNS = ["", "*", "+", "?", "{2}", "{1,3}"]
FORMS = ["{0}{1}", "^{0}|{1}$", "^({0}|{1})+$", "^{0}{1}$", "^{0}({1}{1})?"]


@given(st.sampled_from(ATOMS), st.sampled_from(SIGNS), st.sampled_from(FORMS), st.integers(0, 99))
def test_composed_expressions_match_too(atom: str, sign: str, form: str, seed: int) -> None:
    expression = form.replace("{0}", atom + sign).replace("{1}", "b")
    assume(sign not in ("*", "?") or ")+" not in form)  # a repetition of nothing
    grammar, matcher = Grammar(schema_grammar({"pattern": expression})), re.compile(expression)
    value = json.loads(grammar.sample(random.Random(seed)))
    assert matcher.search(value), (expression, value)


@pytest.mark.parametrize(
    ("expression", "word"),
    [
        (r"^(?=a)b$", "lookaround"),
        (r"(?<!a)b", "lookaround"),
        (r"(a)\1", r"\\1"),
        (r"\bword", r"\\b"),
        (r"\p{L}", r"\\p"),
        ("a{2000}", "500"),
        (".{0,400}" * 9, "too many"),
        ("(a{2,90}){2,90}", "500"),
        ("(a?){9}", "may be empty"),
        ("(a*|b)+", "may be empty"),
        ("a{3,1}", "order"),
        ("a{x}", "number"),
        ("(a", "unmatched"),
        ("a)", "unmatched"),
        ("[a", "unfinished"),
        ("*a", "misplaced"),
        ("a^b", "misplaced"),
        ("a$b", "middle"),
        ("(a$)", "anchor"),
        ("[z-a]", "range"),
        ("\\", "unfinished"),
        ("(" * 30 + ")" * 30, "too deep"),
        ("x" * 3000, "shorter"),
        ("^[\\x00]$", "no answer has"),
    ],
)
def test_what_no_grammar_can_have_is_named(expression: str, word: str) -> None:
    with pytest.raises(RequestError) as raised:
        schema_grammar({"type": "string", "pattern": expression})
    assert word.replace("\\\\", "\\") in str(raised.value)


def test_a_length_beside_a_pattern_has_to_follow_from_it() -> None:
    schema_grammar({"type": "string", "pattern": "^[a-z]{2,4}$", "minLength": 1, "maxLength": 8})
    with pytest.raises(RequestError, match="maxLength"):
        schema_grammar({"type": "string", "pattern": "^[a-z]{9}$", "maxLength": 8})


@pytest.mark.parametrize(
    ("expression", "least", "most"),
    [
        ("^[a-z]+$", 0, 8), ("[a-z]", 0, 8), ("^[a-z]*$", 3, None), ("^[a-z]*$", 3, 3), ("^a|b+$", 0, 12), ("", 2, 5),
        ("^[a-z]+(-[a-z]+)*$", 2, 20), ("^[^\\n]{1,400}$", 0, 64), ("^#[0-9a-f]{3,8}$", 7, 7), ("^.*$", 0, 100_000),
    ],
)  # fmt: skip
def test_lengths_beside_a_pattern_limit_what_it_repeats(expression: str, least: int, most: int | None) -> None:
    limits = {"minLength": least} | ({} if most is None else {"maxLength": most})
    text = schema_grammar({"type": "string", "pattern": expression, **limits})
    check_grammar(text)
    grammar, chance = Grammar(text), random.Random(expression)
    for _ in range(60):
        value = json.loads(grammar.sample(chance))
        assert re.search(expression, value), value
        assert least <= len(value) <= (most or len(value))


@pytest.mark.parametrize(
    ("written", "limits", "is_allowed"),
    [("a" * 8, (0, 8), True), ("a" * 9, (0, 8), False), ("aaa", (3, 5), True), ("aa", (3, 5), False)],
)
def test_a_pattern_of_one_repetition_is_limited_exactly(
    written: str, limits: tuple[int, int], is_allowed: bool
) -> None:
    pattern = limited_pattern("^[a-z]+$", *limits)
    least, most = map(int, pattern.rpartition("{")[2].rstrip("}").split(","))
    assert (least <= len(written) <= most) == is_allowed


def _is_date(text: str) -> bool:
    datetime.date.fromisoformat(text)
    return True


def _is_time(text: str) -> bool:
    datetime.datetime.strptime(text.replace("Z", "+00:00"), "%H:%M:%S.%f%z" if "." in text else "%H:%M:%S%z")
    return True


RIGHT: Mapping[str, tuple[Callable[[str], object], tuple[str, ...], tuple[str, ...]]] = {
    "date": (
        _is_date,
        ("2024-02-29", "2000-02-29", "2026-12-31"),
        ("2023-02-29", "1900-02-29", "2026-04-31", "2026-1-1"),
    ),
    "time": (_is_time, ("23:59:59Z", "00:00:00.5+02:00"), ("24:00:00Z", "12:00", "12:00:00")),
    "date-time": (
        lambda text: _is_date(text[:10]) and _is_time(text[11:]),
        ("2026-11-28T22:30:00Z",),
        ("2026-11-28", "2026-11-28 22:30:00Z"),
    ),
    "duration": (len, ("P1Y2M3D", "PT5M", "P3W", "P1DT12H"), ("P", "1D", "PT", "P1H")),
    "uuid": (uuid.UUID, ("123e4567-e89b-12d3-a456-426614174000",), ("123e4567e89b12d3a456426614174000", "x")),
    "ipv4": (ipaddress.IPv4Address, ("192.168.0.1", "255.255.255.255"), ("256.1.1.1", "1.2.3", "01.2.3.4")),
    "email": (lambda text: text.index("@"), ("ann.lee@example.com",), ("ann", "a..b@example.com")),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_format_that_is_regular_is_kept_to(name: str) -> None:
    is_right, right, wrong = RIGHT[name]
    expression = re.compile(FORMATS[name], re.ASCII)
    assert [text for text in right if not expression.search(text)] == []
    assert [text for text in wrong if expression.search(text)] == []
    for schema in ({"type": "string", "format": name}, {"type": ["string", "null"], "format": name, "maxLength": 60}):
        text, chance = schema_grammar(schema), random.Random(name)
        check_grammar(text)
        for _ in range(60):
            value = json.loads(Grammar(text).sample(chance))
            assert value is None or value[:4] == "0000" or is_right(value)


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"type": "string", "format": "date"}, []),
        ({"type": "string", "format": "uri"}, ["uri"]),
        ({"type": "string", "format": "date", "pattern": "^2"}, ["date"]),
        ({"type": "string", "format": "uri", "enum": ["a:b"]}, []),
        ({"type": "integer", "format": "int32"}, []),
        ({"properties": {"a": {"items": {"type": ["string", "null"], "format": "ipv6"}}, "format": {}}}, ["ipv6"]),
        (True, []),
    ],
)
def test_a_format_that_is_not_kept_to_is_said(schema: object, names: list[str]) -> None:
    assert format_notices(schema) == tuple(f"The schema's format {name!r} is not enforced." for name in names)
