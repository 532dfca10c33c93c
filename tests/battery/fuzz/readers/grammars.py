"""Readers of what binds an answer, and of answers: JSON schemas, regular expressions, GBNF, tools, calls in a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.battery.fuzz.target import Form, Reader, Target, document

__all__ = ["TARGETS"]

_GRAMMAR = ("app.engine.grammar", "app.common.schema_shape")


def _schema(_folder: Path) -> Reader:
    from app.engine.grammar.gbnf import check_grammar
    from app.engine.grammar.json_grammar import JsonFormat
    from app.protocol.sampling import MAX_GRAMMAR_BYTES
    from app.service.http.routing import parse_object

    def read(data: bytes) -> None:
        made = JsonFormat(parse_object(b'{"schema": ' + data + b"}")["schema"])
        made.notices  # noqa: B018 - it reads the schema
        assert len(made.grammar.encode()) <= MAX_GRAMMAR_BYTES + 4096
        check_grammar(made.grammar)

    return read


def _schemas() -> list[bytes]:
    made: list[Any] = [
        {"type": "object", "properties": {"a": {"type": "string", "minLength": 1, "maxLength": 9}}, "required": ["a"]},
        {"type": "array", "items": {"type": "integer", "minimum": -5, "exclusiveMaximum": 9.5}, "minItems": 1},
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}, "$ref": "#/$defs/a"},
        {"allOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"enum": [1, "x", None]}}}]},
        {"type": "string", "pattern": "^a{1,3}[b-d]$", "maxLength": 3},
        {"oneOf": [{"type": "string", "format": "date"}, {"prefixItems": [{}, True], "maxItems": 2}]},
        {"type": ["number", "null"], "minimum": 0.1, "maximum": 1e300, "multipleOf": 1},
        {"properties": {"a": {}, "b": {}}, "additionalProperties": {"type": "string"}, "propertyNames": {}},
    ]
    return [json.dumps(each).encode() for each in made]


_KEYWORDS = (
    "type", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "pattern",
    "minLength", "maxLength", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "anyOf", "oneOf", "allOf", "$ref", "enum", "const", "$defs", "#/$defs/a", "#", "object", "array", "string",
    "integer", "number", "boolean", "null", "date-time", "uuid", "^(a|b)*$", "nullable", "not", "x-a",
)  # fmt: skip


def _pattern(_folder: Path) -> Reader:
    from app.engine.grammar.gbnf import check_grammar
    from app.engine.grammar.pattern import RawText, limited_pattern, whole_text_pattern
    from app.protocol.errors import RequestError

    def read(data: bytes) -> None:
        expression = data.decode("utf-8", "replace")
        ways = (
            lambda: whole_text_pattern(expression),
            lambda: limited_pattern(expression, 0, None),
            lambda: limited_pattern(expression, 2, 7),
            lambda: limited_pattern(expression, 0, 3, RawText("<")),
        )
        refused = 0
        for way in ways:
            try:
                check_grammar(f"root ::= {way()}")
            except RequestError:
                refused += 1
        assert refused in (0, 1, 2, 3, 4)

    return read


def _patterns() -> list[bytes]:
    return [
        rb"^[a-z0-9_+-]{1,32}@([A-Za-z0-9-]+\.)+[a-z]{2,}$", rb"^\d{4}-(0[1-9]|1[0-2])$", rb"(a|b)*c?|^x", rb"[^\W\d]+$",
        rb"\u{1F600}|\x41|\cJ", rb"^(?:(?<n>a)){2,3}?$", rb".*", rb"^$",
    ]  # fmt: skip


_PATTERN_PARTS = (
    "^", "$", ".", "*", "+", "?", "|", "(", ")", "(?:", "(?<a>", "(?=", "[", "]", "[^", "-", "{", "}", "{1,3}", "{0}",
    "{5,2}", "\\d", "\\W", "\\b", "\\1", "\\x4", "\\u{", "\\uD800", "\\c", "\\p{L}", "\\0", "{500}", "\\s", "]{2,}",
)  # fmt: skip


def _gbnf(_folder: Path) -> Reader:
    from app.engine.grammar.gbnf import check_grammar

    return lambda data: check_grammar(data.decode("utf-8", "surrogateescape"))


def _gbnfs() -> list[bytes]:
    return [
        b'root ::= "a" [b-c]{1,3} r1*\nr1 ::= ("x" | r2)? # end\nr2 ::= "\\x41\\u00e9\\U0001F600"',
        b'root ::= <think> [^"\\\\\\n] "\\"" ("a"{2}){3,}',
    ]


_GBNF_PARTS = (
    "::=",
    "root",
    '"',
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    "|",
    "*",
    "{2000}",
    "{1,",
    "\\u",
    "\\UD800",
    "#",
    "<",
    ">",
    "\n",
)


def _tool(_folder: Path) -> Reader:
    """Read the list of tools of an MCP server, make the grammar of the arguments of each in every form, and read
    arguments by it."""
    from app.engine.grammar.gbnf import check_grammar, with_plain_values
    from app.service.tools import formats
    from app.service.tools.call_grammar import CallEnd, argument_grammar
    from app.tools.mcp.listing import listed_tools

    found = {repr(each.arguments): each.arguments for each in formats._FORMATS}
    forms = list(found.values())

    def read(data: bytes) -> None:
        entry = document(data)
        for tool in listed_tools("server", "identity", entry if isinstance(entry, list) else [entry], 5.0).tools:
            for form in forms:
                made = argument_grammar(CallEnd(form, "</x>"), tool.definition)
                check_grammar(with_plain_values(made.text))
                reader = form.reader(tool.definition.parameters)
                written = form.written({"a": 1, "b": "x", "c": [None, {"d": True}]})
                parts = [reader.push(written[:9]), reader.push(written[9:]), reader.finish()]
                json.loads("".join(parts) or "{}")

    return read


def _tools() -> list[bytes]:
    schemas = [json.loads(each) for each in _schemas()[:1]]
    schemas += [
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "enum": ["x", "y"]}}},
        {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#/$defs/d"}}}, "$defs": {"d": {}}},
    ]
    return [json.dumps({"name": "a", "description": "b", "inputSchema": each}).encode() for each in schemas]


def _call(_folder: Path) -> Reader:
    """Read an answer with calls: however it is cut into pieces, the text and the calls are the same."""
    from app.protocol.chat import Tool
    from app.service.tools import formats
    from app.service.tools.parser import ToolCallParser, ToolOptions

    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {}}}
    options = ToolOptions(tools=(Tool("look", "", schema), Tool("look_up", "", schema)))

    def parsed(format_: formats.ToolFormat, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
        parser = ToolCallParser(format_, options, lambda: "id")
        deltas = [*map(parser.push, pieces), parser.push("", is_final=True)]
        calls: dict[int, tuple[str, str]] = {}
        for piece in (piece for delta in deltas for piece in delta.calls):
            name, arguments = calls.get(piece.index, ("", ""))
            calls[piece.index] = (name + piece.name, arguments + piece.arguments)
        return "".join(delta.text for delta in deltas), list(calls.values())

    def read(data: bytes) -> None:
        if not data:
            return
        text, format_ = data[1:].decode("utf-8", "replace"), formats._FORMATS[data[0] % len(formats._FORMATS)]
        whole = parsed(format_, [text])
        assert parsed(format_, list(text)) == whole, f"{format_.name}: pieces are read otherwise than the whole"

    return read


def _calls() -> list[bytes]:
    from app.service.tools import formats

    calls = [("look", {"a": 1, "b": 'x"\n', "c": [1, {"d": None}]}), ("look_up", {})]
    return [bytes([index]) + f"Yes. {each.written(calls)}.".encode() for index, each in enumerate(formats._FORMATS)]


_CALL_WORDS = (
    "look",
    "look_up",
    '{"name": "look", "arguments": {',
    "}",
    '"',
    "<",
    ">",
    "</",
    "\\",
    "[",
    "]",
    "'",
    "\n",
    "None",
    "True",
)
TARGETS = (
    Target("schema", _schema, _GRAMMAR, _schemas, words=_KEYWORDS),
    Target("pattern", _pattern, _GRAMMAR, _patterns, Form.TEXT, _PATTERN_PARTS, max_bytes=2_048),
    Target("gbnf", _gbnf, _GRAMMAR, _gbnfs, Form.TEXT, _GBNF_PARTS),
    Target(
        "tool", _tool, (*_GRAMMAR, "app.service.tools", "app.tools.mcp.listing"), _tools, words=_KEYWORDS, base_s=2.0
    ),
    # each character is pushed by itself, as the tokens of an answer are
    Target(
        "call",
        _call,
        ("app.service.tools",),
        _calls,
        Form.TEXT,
        _CALL_WORDS,
        max_bytes=1_024,
        base_s=1.0,
        s_per_kib=0.2,
    ),
)
