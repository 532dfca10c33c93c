"""The tool call formats of model families: a table, by which a chat template is recognised.

Owns the tags of all formats. Independent of streams and grammars. Sources: the chat templates of these models, in
models/templates of llama.cpp @ the version vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from app.service.tools.call_reader import ParameterTags

__all__ = ["GENERIC", "CallSyntax", "ToolFormat", "tool_format_of"]

_NAME = r"(?P<name>[A-Za-z0-9_.-]{1,64})"
_OBJECT = r"\s*\[?\s*(?=\{)"  # a call as an object that contains its name; several may form a list


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """The text around a call's name and arguments in training. `between` is None where only one call is possible."""

    before_first: str = ""
    before_name: str
    before_arguments: str
    after_arguments: str
    between: str | None = None
    after_last: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a family writes its calls. Its templates contain all `marks`.

    A call begins with one of `openings`, or with the answer itself where it `may_be_bare`; then comes `header`, up to
    the arguments. A header without a name is followed by an object with the name. `fillers` may follow. Arguments are
    JSON unless `parameters` are tagged.
    """

    name: str
    marks: tuple[str, ...]
    openings: tuple[str, ...]
    header: re.Pattern[str] = field(default=re.compile(_OBJECT))
    separators: tuple[str, ...] = ()
    fillers: tuple[str, ...] = ()
    may_be_bare: bool = False
    parameters: ParameterTags | None = None
    syntax: CallSyntax

    @property
    def tags(self) -> tuple[str, ...]:
        """Texts that may be special tokens of these models, and must be visible for calls to be parsed."""
        return (*self.openings, *self.separators, *self.fillers)


def tool_format_of(chat_template: str) -> ToolFormat | None:
    """Return the format in which `chat_template` writes calls, None for an unknown one."""
    return next((known for known in _FORMATS if all(mark in chat_template for mark in known.marks)), None)


def _object(before: str, after: str, name: str = "name", arguments: str = "arguments") -> tuple[str, str, str]:
    """Return the texts around name and arguments of a JSON object."""
    return f'{before}{{"{name}": "', f'", "{arguments}": ', f"}}{after}"


def _objects(opening: str, closing: str, **keys: str) -> CallSyntax:
    """Return the syntax of a list of objects between tags."""
    name, arguments, end = _object("", "", **keys)
    return CallSyntax(
        before_first=f"{opening}[",
        before_name=name,
        before_arguments=arguments,
        after_arguments=end,
        between=", ",
        after_last=f"]{closing}",
    )


def _tagged_object(opening: str, closing: str) -> CallSyntax:
    """Return the syntax of objects with tags around each."""
    name, arguments, end = _object(f"{opening}\n", f"\n{closing}")
    return CallSyntax(before_name=name, before_arguments=arguments, after_arguments=end, between="\n")


def _functions(name: str, opening: str, closing: str, *marks: str) -> ToolFormat:
    """Return a format with <function=…> and a tag for each parameter, inside other tags."""
    return ToolFormat(
        name=name,
        marks=("<function=", "<parameter=", *marks),
        openings=(opening, "<function="),
        header=re.compile(rf"\s*(?:<function=)?{_NAME}>"),
        fillers=(closing,),
        parameters=ParameterTags("<parameter=", (">",), "</parameter>", "</function>", has_lines=True),
        syntax=CallSyntax(
            before_name=f"{opening}\n<function=",
            before_arguments=">\n",
            after_arguments=f"\n{closing}",
            between="\n",
        ),
    )


_HERMES = ToolFormat(
    name="hermes",
    marks=("<tool_call>", '"arguments'),
    openings=("<tool_call>",),
    fillers=("</tool_call>",),
    syntax=_tagged_object("<tool_call>", "</tool_call>"),
)

# The first whose marks are all in the template counts.
_FORMATS = (
    ToolFormat(  # app.service.generation.harmony reads these calls: they are messages of their own
        name="gpt-oss",
        marks=("<|channel|>analysis<|message|>",),
        openings=(),
        syntax=CallSyntax(
            before_name="<|channel|>commentary to=functions.",
            before_arguments=" <|constrain|>json<|message|>",
            after_arguments="",
        ),
    ),
    ToolFormat(
        name="deepseek-r1",
        marks=("<｜tool▁call▁begin｜>", "```json"),
        openings=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        header=re.compile(rf"\s*(?:<｜tool▁call▁begin｜>)?(?:function)?<｜tool▁sep｜>{_NAME}\s*(?:```json)?\s*(?=\{{)"),
        separators=("<｜tool▁sep｜>",),
        fillers=("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        syntax=CallSyntax(
            before_first="<｜tool▁calls▁begin｜>",
            before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            before_arguments="\n```json\n",
            after_arguments="\n```<｜tool▁call▁end｜>",
            between="\n",
            after_last="<｜tool▁calls▁end｜>",
        ),
    ),
    ToolFormat(
        name="deepseek-v3.1",
        marks=("<｜tool▁call▁begin｜>",),
        openings=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        header=re.compile(rf"\s*(?:<｜tool▁call▁begin｜>)?{_NAME}<｜tool▁sep｜>\s*(?=\{{)"),
        separators=("<｜tool▁sep｜>",),
        fillers=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        syntax=CallSyntax(
            before_first="<｜tool▁calls▁begin｜>",
            before_name="<｜tool▁call▁begin｜>",
            before_arguments="<｜tool▁sep｜>",
            after_arguments="<｜tool▁call▁end｜>",
            between="",
            after_last="<｜tool▁calls▁end｜>",
        ),
    ),
    ToolFormat(
        name="kimi-k2",
        marks=("<|tool_calls_section_begin|>",),
        openings=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        header=re.compile(
            rf"\s*(?:<\|tool_call_begin\|>)?\s*(?P<id>functions\.{_NAME}:\d+)\s*<\|tool_call_argument_begin\|>\s*(?=\{{)"
        ),
        separators=("<|tool_call_argument_begin|>",),
        fillers=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        syntax=CallSyntax(
            before_first="<|tool_calls_section_begin|>",
            before_name="<|tool_call_begin|>functions.",
            before_arguments=":0<|tool_call_argument_begin|>",
            after_arguments="<|tool_call_end|>",
            after_last="<|tool_calls_section_end|>",
        ),
    ),
    ToolFormat(
        name="command-r7b",
        marks=("<|START_ACTION|>",),
        openings=("<|START_ACTION|>",),
        fillers=("<|END_ACTION|>",),
        syntax=_objects("<|START_ACTION|>", "<|END_ACTION|>", name="tool_name", arguments="parameters"),
    ),
    ToolFormat(
        name="mistral",
        marks=("[TOOL_CALLS]", "[ARGS]"),
        openings=("[TOOL_CALLS]",),
        header=re.compile(rf"{_OBJECT}|\s*{_NAME}(?:\[CALL_ID\](?P<id>[A-Za-z0-9]{{1,64}}))?\[ARGS\]\s*(?=\{{)"),
        separators=("[CALL_ID]", "[ARGS]"),
        syntax=CallSyntax(before_name="[TOOL_CALLS]", before_arguments="[ARGS]", after_arguments="", between=""),
    ),
    ToolFormat(
        name="mistral-list",
        marks=("[TOOL_CALLS]",),
        openings=("[TOOL_CALLS]",),
        syntax=_objects("[TOOL_CALLS]", ""),
    ),
    ToolFormat(
        name="granite-3",
        marks=("<|tool_call|>",),
        openings=("<|tool_call|>",),
        syntax=_objects("<|tool_call|>", ""),
    ),
    ToolFormat(
        name="nemotron-nano",
        marks=("<TOOLCALL>",),
        openings=("<TOOLCALL>",),
        fillers=("</TOOLCALL>",),
        syntax=_objects("<TOOLCALL>", "</TOOLCALL>"),
    ),
    ToolFormat(
        name="glm",
        marks=("<arg_key>", "<tool_call>"),
        openings=("<tool_call>",),
        header=re.compile(rf"\s*{_NAME}\s*(?=<)"),
        separators=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        fillers=("</tool_call>",),
        parameters=ParameterTags(
            "<arg_key>", ("</arg_key>", "<arg_value>"), "</arg_value>", "</tool_call>", has_lines=False
        ),
        syntax=CallSyntax(before_name="<tool_call>", before_arguments="\n", after_arguments="", between="\n"),
    ),
    _functions("seed-oss", "<seed:tool_call>", "</seed:tool_call>", "<seed:tool_call>"),
    _functions("qwen3-coder", "<tool_call>", "</tool_call>", "<tool_call>"),
    ToolFormat(
        name="functionary-3.1",
        marks=("<function=", "</function>"),
        openings=("<function=",),
        header=re.compile(rf"\s*{_NAME}>\s*(?=\{{)"),
        fillers=("</function>",),
        syntax=CallSyntax(before_name="<function=", before_arguments=">", after_arguments="</function>", between=""),
    ),
    ToolFormat(
        name="tool-calls-list",
        marks=("<tool_calls>", '"arguments'),
        openings=("<tool_calls>",),
        fillers=("</tool_calls>",),
        syntax=_objects("<tool_calls>", "</tool_calls>"),
    ),
    _HERMES,
    ToolFormat(
        name="llama-3",
        marks=("<|start_header_id|>", '{"name": ', '"parameters": '),
        openings=("<|python_tag|>",),
        may_be_bare=True,
        syntax=CallSyntax(before_name='{"name": "', before_arguments='", "parameters": ', after_arguments="}"),
    ),
)

GENERIC = _HERMES  # for models of an unknown format
