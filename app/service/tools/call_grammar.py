"""What binds an answer with tools: the calls that it may contain, as texts and grammars, after reasoning, if any. Pure.

Arguments follow the schema of their tool wholly; or but for the properties that no grammar describes; or no more than
the types of its properties. Whatever is less than the whole has a cause, which the client learns.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from app.common.answer_text import ReasoningTags
from app.engine.grammar.answer_format import AnswerFormat
from app.engine.grammar.call_rules import BLANKS, CallHead, CallRules, numbered, texts_rule, without_last_blank
from app.engine.grammar.gbnf import GbnfRules, check_grammar, literal, text_through, with_plain_values
from app.engine.grammar.json_schema import format_notices
from app.protocol.chat import Tool
from app.protocol.errors import RequestError
from app.service.tools.argument_forms import ArgumentForm, JsonForm
from app.service.tools.formats import EXAMPLE_ID, ToolFormat, head_text
from app.service.tools.parser import ToolCalling

_MAX_REMEMBERED = 1024  # an agent sends the same tools with each request
_DEFINITIONS = ("$defs", "definitions")
# Keywords with other schemas in them that allow the more, the more these do.
_OF_NAMES, _OF_PARTS = ("properties",), ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_OF_ONE = ("items", "additionalProperties")
_ANNOTATED = frozenset(("title", "description", "$schema", "$id", "$comment"))
_OBJECT = ('{"name": "', '", "parameters": ')  # how a format with bare calls writes them as objects, too
# An answer that is JSON begins with it: models that may begin with blanks write as many as they may. Behind a thought,
# where every family writes a paragraph break, they are not shown.
_AFTER_REASONING = r"[ \n]{0,2}"
_ID_ALPHABET = string.ascii_lowercase + string.digits
_MAX_SHOWN = 5  # names in a notice
_MAX_TRIED = 200  # parts of a schema that is not supported as a whole


@dataclass(frozen=True, slots=True)
class BoundCalls:
    """The `rules` of an answer, and in sentences what of the tools' schemas they do not follow."""

    rules: CallRules
    notices: tuple[str, ...]


def bound_calls(calling: ToolCalling, tags: ReasoningTags, answer_format: AnswerFormat | None = None) -> BoundCalls:
    """Return what binds an answer with the tools of `calling`, after reasoning with `tags`. An answer that must be a
    call is bound from its begin, and so is one that has the `answer_format` or is a call; any other is bound where a
    call begins. Raises RequestError for a grammar that is too large."""
    tool_format, options = calling.tool_format, calling.options
    syntax, tools = tool_format.syntax, options.callable_tools
    end = CallEnd(tool_format.arguments, syntax.after_arguments)
    grammars = [argument_grammar(end, tool) for tool in tools]
    if syntax.before_arguments:
        heads, parts = _heads(syntax.before_name, syntax.before_arguments, tools), grammars
    else:
        heads, parts = _heads_of_groups(syntax.before_name, tools, end, grammars)
    others = [head for before in syntax.other_heads for head in _heads(*before, tools)]
    objects: list[ArgumentGrammar] = []  # behind heads of objects that stand for calls, whatever else the format has
    if tool_format.bare and not isinstance(tool_format.arguments, JsonForm):
        others += _heads(*_OBJECT, tools, len(parts))
        objects = [argument_grammar(CallEnd(JsonForm(), "}"), tool) for tool in tools]
    rules = CallRules(
        heads=(*heads, *others),
        parts=tuple(part.text for part in (*parts, *objects)),
        openings=tuple(
            [(head.text, head.text) for head in heads] if tool_format.is_opened_by_name else _openings(tool_format)
        ),
        first=syntax.before_first,
        between=syntax.between or "",
        last=syntax.after_last,
        is_repeated=options.may_repeat and syntax.between is not None,
        goes_on=bool(tool_format.fillers)
        and (syntax.after_last or syntax.after_arguments).endswith(tool_format.fillers),
        bare=tool_format.bare,
        begin=_begin(calling, heads, tags, answer_format) if options.must_call or answer_format else "",
        before_head=(tags.closing,) if tags.closing else (),
        begun=tags.begun,
        answers=_answers(tool_format, tools) if not (options.must_call or answer_format) else (),
    )
    causes = {tool.name: grammar.cause for tool, grammar in zip(tools, grammars, strict=True)}
    for head in heads if not syntax.before_arguments else ():
        begin = head.text.removeprefix(syntax.before_name)
        causes |= {name: parts[head.part].cause for name in causes if name.startswith(begin) and parts[head.part].cause}
    if any(EXAMPLE_ID in head.text for head in rules.heads):  # an id that no other answer has
        new = "".join(secrets.choice(_ID_ALPHABET) for _ in EXAMPLE_ID)
        made = tuple(replace(head, text=head.text.replace(EXAMPLE_ID, new)) for head in rules.heads)
        rules = replace(rules, heads=made, begin=rules.begin.replace(EXAMPLE_ID, new))
    return BoundCalls(rules, tuple(_notices(causes)))


def answer_grammar(answer_format: AnswerFormat, tags: ReasoningTags) -> str:
    """Return the grammar of an answer that has the `answer_format`, after reasoning with `tags`. Raises RequestError
    where it is too large."""
    rules = GbnfRules()
    return rules.text(f"{_reasoning(tags, rules)}{_in_format(answer_format, tags, rules)}")


# Heads


def _heads(before_name: str, before_arguments: str, tools: Sequence[Tool], first_part: int = 0) -> list[CallHead]:
    """Return a head for each of `tools`, whose parts are in their order."""
    return [
        CallHead(
            without_last_blank(head_text(tool.name, before_name, before_arguments)),
            part,
            len(before_name + tool.name) + 1,
        )
        for part, tool in enumerate(tools, start=first_part)
    ]


def _heads_of_groups(
    before_name: str, tools: Sequence[Tool], end: CallEnd, grammars: Sequence[ArgumentGrammar]
) -> tuple[list[CallHead], list[ArgumentGrammar]]:
    """Return heads that end with the name, and their parts, which tell names apart that begin alike."""
    names = sorted(tool.name for tool in tools)
    shortest = [name for name in names if not any(name != other and name.startswith(other) for other in names)]
    of_name = {tool.name: grammar for tool, grammar in zip(tools, grammars, strict=True)}
    parts = []
    for name in shortest:
        group = tuple((other[len(name) :], of_name[other]) for other in names if other.startswith(name))
        parts.append(grouped_grammar(end, group) if len(group) > 1 else of_name[name])
    return [CallHead(f"{before_name}{name}", part) for part, name in enumerate(shortest)], parts


def _answers(tool_format: ToolFormat, tools: Sequence[Tool]) -> tuple[str, ...]:
    """Return what begins no call, without names that a client offers as a tool."""
    before = f"{tool_format.syntax.before_first}{tool_format.syntax.before_name}"
    heads = [f"{before}{tool.name}" for tool in tools]
    return tuple(text for text in tool_format.answers if text not in heads)


def _openings(tool_format: ToolFormat) -> Iterator[tuple[str, str]]:
    """Yield each opening with what of the syntax it stands for: up to itself, or to the one that it is another for."""
    syntax = tool_format.syntax
    begins = [
        syntax.before_first + before for before in (syntax.before_name, *(head[0] for head in syntax.other_heads))
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


# The whole answer


def _begin(
    calling: ToolCalling, heads: Sequence[CallHead], tags: ReasoningTags, answer_format: AnswerFormat | None
) -> str:
    """Return the grammar of an answer from its begin to the end of a head, or of such an answer."""
    rules, before = GbnfRules(), calling.tool_format.syntax.before_first
    texts = [numbered(before + head.text, 0).removeprefix(tags.begun) for head in heads]
    ways = [f"{'' if tags.begun else BLANKS} {rules.add(texts_rule(texts))}".strip()]
    if answer_format and not calling.options.must_call:
        ways.append(_in_format(answer_format, tags, rules))
    return rules.own_text(f"{_reasoning(tags, rules)}({' | '.join(ways)})")


def _reasoning(tags: ReasoningTags, rules: GbnfRules) -> str:
    if not tags.closing or tags.is_past:
        return ""
    rest = text_through(tags.closing, rules)
    if tags.is_open:
        return f"{rest} {_AFTER_REASONING} "
    if tags.begun:  # as each message is
        opening = literal(tags.opening.removeprefix(tags.begun))
        return f"({opening} {rest} {_AFTER_REASONING} {literal(tags.begun)})? "
    return f"({BLANKS} {literal(tags.opening)} {rest} {_AFTER_REASONING})? "


def _in_format(answer_format: AnswerFormat, tags: ReasoningTags, rules: GbnfRules) -> str:
    rule = answer_format.rule(rules)
    if not tags.before_text or tags.is_past:
        return rule
    return rules.add(f"{literal(tags.before_text.removeprefix(tags.begun))} {rule}")


def _notices(causes: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each of the `causes`, by tool, why calls do not follow the whole schema."""
    names: dict[str, list[str]] = {}
    for name, cause in causes.items():
        if cause:
            names.setdefault(cause, []).append(name)
    for cause, found in names.items():
        shown = ", ".join(found[:_MAX_SHOWN]) + (f" and {len(found) - _MAX_SHOWN} more" if found[_MAX_SHOWN:] else "")
        yield f"Calls of {shown} are held to a part of their schema only: {cause}"


# Arguments


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a family writes a call behind its head: the `form` of arguments, then the text `after`."""

    form: ArgumentForm
    after: str

    def rule(self, schema: Mapping[str, Any], rules: GbnfRules) -> str:
        """Return the body of a rule of `rules`. Raises RequestError for a schema that is not supported."""
        if schema.get("type", "object") != "object":
            raise RequestError("The parameters are not described as an object.", "Describe an object.")
        after = f" {literal(self.after)}" if self.after else ""
        return f'" "? {self.form.rule(schema, rules)}{after}'


@dataclass(frozen=True, slots=True)
class ArgumentGrammar:
    """The GBNF `text` of what follows a head, without the rules of plain JSON values. `schema` is the JSON text of what
    it follows; `cause` says why that is not the whole schema."""

    text: str
    schema: str
    cause: str = ""


def argument_grammar(end: CallEnd, tool: Tool) -> ArgumentGrammar:
    """Return the grammar of a call of `tool`, as whole as can be."""
    try:
        return _argument_grammar(end, json.dumps(tool.parameters, ensure_ascii=False))
    except RecursionError:
        return _argument_grammar(end, '{"type": "a schema that nests too deep"}')


@lru_cache(maxsize=_MAX_REMEMBERED)
def grouped_grammar(end: CallEnd, grammars: tuple[tuple[str, ArgumentGrammar], ...]) -> ArgumentGrammar:
    """Return one grammar for tools whose names begin alike, of any arguments if it would be too large."""
    cause = ""
    wanted: list[Mapping[str, Any]] = [json.loads(grammar.schema) for _, grammar in grammars]
    undescribed: list[Mapping[str, Any]] = [{} for _ in grammars]
    for schemas in (wanted, undescribed):
        rules = GbnfRules()
        try:
            ways = [
                f"{literal(rest) if rest else ''} {end.rule(schema, rules)}".strip()
                for (rest, _), schema in zip(grammars, schemas, strict=True)
            ]
            return ArgumentGrammar(rules.own_text(" | ".join(ways)), "", cause)
        except RequestError as error:
            cause = cause or error.cause
    raise AssertionError("no more tools than there may be have rules of one way each")


@lru_cache(maxsize=_MAX_REMEMBERED)
def _argument_grammar(end: CallEnd, schema_text: str) -> ArgumentGrammar:
    schema, cause = json.loads(schema_text), ""
    for attempt in _attempts(end.form, schema):
        rules = GbnfRules()
        try:
            text = rules.own_text(end.rule(attempt, rules))
            check_grammar(with_plain_values(text))
        except RequestError as error:
            cause = cause or error.cause
        else:
            cause = cause or " ".join(format_notices(attempt))
            if len(left_out := list(_left_out(schema, attempt))) > 1:
                more = f" and {len(left_out) - _MAX_SHOWN} more" if left_out[_MAX_SHOWN:] else ""
                cause = f"{cause} Left out: {', '.join(left_out[:_MAX_SHOWN])}{more}."
            return ArgumentGrammar(text, json.dumps(attempt, ensure_ascii=False), cause)
    raise AssertionError("any form describes an object without properties")


def _attempts(form: ArgumentForm, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield `schema`, and schemas that ask for less and less."""
    yield schema
    described = schema.get("properties")
    properties = described if isinstance(described, Mapping) else {}
    required = schema.get("required")
    names = [name for name in properties if name in required] if isinstance(required, list) else []
    budget = iter(range(_MAX_TRIED))

    def is_kept(tried: Any) -> bool:
        return next(budget, None) is not None and _is_supported(form, {"properties": {"any": tried}, **parts})

    def is_defined(tried: Any) -> bool:  # whatever it refers to
        anything: dict[str, Any] = {key: {name: {} for name in described} for key, described in definitions.items()}
        return next(budget, None) is not None and _is_supported(JsonForm(), {"properties": {"any": tried}, **anything})

    definitions = {key: schema[key] for key in _DEFINITIONS if isinstance(schema.get(key), Mapping)}
    parts = {
        key: {name: _kept(part, is_defined) for name, part in described.items()}
        for key, described in definitions.items()
    }
    base = {"type": "object", "required": names, **parts}
    # No more than the type of each: a text, which forms write in their own way, or anything.
    loosened: dict[str, dict[str, Any]] = {
        name: {"type": "string"} if isinstance(value, Mapping) and value.get("type") == "string" else {}
        for name, value in properties.items()
    }
    kept = {name: _kept(value, is_kept) for name, value in properties.items()}
    if properties:
        yield {**base, "properties": kept}
        yield {"type": "object", "required": names, "properties": loosened}
    yield {}


def _kept(schema: Any, is_supported: Callable[[Any], bool]) -> Any:
    """Return `schema` without the keywords that are not supported, or not beside others: of each part of it, as much as
    can be. What is left allows all that the whole does."""
    if not isinstance(schema, Mapping) or is_supported(schema):
        return schema
    tried: dict[str, Any] = {}
    for keyword, value in sorted(schema.items(), key=lambda item: item[0] != "type"):
        if keyword in _OF_NAMES and isinstance(value, Mapping):
            value = {name: _kept(part, is_supported) for name, part in value.items()}
        elif keyword in _OF_PARTS and isinstance(value, list):
            value = [_kept(part, is_supported) for part in value]
        elif keyword in _OF_ONE:
            value = _kept(value, is_supported)
        if is_supported({**tried, keyword: value}):
            tried[keyword] = value
    return tried


def _left_out(schema: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of what `kept` lacks of `schema`."""
    if isinstance(schema, Mapping) and isinstance(kept, Mapping):
        for key, value in schema.items():
            if key in kept:
                yield from _left_out(value, kept[key], f"{path}{key}.")
            elif key not in _ANNOTATED:
                yield f"{path}{key}"
    elif isinstance(schema, list) and isinstance(kept, list):
        for number, (value, other) in enumerate(zip(schema, kept, strict=False)):
            yield from _left_out(value, other, f"{path}{number}.")


def _is_supported(form: ArgumentForm, schema: Mapping[str, Any]) -> bool:
    rules = GbnfRules()
    try:
        check_grammar(rules.text(form.rule(schema, rules)))
    except RequestError:
        return False
    return True
