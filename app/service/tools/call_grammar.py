"""What binds an answer with tools: the calls that it may contain, as texts and grammars, after reasoning, if any. Pure.

Owns how calls are built from a format's syntax. `argument_grammar` has their arguments.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.common.answer_text import ReasoningTags
from app.engine.grammar.call_rules import BLANKS, CallHead, CallRules, numbered, texts_rule, without_last_blank
from app.engine.grammar.gbnf import GbnfRules, literal, text_through
from app.engine.grammar.json_grammar import JsonFormat
from app.service.tools.argument_forms import JsonForm
from app.service.tools.argument_grammar import ArgumentGrammar, CallEnd, argument_grammar, grouped_grammar
from app.service.tools.parser import ToolCalling
from app.service.tools.tool import Tool
from app.service.tools.tool_format import EXAMPLE_ID, ToolFormat

_OBJECT = ('{"name": "', '", "parameters": ')  # how a format with bare calls writes them as objects, too
_ID_ALPHABET = string.ascii_lowercase + string.digits
_MAX_SHOWN = 5  # names in a notice


@dataclass(frozen=True, slots=True)
class BoundCalls:
    """The `rules` of an answer, and in sentences what of the tools' schemas they do not follow."""

    rules: CallRules
    notices: tuple[str, ...]


def bound_calls(calling: ToolCalling, tags: ReasoningTags, json_format: JsonFormat | None = None) -> BoundCalls:
    """Return what binds an answer with the tools of `calling`, after reasoning with `tags`.

    An answer that must be a call is bound from its begin, and so is one that is JSON of `json_format` or a call; any
    other is bound where a call begins. Raises RequestError for a grammar that is too large.
    """
    tool_format, options = calling.tool_format, calling.options
    syntax, tools = tool_format.syntax, options.callable_tools
    end = CallEnd(tool_format.arguments, syntax.after_arguments)
    grammars = [argument_grammar(end, tool) for tool in tools]
    if syntax.before_arguments:
        heads, parts = _heads(syntax.before_name, syntax.before_arguments, tools), grammars
    else:
        heads, parts = _heads_of_groups(syntax.before_name, tools, end, grammars)
    rules = CallRules(
        heads=(*heads, *_other_heads(tool_format, tools, len(parts))),
        parts=tuple(part.text for part in (*parts, *_object_grammars(tool_format, tools))),
        openings=tuple(_openings(tool_format)),
        first=syntax.before_first,
        between=syntax.between or "",
        last=syntax.after_last,
        is_repeated=options.is_parallel and syntax.between is not None,
        goes_on=bool(tool_format.fillers)
        and (syntax.after_last or syntax.after_arguments).endswith(tool_format.fillers),
        bare=tool_format.bare,
        begin=_begin(calling, heads, tags, json_format) if options.must_call or json_format else "",
        before_head=(tags.closing,) if tags.closing else (),
    )
    causes = {tool.name: grammar.cause for tool, grammar in zip(tools, grammars, strict=True)}
    for head in heads if not syntax.before_arguments else ():
        begin = head.text.removeprefix(syntax.before_name)
        causes |= {name: parts[head.part].cause for name in causes if name.startswith(begin) and parts[head.part].cause}
    return BoundCalls(_with_new_id(rules), tuple(_notices(causes)))


def answer_grammar(json_format: JsonFormat, tags: ReasoningTags) -> str:
    """Return the grammar of an answer that is JSON of `json_format`, after reasoning with `tags`.

    Raises RequestError where it is too large.
    """
    rules = GbnfRules()
    return rules.text(f"{_reasoning(tags, rules)}{BLANKS} {_json(json_format, tags, rules)}")


# Heads


def _heads(before_name: str, before_arguments: str, tools: Sequence[Tool], first_part: int = 0) -> list[CallHead]:
    """Return a head for each of `tools`, whose parts are in their order."""
    return [
        CallHead(
            without_last_blank(f"{before_name}{tool.name}{before_arguments}"), part, len(before_name + tool.name) + 1
        )
        for part, tool in enumerate(tools, start=first_part)
    ]


def _heads_of_groups(
    before_name: str, tools: Sequence[Tool], end: CallEnd, grammars: Sequence[ArgumentGrammar]
) -> tuple[list[CallHead], list[ArgumentGrammar]]:
    """Return heads that end with the name, and their parts: names that another one begins with are told apart there."""
    names = sorted(tool.name for tool in tools)
    shortest = [name for name in names if not any(name != other and name.startswith(other) for other in names)]
    of_name = {tool.name: grammar for tool, grammar in zip(tools, grammars, strict=True)}
    parts = []
    for name in shortest:
        group = tuple((other[len(name) :], of_name[other]) for other in names if other.startswith(name))
        parts.append(grouped_grammar(end, group) if len(group) > 1 else of_name[name])
    return [CallHead(f"{before_name}{name}", part) for part, name in enumerate(shortest)], parts


def _other_heads(tool_format: ToolFormat, tools: Sequence[Tool], n_parts: int) -> Iterator[CallHead]:
    """Yield the heads that models write beside the usual one."""
    for before_name, before_arguments in tool_format.syntax.other_heads:
        yield from _heads(before_name, before_arguments, tools)
    if _has_objects(tool_format):
        yield from _heads(*_OBJECT, tools, n_parts)


def _object_grammars(tool_format: ToolFormat, tools: Sequence[Tool]) -> Iterator[ArgumentGrammar]:
    """Yield the grammars behind the heads of objects that stand for calls, whatever else the format has."""
    if _has_objects(tool_format):
        yield from (argument_grammar(CallEnd(JsonForm(), "}"), tool) for tool in tools)


def _has_objects(tool_format: ToolFormat) -> bool:
    return bool(tool_format.bare) and not isinstance(tool_format.arguments, JsonForm)


def _openings(tool_format: ToolFormat) -> Iterator[tuple[str, str]]:
    """Yield each opening with what of the syntax it stands for: up to itself, or to the one that it is another for."""
    syntax = tool_format.syntax
    begins = [
        syntax.before_first + syntax.before_name,
        *(syntax.before_first + before for before, _ in syntax.other_heads),
    ]
    stand_for = {
        opening: begin[: begin.index(opening) + len(opening)]
        for begin in reversed(begins)
        for opening in tool_format.openings
        if opening in begin
    }
    usual = next((stand_for[opening] for opening in tool_format.openings if opening in stand_for), "")
    for opening in tool_format.openings:
        yield opening, stand_for.get(opening, "" if tool_format.bare else usual)


def _with_new_id(rules: CallRules) -> CallRules:
    """Return `rules` with an id of calls that no other answer has."""
    if not any(EXAMPLE_ID in head.text for head in rules.heads):
        return rules
    new = "".join(secrets.choice(_ID_ALPHABET) for _ in EXAMPLE_ID)
    heads = tuple(replace(head, text=head.text.replace(EXAMPLE_ID, new)) for head in rules.heads)
    return replace(rules, heads=heads, begin=rules.begin.replace(EXAMPLE_ID, new))


# The whole answer


def _begin(calling: ToolCalling, heads: Sequence[CallHead], tags: ReasoningTags, json_format: JsonFormat | None) -> str:
    """Return the grammar of an answer from its begin to the end of a head, or of its JSON."""
    rules, before = GbnfRules(), calling.tool_format.syntax.before_first
    ways = [rules.add(texts_rule([numbered(before + head.text, 0) for head in heads]))]
    if json_format and not calling.options.must_call:
        ways.append(_json(json_format, tags, rules))
    return rules.own_text(f"{_reasoning(tags, rules)}{BLANKS} ({' | '.join(ways)})")


def _reasoning(tags: ReasoningTags, rules: GbnfRules) -> str:
    if not tags.closing or tags.is_past:
        return ""
    rest = text_through(tags.closing, rules)
    return f"{rest} " if tags.is_open else f"({BLANKS} {literal(tags.opening)} {rest})? "


def _json(json_format: JsonFormat, tags: ReasoningTags, rules: GbnfRules) -> str:
    """Return the JSON, after the tag that a model may write before text."""
    is_tagged = tags.before_text and not tags.is_past
    return rules.add(f"{literal(tags.before_text)} {json_format.rule(rules)}") if is_tagged else json_format.rule(rules)


def _notices(causes: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each of the `causes`, by tool, why calls do not follow the whole schema."""
    names: dict[str, list[str]] = {}
    for name, cause in causes.items():
        if cause:
            names.setdefault(cause, []).append(name)
    for cause, found in names.items():
        shown = ", ".join(found[:_MAX_SHOWN]) + (f" and {len(found) - _MAX_SHOWN} more" if found[_MAX_SHOWN:] else "")
        yield f"Calls of {shown} are held to a part of their schema only: {cause}"
