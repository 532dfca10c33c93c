"""The messages and tools of a turn as the prompt of its model's chat template.

Owns how the model learns of tools: by its template if that knows them and writes calls in a known form, else by
instructions in a message, with calls and results as plain text; and under which name a template reads reasoning.

What tools and their servers say is marked, so that it cannot be taken for turns of the chat: whoever writes a file or a
page that a tool reads, or a server that describes its tools, could write the special tokens of the model's template,
such as those that end a turn, and speak as the system or the user. A template prints the marks with the text; a mark
has a number that nobody can guess. What is marked is tokenized as text (`app.engine.quoted`).
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from app.common.answer_text import HARMONY
from app.common.event_log import log_event
from app.engine.quoted import Spans
from app.protocol.chat import Message, Tool
from app.protocol.errors import NoTemplateError, RequestError
from app.service.generation.message_order import (
    PARAGRAPH_BREAK,
    PROBED_TOOL,
    TAKES_ALL,
    TemplateOrder,
    in_order,
    is_plain,
    is_taken,
    with_whole_calls,
)
from app.service.generation.thinking import DEFAULT_THINKING, Thinking
from app.service.models.served_model import ServedModel
from app.service.tools.formats import GENERIC, ToolFormat, tool_format_of
from app.service.tools.parser import NO_TOOLS, ToolOptions, tool_for_template

_INTRODUCTION = "You can call functions. These are described in JSON, one a line:"
_FORM = "To call one, answer in exactly this form, with its name and its arguments:"
_ELSE = "Call a function only where it helps; answer in plain words otherwise. The results come with the next message."
_PROBED_TOOLS = ToolOptions(tools=(Tool(PROBED_TOOL, "", {"type": "object", "properties": {"a": {"type": "string"}}}),))
# What may be the text of special tokens: <|im_end|>, </s>, <end_of_turn>, [INST], <｜User｜>.
_SUSPECT = re.compile(r"<[^<>\n]{1,80}>|\[/?[A-Za-z_]{2,40}\]|<[|｜]|[|｜]>")
# Code points that are no characters, for use within a program.
_BEGIN, _END, _CLOSE = "\ufdd0", "\ufdd1", "\ufdd2"

# The names of reasoning in a message; the first that a template reads counts (source: the templates of Qwen3, GLM 4.5,
# MiniMax M2, Kimi K2; of GPT-OSS, LFM2.5; of Solar Open).
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
_REASONING_IN_PARTS = re.compile(r"""\[['"]type['"]\]\s*==\s*['"]thinking['"]""")  # Ministral 3, Magistral


class QuoteMarks:
    """The marks of one prompt; without `is_used` there are none."""

    def __init__(self, *, is_used: bool = True) -> None:
        self._is_used = is_used
        self._number = secrets.token_hex(8)
        self._marks = (f"{_BEGIN}{self._number}{_CLOSE}", f"{_END}{self._number}{_CLOSE}")
        # Some templates print values as Python or JSON do, which escape these code points.
        begin, end, close = (rf"(?:{code}|\\+u{ord(code):x})" for code in (_BEGIN, _END, _CLOSE))
        self._either = re.compile(f"(?:({begin})|{end}){self._number}{close}")

    def marked(self, messages: Iterable[Message]) -> list[Message]:
        """Return `messages` with marks around what tools returned, within its blanks, which templates may strip."""
        return [
            replace(message, content=self._marked(message.content)) if message.role == "tool" else message
            for message in messages
        ]

    def marked_values(self, value: Any) -> Any:
        """Return JSON data with marks around texts that may have special tokens: servers of others describe their
        tools, and a model may have copied arguments of a call from a result."""
        return self._marked_values(value) if self._is_used else value

    def _marked_values(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._marked_values(key): self._marked_values(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked_values(each) for each in value]
        return self._marked(value) if isinstance(value, str) and _SUSPECT.search(value) else value

    def _marked(self, content: str) -> str:
        text = content.strip()
        if not self._is_used or not text:
            return content
        place = content.index(text)
        begin, end = self._marks
        return f"{content[:place]}{begin}{text}{end}{content[place + len(text) :]}"

    def unmarked(self, prompt: str) -> tuple[str, Spans]:
        """Return a rendered prompt without the marks, and the parts that they were around; a mark
        without the other one is dropped. Raises ValueError where a template changed a mark."""
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        place = n_characters = 0
        begun: int | None = None
        for mark in self._either.finditer(prompt):
            pieces.append(prompt[place : mark.start()])
            n_characters += len(pieces[-1])
            place = mark.end()
            if mark[1]:
                begun = n_characters
            elif begun is not None:
                spans.append((begun, n_characters))
                begun = None
        text = "".join([*pieces, prompt[place:]])
        if self._number in text:
            raise ValueError("a mark is not as it was")
        return text, tuple(spans)


_NO_MARKS = QuoteMarks(is_used=False)


async def write_prompt(
    model: ServedModel,
    messages: Sequence[Message],
    tools: ToolOptions,
    thinking: Thinking,
    *,
    opens_answer: bool = True,
) -> tuple[str, Spans]:
    """Return the prompt of `messages`, and where in it stands what tools returned. It ends with what begins an answer,
    if it `opens_answer`. Raises RequestError where the
    template refuses them, and NoTemplateError."""
    if not model.file.chat_template and model.file.task != "text":
        does = "says texts aloud" if model.file.task == "speech" else "embeds or ranks texts"
        raise RequestError(f"{model.ref.id} only {does}; it cannot chat.", "Use a chat model.")
    if not model.file.chat_template:
        raise NoTemplateError(f"{model.ref.id} has no chat template.", "Use /v1/completions with it.")
    messages = model.file.recipe.begin(messages)
    try:
        return await _written(model, messages, tools, thinking, QuoteMarks(), opens_answer)
    except ValueError:  # no known template does so; better a prompt without quotes than one with torn marks
        log_event("service", f"{model.ref.id}: its chat template changes what tools return; it is not kept apart")
        return await _written(model, messages, tools, thinking, _NO_MARKS, opens_answer)


async def _written(
    model: ServedModel,
    messages: Sequence[Message],
    tools: ToolOptions,
    thinking: Thinking,
    marks: QuoteMarks,
    opens_answer: bool,
) -> tuple[str, Spans]:
    takes_only_parts = await model.template_probe.takes_only_parts(model.file, model.renderer)
    made = partial(TemplateWriter, model, takes_only_parts)
    writer, probing = made(tools, thinking, marks, opens_answer), made(_PROBED_TOOLS if tools.tools else NO_TOOLS)

    async def render(messages: Sequence[Message]) -> str:
        return await probing.write(probing.in_known_roles(messages))

    if not tools.tools and is_plain(messages):  # nearly every chat begins so: one probe is tried and not fourteen
        order = await model.template_probe.plain_order_of(model.file, render)
    else:
        order = await model.template_probe.order_of(
            model.file, render, has_tools=bool(tools.tools), has_calls=probing.knows_calls
        )

    def sent(order: TemplateOrder) -> list[Message]:
        whole = with_whole_calls(marks.marked(messages), order)
        return in_order(writer.in_known_roles(whole, takes_calls=order.takes_calls), order)

    ordered, as_it_is = sent(order), sent(TAKES_ALL)
    if ordered != as_it_is and await is_taken(as_it_is, render):  # an order says what a template takes everywhere
        ordered = as_it_is
    text = await writer.write(ordered)
    return marks.unmarked(writer.tool_format.continued(text) if writer.knows_calls else text)


@dataclass(frozen=True, slots=True)
class TemplateWriter:
    """Writes messages with the template of `model`; of content `takes_only_parts` tells whether it prints no text."""

    model: ServedModel
    takes_only_parts: bool
    tools: ToolOptions = NO_TOOLS
    thinking: Thinking = DEFAULT_THINKING
    marks: QuoteMarks = _NO_MARKS
    opens_answer: bool = True

    @property
    def template(self) -> str:
        return self.model.file.chat_template

    @property
    def knows_calls(self) -> bool:
        return tool_format_of(self.template) is not None

    @property
    def tool_format(self) -> ToolFormat:
        return tool_format_of(self.template) or GENERIC

    def in_known_roles(self, messages: Sequence[Message], *, takes_calls: bool = True) -> list[Message]:
        """Return `messages` with calls, and results where the template knows no calls or does not take them, as plain
        text."""
        takes_calls = takes_calls and self.knows_calls
        if takes_calls and "tool_calls" in self.template:
            return list(messages)
        plain: list[Message] = []
        for message in messages:
            if message.calls:
                called = self.tool_format.written(
                    [(call.name, self.marks.marked_values(call.arguments_object() or {})) for call in message.calls]
                )
                if takes_calls:  # LFM2's knows results only
                    plain.append(replace(message, content=message.content + called, calls=()))
                else:
                    plain.append(Message(message.role, "\n".join(filter(None, (message.content, called)))))
            elif message.role == "tool" and not takes_calls:
                result = f"<tool_response>\n{message.content}\n</tool_response>"
                if plain and plain[-1].role == "user" and plain[-1].content.endswith("</tool_response>"):
                    plain[-1] = Message("user", f"{plain[-1].content}\n{result}")
                else:
                    plain.append(Message("user", result))
            else:
                plain.append(message)
        return plain

    async def write(self, messages: Sequence[Message]) -> str:
        """Return the prompt of `messages`, with the tools or instructions for them. Raises RequestError."""
        messages = self.thinking.in_messages(messages, self.template)
        if not self.tools.tools:
            return await self._render(messages, None)
        functions = [self.marks.marked_values(tool_for_template(tool)) for tool in self.tools.tools]
        if self.knows_calls:
            text = ""
            try:
                text = await self._render(messages, functions)
            except RequestError:
                await self._render(messages, None)  # a failure of the messages is the client's to know
                described = [{**each, "function": with_parameters_described(each["function"])} for each in functions]
                with contextlib.suppress(RequestError):  # some fail with a schema, as Hermes 2 Pro with null for a type
                    text = await self._render(messages, described)
            if all(tool.name in text for tool in self.tools.tools):  # some templates that write calls list no tools
                return text
        definitions = [json.dumps(function["function"], ensure_ascii=False) for function in functions]
        form = self.tool_format.written([("NAME", {"ARGUMENT": "VALUE"})])
        text = PARAGRAPH_BREAK.join(["\n".join((_INTRODUCTION, *definitions)), f"{_FORM}\n{form}", _ELSE])
        first, *others = messages
        parts = (first.content, text) if first.role == "system" else (text, first.content)
        return await self._render([replace(first, content=PARAGRAPH_BREAK.join(filter(None, parts))), *others], None)

    async def _render(self, messages: Sequence[Message], functions: Sequence[Mapping[str, Any]] | None) -> str:
        file = self.model.file
        variables: dict[str, Any] = {"bos_token": file.bos_token, "eos_token": file.eos_token, "tools": functions}
        variables |= self.thinking.for_template(self.template)
        sent = [self._message(message) for message in messages]
        if _reads("tool_responses", self.template) and not _reads("tool_call_id", self.template):
            sent = with_results_in_calls(sent)
        if self.takes_only_parts:
            sent = in_parts(sent)
        opens_answer = self.opens_answer
        return await self.model.renderer.render(self.template, sent, add_generation_prompt=opens_answer, **variables)

    def _message(self, message: Message) -> dict[str, Any]:
        """Return a message as the template reads it; reasoning that it does not read is left out."""
        template = self.template
        if HARMONY.opens_in(template):
            if message.calls:  # it refuses text beside reasoning and a call
                thoughts = PARAGRAPH_BREAK.join(filter(None, (message.reasoning, message.content)))
                message = replace(message, content="", reasoning=thoughts)
            return template_message(message, "thinking", self.marks)
        if _REASONING_IN_PARTS.search(template) and not _reads(_REASONING_NAMES[0], template):
            made = template_message(message, "", self.marks)
            if message.reasoning:
                text = [{"type": "text", "text": message.content}] if message.content else []
                made["content"] = [{"type": "thinking", "thinking": message.reasoning}, *text]
            return made
        name = next((name for name in _REASONING_NAMES if _reads(name, template)), "")
        return template_message(message, name, self.marks)


def template_message(
    message: Message, reasoning_name: str = _REASONING_NAMES[0], marks: QuoteMarks = _NO_MARKS
) -> dict[str, Any]:
    """Return a message in the form of chat templates (source: transformers, utils/chat_template_utils.py)."""
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        made["content"] = message.content or None
        made["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": marks.marked_values(call.arguments_object() or {})},
            }
            for call in message.calls
        ]
    if message.role == "tool":
        named = {"name": message.name, "tool_call_id": message.call_id}
        made |= {name: value for name, value in named.items() if value}
    if reasoning_name and message.reasoning:
        made[reasoning_name] = message.reasoning
    return made


def with_parameters_described(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return `function` with what Command R+'s template needs of each parameter: a description, the `items` of an array
    and the `additionalProperties` of an object, empty where the schema has none."""

    def described(schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        made = {"description": "", **schema}
        for kind, keyword in (("array", "items"), ("object", "additionalProperties")):
            if schema.get("type") == kind:
                made[keyword] = described(schema.get(keyword, {}))
        return made

    parameters = function["parameters"]
    properties = parameters.get("properties", {})
    if not isinstance(properties, Mapping):
        return dict(function)
    known = {"properties": {name: described(value) for name, value in properties.items()}}
    return {**function, "parameters": {"required": [], **parameters, **known}}


def with_results_in_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `messages` with each result in the message of its call, and the text after it there, too. The first
    templates of Gemma 4 read results only so, and print a message of the role "tool" as a turn that the model was never
    trained with (source: google/gemma-4-31B-it, chat_template.jinja as released and as corrected)."""
    made: list[dict[str, Any]] = []
    for message in messages:
        last = made[-1] if made else {}
        if message["role"] == "tool" and last.get("tool_calls"):
            names = {call["id"]: call["function"]["name"] for call in last["tool_calls"]}
            name = names.get(message.get("tool_call_id"), message.get("name", "unknown"))
            last.setdefault("tool_responses", []).append({"name": name, "response": message["content"]})
        elif message["role"] == "assistant" and last.get("tool_responses") and "tool_calls" not in message:
            last["content"] = "".join(filter(None, (last["content"], message["content"])))
        else:
            made.append(dict(message))
    return made


def in_parts(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `messages` with each text as a list of one part."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


@lru_cache(256)  # asked up to five times for each message: a template of 10 KB takes 0.1 ms to search
def _reads(name: str, chat_template: str) -> bool:
    return re.search(rf"""(?:\.|['"]){name}\b""", chat_template) is not None
