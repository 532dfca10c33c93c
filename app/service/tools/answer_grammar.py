"""The grammar of an answer that must be JSON, or a call instead where tools are offered; after reasoning, if any. Pure.

Owns how far arguments follow the schemas of tools that the model is free not to call. `call_grammar` has the calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.answer_text import ReasoningTags
from app.engine.grammar.gbnf import GbnfRules, literal
from app.engine.grammar.json_format import JsonFormat
from app.service.tools.call_grammar import after_reasoning, calls_rule
from app.service.tools.parser import ToolCalling
from app.service.tools.tool import Tool, ToolOptions
from quantizer.errors import RequestError

__all__ = ["answer_grammar"]


def answer_grammar(json_format: JsonFormat, tags: ReasoningTags, calling: ToolCalling | None = None) -> str:
    """Return the grammar of an answer of `json_format`, or of calls instead where `calling` has tools.

    Arguments follow the schema of their tool, but only the types of its properties where it has a keyword that is not
    supported, or where the grammar would be too large: nothing was to be enforced there without `json_format`.

    Raises RequestError for a grammar that is too large even so.
    """
    if calling is None:
        rules = GbnfRules()
        return after_reasoning(_json(json_format, tags, rules), tags, rules)
    *attempts, last = _attempts(calling)
    for attempt in attempts:
        try:
            return _json_or_calls(json_format, tags, attempt)
        except RequestError:  # the next one asks for less
            continue
    return _json_or_calls(json_format, tags, last)


def _json_or_calls(json_format: JsonFormat, tags: ReasoningTags, calling: ToolCalling) -> str:
    rules = GbnfRules()
    calls = rules.add(calls_rule(calling.tool_format, calling.options, rules))
    return after_reasoning(f"({calls} | {_json(json_format, tags, rules)})", tags, rules)


def _json(json_format: JsonFormat, tags: ReasoningTags, rules: GbnfRules) -> str:
    """Return the JSON, after the tag that a model may write before text."""
    is_tagged = tags.before_text and not tags.is_past
    return rules.add(f"{literal(tags.before_text)} {json_format.rule(rules)}") if is_tagged else json_format.rule(rules)


def _attempts(calling: ToolCalling) -> Iterator[ToolCalling]:
    """Yield `calling` with all schemas, with the supported ones, and with none."""
    tools = calling.options.tools
    yield calling
    supported = {tool.name for tool in tools if _is_supported(calling, tool)}
    for kept in (supported, frozenset[str]()):
        changed = tuple(tool if tool.name in kept else _loosened(tool) for tool in tools)
        yield replace(calling, options=replace(calling.options, tools=changed))


def _is_supported(calling: ToolCalling, tool: Tool) -> bool:
    try:
        calls_rule(calling.tool_format, ToolOptions(tools=(tool,)), GbnfRules())
    except RequestError:
        return False
    return True


def _loosened(tool: Tool) -> Tool:
    """Return `tool` with no more than the type of each parameter, and with those that are required."""
    described = tool.parameters.get("properties")
    properties = described if isinstance(described, Mapping) else {}
    required = tool.parameters.get("required")
    names = [name for name in required if name in properties] if isinstance(required, list) else []
    kept = {name: _type_of(schema) for name, schema in properties.items()}
    return replace(tool, parameters={"type": "object", "properties": kept, "required": names} if kept else {})


def _type_of(schema: Any) -> dict[str, Any]:
    is_text = isinstance(schema, Mapping) and schema.get("type") == "string"
    return {"type": "string"} if is_text else {}
