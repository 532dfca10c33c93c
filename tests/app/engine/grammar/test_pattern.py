from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.engine.grammar.gbnf import check_grammar
from app.engine.grammar.json_grammar import schema_grammar
from app.engine.grammar.pattern import parse_pattern
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
        schema_grammar({"type": "string", "pattern": "^[a-z]+$", "maxLength": 8})
