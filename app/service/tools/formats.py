"""The tool call formats of model families: a table, by which a chat template is recognised.

A format is the text around names and arguments, and how a call is recognised. Sources: the chat templates of these
models, in models/templates of llama.cpp @ the version vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from app.engine.grammar.call_rules import CALL_NUMBER, CALL_ORDINAL, numbered
from app.service.tools.argument_forms import ArgumentForm, JsonForm
from app.service.tools.literal_arguments import FUNCTION_GEMMA, GEMMA, PYTHON
from app.service.tools.tagged_arguments import ElementForm, ParameterTags

EXAMPLE_ID = "a1b2c3d4e"  # in a syntax, the part of a call's id that differs from answer to answer
CALLED_NAME = "\N{SYMBOL FOR SUBSTITUTE}"  # in a syntax, the name of the call once more
OBJECT_AHEAD = r"\s*\[?\s*(?=\{)"  # a call as an object that contains its name; several may form a list
_JSON = JsonForm()
_NAME = r"(?P<name>[A-Za-z0-9_.-]{1,64})"
_M3 = "]<]minimax[>["  # the token before each tag of MiniMax M3


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """The text around a call's name and arguments in training. `between` is None where only one call is possible.
    CALL_NUMBER and CALL_ORDINAL in it count the calls of an answer, CALLED_NAME is the name again. A header may also
    end as in `other_heads`: pairs of a text in the place of `before_name` and one in that of `before_arguments`."""

    before_first: str = ""
    before_name: str
    before_arguments: str
    after_arguments: str = ""
    between: str | None = None
    after_last: str = ""
    other_heads: tuple[tuple[str, str], ...] = ()

    @property
    def heads(self) -> tuple[tuple[str, str], ...]:
        """What stands before and behind a name, in each way of a header."""
        return ((self.before_name, self.before_arguments), *self.other_heads)

    def begin(self, name: str) -> str:
        return head_text(name, *self.heads[0])


def head_text(name: str, before_name: str, before_arguments: str) -> str:
    return f"{before_name}{name}{before_arguments.replace(CALLED_NAME, name)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a family writes its calls. Its templates contain all `marks`.

    A call begins with one of `openings`, or with the answer itself where that begins with one of the characters `bare`;
    then comes `header`, up to the arguments. A header without a name is followed by an object with the name. `fillers`
    may follow, and `listed` is how the next call of a list begins. `turn` is how a turn ends and the model's begins,
    for a template that leaves the latter out.

    Where calls begin with what text has too, a call `is_opened_by_name`: its opening goes up to the arguments.
    `answers` may stand in the place of the first header and begin no call.
    """

    name: str
    marks: tuple[str, ...]
    openings: tuple[str, ...]
    header: re.Pattern[str] = field(default=re.compile(OBJECT_AHEAD))
    separators: tuple[str, ...] = ()
    fillers: tuple[str, ...] = ()
    bare: str = ""
    listed: re.Pattern[str] = field(default=re.compile(r"\{"))
    arguments: ArgumentForm = _JSON
    turn: tuple[str, str] = ("", "")
    is_opened_by_name: bool = False
    answers: tuple[str, ...] = ()
    syntax: CallSyntax

    @property
    def tags(self) -> tuple[str, ...]:
        """Texts that may be special tokens of these models, and must be visible for calls to be parsed."""
        return (*self.openings, *self.separators, *self.fillers, *self.arguments.tags)

    def continued(self, prompt: str) -> str:
        """Return `prompt` with a turn of the model, where the template ends one behind results and begins none."""
        end_of_turn, begin_of_turn = self.turn
        return f"{prompt}{begin_of_turn}" if end_of_turn and prompt.endswith(end_of_turn) else prompt

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return `calls`, names with arguments, as models write them."""
        syntax = self.syntax
        one_by_one = [
            f"{numbered(syntax.begin(name), number)}{self.arguments.written(arguments)}{syntax.after_arguments}"
            for number, (name, arguments) in enumerate(calls)
        ]
        return f"{syntax.before_first}{(syntax.between or '').join(one_by_one)}{syntax.after_last}"


@lru_cache(64)  # a prompt asks for each of its messages; what is no format's is searched for 60 marks
def tool_format_of(chat_template: str) -> ToolFormat | None:
    """Return the format in which `chat_template` writes calls, None for an unknown one."""
    return next((known for known in _FORMATS if all(mark in chat_template for mark in known.marks)), None)


def _objects(
    name: str, opening: str, closing: str, *marks: str, keys: tuple[str, str] = ("name", "arguments")
) -> ToolFormat:
    """Return a format with a list of objects between `opening` and `closing`."""
    return ToolFormat(
        name=name,
        marks=marks,
        openings=(opening,),
        fillers=(closing,) if closing else (),
        syntax=CallSyntax(
            before_first=f"{opening}[",
            before_name=f'{{"{keys[0]}": "',
            before_arguments=f'", "{keys[1]}": ',
            after_arguments="}",
            between=", ",
            after_last=f"]{closing}",
        ),
    )


def _functions(name: str, opening: str, closing: str, *marks: str, has_lines: bool = True) -> ToolFormat:
    """Return a format with <function=…> and a tag for each parameter, inside other tags."""
    return ToolFormat(
        name=name,
        marks=("<function=", "<parameter=", *marks),
        openings=(opening, "<function="),
        header=re.compile(rf"\s*(?:<function=)?{_NAME}>"),
        fillers=(closing,),
        arguments=ParameterTags(
            "<parameter=",
            (">",),
            "</parameter>",
            "</function>",
            has_lines=has_lines,
            unclosed=f"\n</function>\n{closing}" if has_lines else "",
        ),
        syntax=CallSyntax(
            before_name=f"{opening}\n<function=", before_arguments=">\n", after_arguments=f"\n{closing}", between="\n"
        ),
    )


def _invocations(name: str, block: str, dsml: str, *marks: str) -> ToolFormat:
    """Return a format with <invoke name="…"> and a tag for each parameter inside a `block`, tags beginning with `dsml`;
    with that, an attribute of each parameter says whether it is a text."""
    opening, invoke = f"<{dsml}{block}>", f'<{dsml}invoke name="'
    return ToolFormat(
        name=name,
        marks=marks,
        openings=(opening, invoke),
        header=re.compile(rf'\s*(?:{re.escape(invoke)})?{_NAME}"\s*>'),
        fillers=(f"</{dsml}{block}>",),
        arguments=ParameterTags(
            f'<{dsml}parameter name="',
            ('"', ">"),
            f"</{dsml}parameter>",
            f"</{dsml}invoke>",
            kind=("string", "true", "false") if dsml else (),
            marks=(dsml,) if dsml else (),
        ),
        syntax=CallSyntax(
            before_first=f"{opening}\n",
            before_name=invoke,
            before_arguments='">\n',
            after_arguments="\n",
            between="",
            after_last=f"</{dsml}{block}>",
        ),
    )


def _python_calls(name: str, opening: str, closing: str, *marks: str, is_list: bool = True) -> ToolFormat:
    """Return a format with calls as Python writes them, in a list or one a line."""
    return ToolFormat(
        name=name,
        marks=marks,
        openings=(opening,),
        header=re.compile(rf"{OBJECT_AHEAD}|\s*\[?\s*{_NAME}\("),
        fillers=(closing,),
        listed=re.compile(r"\{|[A-Za-z_]"),
        arguments=PYTHON,
        syntax=CallSyntax(
            before_first=f"{opening}[" if is_list else opening,
            before_name="",
            before_arguments="(",
            between=", " if is_list else "\n",
            after_last=f"]{closing}" if is_list else closing,
        ),
    )


def _keyed(name: str, line: str, *marks: str) -> ToolFormat:
    """Return GLM's format, with a pair of tags for each parameter; `line` stands between tags."""
    key, value = ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>")
    return ToolFormat(
        name=name,
        marks=marks,
        openings=("<tool_call>",),
        header=re.compile(rf"\s*{_NAME}\s*(?=<)"),
        separators=(*key, *value),
        fillers=("</tool_call>",),
        arguments=ParameterTags(
            key[0], (key[1],), value[1], "</tool_call>", between=line, forgotten=f"{line}{value[0]}"
        ),
        syntax=CallSyntax(before_name="<tool_call>", before_arguments=line, between=line),
    )


_HERMES = ToolFormat(
    name="hermes",
    marks=("<tool_call>", '"arguments'),
    openings=("<tool_call>",),
    fillers=("</tool_call>",),
    syntax=CallSyntax(
        before_name='<tool_call>\n{"name": "',
        before_arguments='", "arguments": ',
        after_arguments="}\n</tool_call>",
        between="\n",
    ),
)

# The first whose marks are all in the template counts.
_FORMATS = (
    ToolFormat(  # app.service.generation.harmony reads these calls: they are messages of their own
        name="gpt-oss",
        marks=("<|channel|>",),
        openings=(
            "<|channel|>commentary to=functions.",
            "<|channel|>analysis to=functions.",
            "<|start|>assistant to=functions.",
        ),
        syntax=CallSyntax(
            before_name="<|channel|>commentary to=functions.",
            before_arguments=" <|constrain|>json<|message|>",
            other_heads=(
                ("<|channel|>analysis to=functions.", " <|constrain|>json<|message|>"),
                ("<|start|>assistant to=functions.", "<|channel|>commentary <|constrain|>json<|message|>"),
            ),
        ),
    ),
    ToolFormat(
        name="gemma-4",
        marks=("<|tool_call>call:",),
        openings=("<|tool_call>",),
        header=re.compile(rf"\s*(?:call:)?\s*{_NAME}\s*\{{"),
        fillers=("<tool_call|>", "<|tool_response>"),
        arguments=GEMMA,
        turn=("<turn|>\n", "<|turn>model\n"),
        syntax=CallSyntax(
            before_name="<|tool_call>call:", before_arguments="{", after_arguments="<tool_call|>", between=""
        ),
    ),
    ToolFormat(
        name="functiongemma",
        marks=("<start_function_call>", "<escape>"),
        openings=("<start_function_call>",),
        header=re.compile(rf"\s*(?:call:)?\s*{_NAME}\s*\{{"),
        fillers=("<end_function_call>", "<start_function_response>"),
        arguments=FUNCTION_GEMMA,
        syntax=CallSyntax(
            before_name="<start_function_call>call:",
            before_arguments="{",
            after_arguments="<end_function_call>",
            between="",
        ),
    ),
    _invocations("minimax-m2", "minimax:tool_call", "", "<minimax:tool_call>", "<invoke name="),
    ToolFormat(
        name="minimax-m3",
        marks=(_M3, '<invoke name="'),
        openings=(f"{_M3}<tool_call>", f'{_M3}<invoke name="'),
        header=re.compile(rf'\s*(?:{re.escape(_M3)}<invoke name=")?{_NAME}"\s*>'),
        fillers=(f"{_M3}</tool_call>",),
        arguments=ElementForm(_M3),
        syntax=CallSyntax(
            before_first=f"{_M3}<tool_call>\n",
            before_name=f'{_M3}<invoke name="',
            before_arguments='">',
            after_arguments="\n",
            between="",
            after_last=f"{_M3}</tool_call>",
        ),
    ),
    _invocations("deepseek-v4", "tool_calls", "｜DSML｜", "｜DSML｜", "tool_calls>"),
    _invocations("deepseek-v3.2", "function_calls", "｜DSML｜", "｜DSML｜", "function_calls>"),
    ToolFormat(
        name="kimi-k3",
        marks=("<|open|>", "open_tag('argument'"),
        openings=("<|open|>tools<|sep|>", '<|open|>call tool="'),
        header=re.compile(rf'\s*(?:<\|open\|>call tool=")?{_NAME}"[^<>]{{0,64}}<\|sep\|>'),
        fillers=("<|close|>tools<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
        arguments=ParameterTags(
            '<|open|>argument key="',
            ('"', "<|sep|>"),
            "<|close|>argument<|sep|>",
            "<|close|>call<|sep|>",
            between="",
            kind=("type", "string"),
            marks=("<|open|>", "<|close|>", "<|sep|>"),
        ),
        syntax=CallSyntax(
            before_first="<|open|>tools<|sep|>",
            before_name='<|open|>call tool="',
            before_arguments=f'" index="{CALL_ORDINAL}"<|sep|>',
            between="",
            after_last="<|close|>tools<|sep|>",
        ),
    ),
    _python_calls("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_list_start|>"),
    _python_calls("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", "<|im_start|>", "List of tools: ["),
    _python_calls("olmo-3", "<function_calls>", "</function_calls>", "<function_calls>", is_list=False),
    ToolFormat(
        name="minicpm-5",
        marks=('<function name="', '<param name="'),
        openings=('<function name="',),
        header=re.compile(rf'\s*{_NAME}"\s*>'),
        arguments=ParameterTags(
            '<param name="', ('"', ">"), "</param>", "</function>", between="", raw=("<![CDATA[", "]]>")
        ),
        syntax=CallSyntax(before_name='<function name="', before_arguments='">', between="\n"),
    ),
    ToolFormat(
        name="solar-open",
        marks=("<|tool_call:begin|>", "<|tool_call:args|>"),
        openings=("<|tool_calls|>", "<|tool_call:begin|>"),
        header=re.compile(
            rf"(?:<\|tool_call:begin\|>)?(?P<id>[A-Za-z0-9_-]{{1,64}})<\|tool_call:name\|>{_NAME}<\|tool_call:args\|>\s*(?=\{{)"
        ),
        separators=("<|tool_call:name|>", "<|tool_call:args|>"),
        fillers=("<|tool_call:end|>", "<|calls|>"),
        syntax=CallSyntax(
            before_first="<|tool_calls|>",
            before_name=f"<|tool_call:begin|>{EXAMPLE_ID}{CALL_NUMBER}<|tool_call:name|>",
            before_arguments="<|tool_call:args|>",
            after_arguments="<|tool_call:end|>",
            between="",
        ),
    ),
    ToolFormat(
        name="apertus",
        marks=("<|tools_prefix|>",),
        openings=("<|tools_prefix|>",),
        header=re.compile(rf'\s*\[?\s*\{{\s*"{_NAME}"\s*:\s*(?=\{{)'),
        fillers=("<|tools_suffix|>",),
        syntax=CallSyntax(
            before_first="<|tools_prefix|>[",
            before_name='{"',
            before_arguments='": ',
            after_arguments="}",
            between=", ",
            after_last="]<|tools_suffix|>",
        ),
    ),
    ToolFormat(
        name="gigachat-3.1",
        marks=("<|function_call|>",),
        openings=("<|function_call|>",),
        syntax=CallSyntax(
            before_name='<|function_call|>{"name": "', before_arguments='", "arguments": ', after_arguments="}"
        ),
    ),
    ToolFormat(  # the call is a message of its own, of a role of its own
        name="gigachat-3",
        marks=("<|role_sep|>", "<|message_sep|>", "function call"),
        openings=("<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>"),
        separators=("<|role_sep|>", "<|message_sep|>"),
        fillers=("<|message_sep|>",),
        syntax=CallSyntax(
            before_name='<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "',
            before_arguments='", "arguments": ',
            after_arguments="}",
            other_heads=(('function call<|role_sep|>\n{"name": "', '", "arguments": '),),
        ),
    ),
    ToolFormat(  # each message has a recipient: the user, the model itself, or a tool
        name="muse-glimmer",
        marks=("<atem:function_calls>", "<|eom|>"),
        openings=("<|start|>assistant to=",),
        header=re.compile(
            rf'[^<>]{{1,100}}<\|message\|>\s*(?:<atem:function_calls>\s*)?<atem:invoke name="{_NAME}"\s*>'
        ),
        separators=("<atem:function_calls>", "<atem:invoke", "<atem:parameter", "<|start|>", "<|message|>", "<|eom|>"),
        fillers=("</atem:function_calls>", "<|eom|>", "<|eot|>"),
        arguments=ParameterTags('<atem:parameter name="', ('"', ">"), "</atem:parameter>", "</atem:invoke>"),
        answers=("<|start|>assistant to=user<|message|>", "<|start|>assistant to=self<|message|>"),
        syntax=CallSyntax(
            before_name="<|start|>assistant to=",
            before_arguments=f'<|message|><atem:function_calls>\n<atem:invoke name="{CALLED_NAME}">\n',
            after_arguments="\n</atem:function_calls>",
            between="<|eom|>",
        ),
    ),
    ToolFormat(  # the same with a line for each recipient; text has such signs too, as the prompts of Python
        name="functionary-3.2",
        marks=(">>>all", ">>>${recipient}"),
        openings=(">>>",),
        header=re.compile(rf"{_NAME}\n\s*(?=\{{)"),
        is_opened_by_name=True,
        answers=(">>>all\n",),
        syntax=CallSyntax(before_name=">>>", before_arguments="\n", between=""),
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
        openings=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>"),
        header=re.compile(
            rf"\s*(?:<\|tool_call_begin\|>)?\s*(?P<id>{_NAME}(?::\d+)?)\s*<\|tool_call_argument_begin\|>\s*(?=\{{)"
        ),
        separators=("<|tool_call_argument_begin|>",),
        fillers=("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
        syntax=CallSyntax(
            before_first="<|tool_calls_section_begin|>",
            before_name="<|tool_call_begin|>functions.",
            before_arguments=f":{CALL_NUMBER}<|tool_call_argument_begin|>",
            after_arguments="<|tool_call_end|>",
            between="",
            after_last="<|tool_calls_section_end|>",
        ),
    ),
    _objects("command-r7b", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_ACTION|>", keys=("tool_name", "parameters")),
    ToolFormat(
        name="command-r-plus",
        marks=("Action:", "```json", "tool_name", "<|CHATBOT_TOKEN|>"),
        openings=("Action:\n```json", "Action: ```json", "Action:```json"),
        fillers=("```",),
        # By a call of this name the model says that it answers itself; clients offer it as a tool (source: the model
        # card of Command R+, which has an underscore, and the template, which has a dash).
        answers=tuple(
            f'Action:\n```json\n[\n    {{\n        "tool_name": "{name}'
            for name in ("directly_answer", "directly-answer")
        ),
        syntax=CallSyntax(
            before_first="Action:\n```json\n[\n",
            before_name='    {\n        "tool_name": "',
            before_arguments='",\n        "parameters": ',
            after_arguments="\n    }",
            between=",\n",
            after_last="\n]```",
        ),
    ),
    ToolFormat(
        name="mistral",
        marks=("[TOOL_CALLS]", "[ARGS]"),
        openings=("[TOOL_CALLS]",),
        header=re.compile(rf"{OBJECT_AHEAD}|\s*{_NAME}(?:\[CALL_ID\](?P<id>[A-Za-z0-9]{{1,64}}))?\[ARGS\]\s*(?=\{{)"),
        separators=("[CALL_ID]", "[ARGS]"),
        syntax=CallSyntax(before_name="[TOOL_CALLS]", before_arguments="[ARGS]", between=""),
    ),
    _objects("mistral-list", "[TOOL_CALLS]", "", "[TOOL_CALLS]"),
    _objects("firefunction", "functools", "", "functools["),
    _objects("granite-3", "<|tool_call|>", "", "<|tool_call|>"),
    _objects("nemotron-nano", "<TOOLCALL>", "</TOOLCALL>", "<TOOLCALL>"),
    _keyed("glm-4.7", "", "</arg_key><arg_value>", "<tool_call>"),
    _keyed("glm", "\n", "<arg_key>", "<tool_call>"),
    ToolFormat(
        name="hunyuan-3",
        marks=("<arg_key{}>", "<tool_sep{}>", ":opensource"),
        openings=("<tool_calls:opensource>", "<tool_call:opensource>"),
        header=re.compile(rf"\s*(?:<tool_call:opensource>)?\s*{_NAME}\s*<tool_sep:opensource>"),
        separators=("<tool_sep:opensource>",),
        fillers=("</tool_calls:opensource>",),
        arguments=ParameterTags(
            "<arg_key:opensource>",
            ("</arg_key:opensource>\n", "<arg_value:opensource>"),
            "</arg_value:opensource>",
            "</tool_call:opensource>",
        ),
        syntax=CallSyntax(
            before_first="<tool_calls:opensource>\n",
            before_name="<tool_call:opensource>",
            before_arguments="<tool_sep:opensource>\n",
            after_arguments="\n",
            between="",
            after_last="</tool_calls:opensource>",
        ),
    ),
    _functions("seed-oss", "<seed:tool_call>", "</seed:tool_call>", "<seed:tool_call>", has_lines=False),
    _functions("qwen3-coder", "<tool_call>", "</tool_call>", "<tool_call>"),
    ToolFormat(
        name="functionary-3.1",
        marks=("<function=", "</function>"),
        openings=("<function=",),
        header=re.compile(rf"\s*{_NAME}>\s*(?=\{{)"),
        fillers=("</function>",),
        syntax=CallSyntax(before_name="<function=", before_arguments=">", after_arguments="</function>", between=""),
    ),
    _objects("tool-calls-list", "<tool_calls>", "</tool_calls>", "<tool_calls>", '"arguments'),
    _HERMES,
    _objects("phi-4-mini", "<|tool_call|>", "<|/tool_call|>", "<|tool|>", "<|/tool|>"),
    ToolFormat(
        name="llama-4",
        marks=("<|header_start|>", '{"name": ', '"parameters": '),
        openings=("<|python_start|>",),
        header=re.compile(rf"{OBJECT_AHEAD}|\s*\[?\s*{_NAME}\("),
        fillers=("<|python_end|>",),
        bare="[{",
        listed=re.compile(r"\{|[A-Za-z_]"),
        arguments=PYTHON,
        syntax=CallSyntax(before_first="[", before_name="", before_arguments="(", between=", ", after_last="]"),
    ),
    ToolFormat(
        name="llama-3",
        marks=("<|start_header_id|>", '{"name": ', '"parameters": '),
        openings=("<|python_tag|>",),
        bare="{",
        syntax=CallSyntax(
            before_name='{"name": "',
            before_arguments='", "parameters": ',
            after_arguments="}",
            other_heads=(('{"type": "function", "name": "', '", "parameters": '),),
        ),
    ),
)

GENERIC = _HERMES  # for models of an unknown format
