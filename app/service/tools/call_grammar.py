"""The grammar of an answer that must call a tool: reasoning, if any, then calls. Pure.

Owns how calls are built from a format's syntax; the format's arguments make rules of the tools' schemas.
"""

from __future__ import annotations

from app.answer_text import ReasoningTags
from app.engine.grammar.gbnf import GbnfRules, literal, text_through
from app.service.tools.formats import ToolFormat
from app.service.tools.tool import Tool, ToolOptions
from quantizer.errors import RequestError

__all__ = ["after_reasoning", "call_grammar", "calls_rule"]

MAX_CALLS = 16  # in one answer that must be calls
_BLANKS = r"[ \t\n]{0,8}"


def call_grammar(tool_format: ToolFormat, options: ToolOptions, tags: ReasoningTags) -> str:
    """Return the grammar of calls of the tools in `options`, after reasoning where the model has `tags` for it.

    Raises RequestError for an unsupported schema and for too large a grammar.
    """
    rules = GbnfRules()
    return after_reasoning(calls_rule(tool_format, options, rules), tags, rules)


def calls_rule(tool_format: ToolFormat, options: ToolOptions, rules: GbnfRules) -> str:
    """Return a text in the place of a rule of `rules` for calls. Raises RequestError as `call_grammar` does."""
    syntax = tool_format.syntax
    call = rules.add(" | ".join(_call(tool_format, tool, rules) for tool in options.callable_tools))
    more = ""
    if options.is_parallel and syntax.between is not None:
        more = f"({_quoted(syntax.between)}{call}){{0,{MAX_CALLS - 1}}}"
    return f"{_quoted(syntax.before_first)}{call} {more}{_quoted(syntax.after_last)}"


def after_reasoning(answer: str, tags: ReasoningTags, rules: GbnfRules) -> str:
    """Return the grammar of `answer`, a rule of `rules` or a text in its place, after reasoning with `tags`."""
    return rules.text(f"{_reasoning(tags, rules)}{_BLANKS} {answer}")


def _reasoning(tags: ReasoningTags, rules: GbnfRules) -> str:
    if not tags.closing or tags.is_past:
        return ""
    rest = text_through(tags.closing, rules)
    return f"{rest} " if tags.is_open else f"({_BLANKS} {literal(tags.opening)} {rest})? "


def _call(tool_format: ToolFormat, tool: Tool, rules: GbnfRules) -> str:
    schema = dict(tool.parameters)
    if schema.get("type", "object") != "object":
        raise RequestError(f"The parameters of {tool.name} are not described as an object.", "Describe an object.")
    syntax = tool_format.syntax
    arguments = tool_format.arguments.rule(schema, rules)
    begin = literal(f"{syntax.before_name}{tool.name}{syntax.before_arguments}")
    return rules.add(f"{begin} {arguments} {_quoted(syntax.after_arguments)}")


def _quoted(text: str) -> str:
    return f"{literal(text)} " if text else ""
