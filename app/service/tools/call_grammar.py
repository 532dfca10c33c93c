"""The grammar of an answer that must call a tool: reasoning, if any, then calls. Pure.

Owns how calls are built from a format's syntax and the tools' schemas. `app.engine.grammar` turns JSON schemas into
rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.answer_text import ReasoningTags
from app.engine.grammar.gbnf import GbnfRules, literal, text_through
from app.engine.grammar.json_grammar import schema_rule
from app.engine.grammar.json_schema import constraints, required_names
from app.service.tools.call_reader import ParameterTags
from app.service.tools.formats import ToolFormat
from app.service.tools.tool import Tool, ToolOptions
from quantizer.errors import RequestError

__all__ = ["call_grammar"]

MAX_CALLS = 16  # in one answer that must be calls
_BLANKS = r"[ \t\n]{0,8}"
_LINE = "\n"


def call_grammar(tool_format: ToolFormat, options: ToolOptions, tags: ReasoningTags) -> str:
    """Return the grammar of calls of the tools in `options`, after reasoning where the model has `tags` for it.

    Raises RequestError for an unsupported schema and for too large a grammar.
    """
    rules = GbnfRules()
    syntax = tool_format.syntax
    call = rules.add(" | ".join(_call(tool_format, tool, rules) for tool in options.callable_tools))
    more = ""
    if options.is_parallel and syntax.between is not None:
        more = f"({_quoted(syntax.between)}{call}){{0,{MAX_CALLS - 1}}}"
    calls = f"{_quoted(syntax.before_first)}{call} {more}{_quoted(syntax.after_last)}"
    return rules.text(f"{_reasoning(tags, rules)}{_BLANKS} {calls}")


def _reasoning(tags: ReasoningTags, rules: GbnfRules) -> str:
    if not tags.closing:
        return ""
    rest = text_through(tags.closing, rules)
    return f"{rest} " if tags.is_open else f"({_BLANKS} {literal(tags.opening)} {rest})? "


def _call(tool_format: ToolFormat, tool: Tool, rules: GbnfRules) -> str:
    schema = dict(tool.parameters)
    if schema.get("type", "object") != "object":
        raise RequestError(f"The parameters of {tool.name} are not described as an object.", "Describe an object.")
    syntax = tool_format.syntax
    if tool_format.parameters:
        arguments = _tagged(tool_format.parameters, schema, rules)
    else:
        arguments = schema_rule({"type": "object", **schema}, rules)
    begin = literal(f"{syntax.before_name}{tool.name}{syntax.before_arguments}")
    return rules.add(f"{begin} {arguments} {_quoted(syntax.after_arguments)}")


def _tagged(tags: ParameterTags, schema: Mapping[str, Any], rules: GbnfRules) -> str:
    """Return a rule for parameters in the order of the schema, each in its tags, optional unless required."""
    foreign = constraints(schema) - {"type", "properties", "required", "additionalProperties"}
    properties = schema.get("properties", {})
    required = required_names(schema)
    if foreign or not isinstance(properties, Mapping) or required.keys() - properties.keys():
        cause = "This model's tool calls support only plain properties of an object."
        raise RequestError(cause, "Describe each parameter in properties.")
    parts = [
        f"{_parameter(tags, name, value, schema, rules)}{'' if name in required else '?'}"
        for name, value in properties.items()
    ]
    return rules.add(" ".join((*parts, literal(tags.end))))


def _parameter(tags: ParameterTags, name: str, value: object, document: Mapping[str, Any], rules: GbnfRules) -> str:
    line = _LINE if tags.has_lines else ""
    begin = literal(f"{tags.opening}{name}{tags.before_value[0]}{''.join(tags.before_value[1:])}{line}")
    closing = f"{line}{tags.closing}"
    if isinstance(value, Mapping) and value.get("type") == "string":
        if constraints(value) == {"type"}:
            return rules.add(f"{begin} {text_through(closing, rules)} {literal(_LINE)}")
        rule = _choices(value)
    else:
        rule = schema_rule(value, rules, document)
    return rules.add(f"{begin} {rule} {literal(closing + _LINE)}")


def _choices(schema: Mapping[str, Any]) -> str:
    """Return the texts of an enum, without quotes."""
    values = schema.get("enum", [schema.get("const")])
    texts = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    if constraints(schema) - {"type", "enum", "const"} or not texts:
        cause = "A string parameter of this model's tool calls supports only an enum."
        raise RequestError(cause, "Describe it as a string or an enum.")
    return "(" + " | ".join(literal(text) for text in texts) + ")"


def _quoted(text: str) -> str:
    return f"{literal(text)} " if text else ""
