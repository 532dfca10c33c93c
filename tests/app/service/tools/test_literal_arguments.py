from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.service.tools.literal_arguments import FUNCTION_GEMMA, GEMMA, PYTHON, LiteralForm
from app.service.tools.tagged_arguments import ElementForm, ParameterTags

KEYS = st.from_regex(r"\A[a-z_][a-z0-9_]{0,6}\Z")
TEXTS = st.text("ab \n\t'\"\\,=:()[]{}é😀0", max_size=12)
PLAIN = st.one_of(TEXTS, st.booleans(), st.none(), st.integers(-(10**9), 10**9), st.floats(-1e6, 1e6, width=32))
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


def read(form: Any, text: str, schema: dict[str, Any] | None = None, size: int = 1000) -> tuple[Any, str | None]:
    """Return the arguments in `text`, coming in pieces of `size`, and the text behind them; text if they are cut."""
    reader, made, n_read = form.reader(schema or {}), "", 0
    while n_read < len(text) and reader.rest is None:
        made += reader.push(text[n_read : n_read + size])
        n_read += size
    if reader.rest is None:
        made += reader.finish()
    rest = None if reader.rest is None else reader.rest + text[n_read:]
    try:
        return json.loads(made), rest
    except ValueError:
        return made, rest


@pytest.mark.slow
@pytest.mark.parametrize("form", [PYTHON, GEMMA, FUNCTION_GEMMA], ids=["python", "gemma", "functiongemma"])
@given(arguments=st.dictionaries(KEYS, VALUES, max_size=4), size=st.integers(1, 40))
def test_what_a_form_writes_it_reads_in_any_chunks(form: LiteralForm, arguments: dict[str, Any], size: int) -> None:
    assert read(form, f"{form.written(arguments)}]<", size=size) == (arguments, "]<")


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("msg='it's fine', n=-1)", {"msg": "it's fine", "n": -1}),
        ("code='print('a', 'b')')]", {"code": "print('a', 'b')"}),
        ('code="say \\"hi\\"\\n", at=1)', {"code": 'say "hi"\n', "at": 1}),
        ("code='a\\n\nb\\n')", {"code": "a\n\nb\\n"}),  # no text of Python has a line break: the rest is as it stands
        ("at=date(2024, 1, 2), n=1_000)", {"at": "date(2024, 1, 2)", "n": 1000}),
        ('"Rome", 3)', {"city": "Rome", "days": 3}),
        ('"""a "b" c""")', {"city": 'a "b" c'}),
        ("a=(1, 'x'), b={'k': True, \"l\": null})", {"a": [1, "x"], "b": {"k": True, "l": None}}),
        ("a='\\ud83d\\ude00\\ud83d', b='\\d')", {"a": "😀\N{REPLACEMENT CHARACTER}", "b": "\\d"}),
        (")", {}),
    ],
)
def test_python_is_read_as_models_write_it(text: str, arguments: dict[str, Any]) -> None:
    schema = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    for size in range(1, len(text) + 1):
        assert read(PYTHON, text, schema, size)[0] == arguments, size


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('a:<|"|>x "y", z<|"|>,n:-7}', {"a": 'x "y", z', "n": -7}),
        ('"a":"b","c":{"d":[1.5,"x"]}}', {"a": "b", "c": {"d": [1.5, "x"]}}),
        ('a:{b:[<|"|>}<|"|>,{}],c:null},d:[]}', {"a": {"b": ["}", {}], "c": None}, "d": []}),
        ("city:Rome}", {"city": "Rome"}),
        ("}", {}),
    ],
)
def test_gemma_is_read_as_models_write_it(text: str, arguments: dict[str, Any]) -> None:
    for size in range(1, len(text) + 1):
        assert read(GEMMA, text, size=size)[0] == arguments, size


@pytest.mark.parametrize("text", ['a="cut', "a=[1,", "a=", 'a="x"', "a"])
def test_arguments_that_are_cut_are_no_object(text: str) -> None:
    assert isinstance(read(PYTHON, text)[0], str)


@pytest.mark.parametrize(
    ("schema", "value", "parsed"),
    [
        ({"type": ["string", "null"]}, "007", "007"),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "75001", "75001"),  # pydantic's Optional[str]
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "75001", 75001),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"type": "object"}, "{'a': True}", {"a": True}),  # Seed-OSS prints objects so
        ({}, "1", 1),
    ],
)
def test_a_value_in_tags_has_a_type_of_its_schema(schema: dict[str, Any], value: str, parsed: object) -> None:
    tags = ParameterTags("<p=", (">",), "</p>", "</f>")
    assert read(tags, f"<p=a>{value}</p></f>", {"properties": {"a": schema}})[0] == {"a": parsed}


OBJECTS = st.recursive(
    TEXTS.map("t{}".format),  # none reads like a number
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(KEYS.filter("item".__ne__), inner, min_size=1, max_size=3)
    ),
)


def schema_of(value: object) -> dict[str, Any]:
    """Return a schema that says of each text that it is one."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schema_of(item) for key, item in value.items()}}
    if isinstance(value, list):
        same = schema_of(value[0])
        return {"type": "array", "items": same if all(schema_of(item) == same for item in value) else {}}
    return {"type": "string"}


@pytest.mark.slow
@given(arguments=st.dictionaries(KEYS, OBJECTS, max_size=3), size=st.integers(1, 60))
def test_elements_are_read_as_they_are_written(arguments: dict[str, Any], size: int) -> None:
    form, schema = ElementForm("]<]minimax[>["), schema_of(arguments)
    whole = read(form, f"{form.written(arguments)}\n", schema)
    assert read(form, f"{form.written(arguments)}\n", schema, size) == whole
    assert whole[1] == "\n"
    assert whole[0] == arguments


@pytest.mark.slow
def test_deep_elements_do_not_end_the_stack() -> None:
    form, depth = ElementForm("]<]minimax[>["), 5000
    text = "]<]minimax[>[<a>" * depth + "x" + "]<]minimax[>[</a>" * depth + form.end
    assert read(form, text)[1] == ""


@pytest.mark.parametrize("text", ['\\a=1, b="x")', "a/b=1)", "é.x=1)", '"a"=1)', "@=1)", "a=1, \\=2)"])
def test_an_argument_is_read_alike_whether_it_comes_at_once_or_by_letters(text: str) -> None:
    schema = {"properties": {"a": {}, "b": {}}}
    assert read(PYTHON, text, schema) == read(PYTHON, text, schema, size=1)
