"""One turn of a conversation in any dialect: messages and tools to a prompt, and the prompt to a generation.

Owns how the model learns of tools: by its chat template if that knows them and writes calls in a known form, else by
instructions in a message, with earlier calls and results as plain messages. Uses no role that the client did not use:
templates refuse unknown ones. Independent of HTTP and of dialects.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from app.common.answer_text import NO_REASONING, ReasoningTags, reasoning_tags_of
from app.common.event_log import log_event
from app.engine.grammar.json_grammar import JsonFormat
from app.engine.quoted import Spans
from app.engine.request import MediaInput, Request
from app.protocol.errors import NoTemplateError, RequestError
from app.service.generation.branches import branches_of
from app.service.generation.content_forms import in_parts
from app.service.generation.earlier_turns import REASONING, messages_for
from app.service.generation.generation import Answer, Generation
from app.service.generation.harmony import HARMONY_TAGS
from app.service.generation.media import NO_MEDIA, PromptMedia
from app.service.generation.quoted_content import QuoteMarks
from app.service.generation.reasoning_budget import reasoning_budget
from app.service.generation.thinking import DEFAULT_THINKING, Thinking
from app.service.generation.unreadable_content import notice_of_notes
from app.service.models.served_model import ServedModel
from app.service.tools.call_grammar import BoundCalls, answer_grammar, bound_calls
from app.service.tools.formats import GENERIC, ToolFormat, tool_format_of
from app.service.tools.parser import ToolCalling
from app.service.tools.tool import NO_TOOLS, ToolOptions, tool_for_template

Message = dict[str, Any]
Messages = Sequence[Message]

_Render: TypeAlias = Callable[[Messages, Sequence[Mapping[str, Any]] | None], Awaitable[str]]

_INTRODUCTION = "You can call functions. These are described in JSON, one a line:"
_FORM = "To call one, answer in exactly this form, with its name and its arguments:"
_ELSE = "Call a function only where it helps; answer in plain words otherwise. The results come with the next message."


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text for the engine; `add_special` is False when the text begins with the model's first token already.

    `tags` mark the model's reasoning, `tool_calling` its calls of the tools it was offered, as in its `chat_template`.
    Other prompts may leave the text at its `branches`, in characters. Its `quoted` parts are what tools returned.
    """

    text: str
    add_special: bool
    tags: ReasoningTags = NO_REASONING
    tool_calling: ToolCalling | None = None
    branches: tuple[int, ...] = ()
    quoted: Spans = ()
    chat_template: str = ""

    @property
    def visible_tags(self) -> tuple[str, ...]:
        """The tags of reasoning and calls, which may be special tokens."""
        if self.tags.has_channels:
            return HARMONY_TAGS
        return (*self.tags.visible, *(self.tool_calling.tool_format.tags if self.tool_calling else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """`messages` in the form of chat templates, to be answered by `n_answers` of `request`, which has no prompt yet.

    Pictures and sounds stand in the messages as markers of `media`.
    Reasoning of earlier answers is `reasoning_content` of their messages. Unless `separates_reasoning`, reasoning is
    part of the text. With `continues` an answer continues the last message, if that is the assistant's. An answer is
    JSON of `json_format`, if that is given, after reasoning; with tools it is that or calls.

    Raises RequestError for a grammar of the request together with tools or a format.
    """

    messages: Messages
    request: Request
    tools: ToolOptions = NO_TOOLS
    json_format: JsonFormat | None = None
    n_answers: int = 1
    thinking: Thinking = DEFAULT_THINKING
    separates_reasoning: bool = True
    continues: bool = False
    media: PromptMedia = NO_MEDIA

    def __post_init__(self) -> None:
        if self.request.sampling.grammar and (self.tools.tools or self.json_format):
            other = "tools" if self.tools.tools else "a schema of the answer (response_format)"
            raise RequestError(f"Both a grammar and {other} are given.", "Send one of them.")

    @property
    def begun(self) -> str:
        """The text that the answer continues."""
        last = self.messages[-1]
        is_answer = last["role"] == "assistant" and "tool_calls" not in last
        return (last["content"] or "") if self.continues and is_answer else ""

    @property
    def is_verbatim(self) -> bool:
        """Whether a grammar binds the text, so that what looks like a tag in it is none."""
        return bool(self.request.sampling.grammar or self.json_format)

    def requests(
        self, prompt: Prompt, media: tuple[MediaInput, ...] = (), calls: BoundCalls | None = None
    ) -> tuple[Request, ...]:
        """Return the engine's requests, with `prompt`, the `media` whose markers it has, and what binds its calls.

        That is `calls` if it is known already. Raises RequestError for what cannot be enforced.
        """
        calls = calls or self.bound_calls(prompt)
        may_call = prompt.tool_calling is not None
        budget = reasoning_budget(prompt.tags, prompt.chat_template, self.thinking, may_call=may_call)
        request = replace(
            self.request,
            prompt=prompt.text,
            media=media,
            add_special=prompt.add_special,
            visible_tags=prompt.visible_tags,
            branches=prompt.branches,
            quoted=prompt.quoted,
            reasoning=None if self.request.sampling.grammar else budget,  # that grammar has no rules for reasoning
        )
        if calls is not None:
            request = replace(request, sampling=replace(request.sampling, calls=calls.rules))
        elif self.json_format:
            grammar = answer_grammar(self.json_format, prompt.tags)
            request = replace(request, sampling=replace(request.sampling, grammar=grammar))
        return request.variants(self.n_answers)

    def bound_calls(self, prompt: Prompt) -> BoundCalls | None:
        """Return what binds the calls of an answer, None without tools. Raises RequestError where that is too large."""
        calling = prompt.tool_calling
        return None if calling is None else bound_calls(calling, prompt.tags, self.json_format)


async def chat_generation(model: ServedModel, turn: ChatTurn) -> Generation:
    """Return the generation of `turn` on `model`. Raises RequestError where its template refuses the messages."""
    prompt = await prompt_of(model, turn)
    media = await turn.media.inputs(prompt.text)
    prompt = replace(prompt, branches=await _branches(model, turn, prompt))
    calls = None
    if prompt.tool_calling is not None:  # a second for 200 tools that were not seen before
        calls = await asyncio.to_thread(turn.bound_calls, prompt)
    requests = turn.requests(prompt, media, calls)
    model.record.notices += calls.notices if calls is not None else ()
    if notice := notice_of_notes(turn.messages, turn.media.senses):
        model.record.notices.append(notice)

    def prefill_next(answer: Answer) -> None:
        if answer.calls or turn.begun:  # a tool answers next, or the message is not whole
            return
        said = {"role": "assistant", "content": answer.text}
        if any(REASONING in message for message in turn.messages):  # this client sends it back
            said[REASONING] = answer.reasoning
        history = [*turn.messages, said]

        async def prompt_after(text: str) -> str:
            return (await _prompt(model, turn, [*history, {"role": "user", "content": text}])).text

        model.prefill_ahead(requests[0], prompt_after)

    return Generation(
        requests, prompt.tags, prompt.tool_calling, prefill_next, turn.separates_reasoning, turn.is_verbatim
    )


async def prompt_of(model: ServedModel, turn: ChatTurn) -> Prompt:
    """Return the prompt of `turn`, up to where the answer goes on. Raises RequestError as the template does."""
    if turn.begun:
        return _in_text(await _prompt(model, turn, turn.messages[:-1]), turn.begun)
    prompt = await _prompt(model, turn, turn.messages)
    is_in_reasoning = prompt.tags.has_channels or prompt.tags.is_open
    has_grammar = bool(turn.request.sampling.grammar)  # of the text: it has no rules for reasoning
    return _in_text(prompt) if has_grammar and is_in_reasoning else prompt


async def n_prompt_tokens(model: ServedModel, turn: ChatTurn) -> int:
    """Return how many tokens the prompt of `turn` has. Raises as `prompt_of`."""
    prompt = await prompt_of(model, turn)
    media = await turn.media.inputs(prompt.text)
    return await model.n_tokens(prompt.text, add_special=prompt.add_special, media=media)


async def _branches(model: ServedModel, turn: ChatTurn, prompt: Prompt) -> tuple[int, ...]:
    """Return where other prompts may leave this one, if the model is not known to need no such place."""
    facts = model.engine.status.facts
    if facts is not None and facts.truncation.is_unlimited:
        return ()

    async def render(messages: Messages) -> str:
        return (await _prompt(model, turn, messages)).text

    return await branches_of(prompt.text, turn.messages, render)


def _in_text(prompt: Prompt, begun: str = "") -> Prompt:
    """Return `prompt` with the answer's text `begun`, so that reasoning is over."""
    closing = prompt.tags.closing if prompt.tags.is_open else ""
    tags = replace(prompt.tags, is_open=False, is_past=True)
    return replace(prompt, text=f"{prompt.text}{closing}{tags.before_text}{begun}", tags=tags)


async def _prompt(model: ServedModel, turn: ChatTurn, messages: Messages) -> Prompt:
    """Return `messages` in the form that the model was trained on."""
    try:
        return await _quoting_prompt(model, turn, messages, QuoteMarks())
    except ValueError:  # no known template does so; better a prompt without quotes than one with torn marks
        log_event("service", f"{model.ref.id}: its chat template changes what tools return; it is not kept apart")
        return await _quoting_prompt(model, turn, messages, QuoteMarks(is_used=False))


async def _quoting_prompt(model: ServedModel, turn: ChatTurn, messages: Messages, marks: QuoteMarks) -> Prompt:
    file, tools = model.file, turn.tools
    if not file.chat_template and file.task != "text":
        raise RequestError(f"{model.ref.id} only embeds or ranks texts; it cannot chat.", "Use a chat model.")
    if not file.chat_template:
        raise NoTemplateError(f"{model.ref.id} has no chat template.", "Use /v1/completions with it.")

    takes_only_parts = await model.content_forms.takes_only_parts(file, model.renderer)

    async def render(messages: Messages, functions: Sequence[Mapping[str, Any]] | None) -> str:
        tokens = {"bos_token": file.bos_token, "eos_token": file.eos_token}
        variables = {**tokens, "tools": functions, **turn.thinking.for_template(file.chat_template)}
        sent = in_parts(messages) if takes_only_parts else messages
        return await model.renderer.render(file.chat_template, sent, **variables)

    messages = messages_for(file.chat_template, file.recipe.begin(marks.marked(messages)))
    messages = turn.thinking.in_messages(messages, file.chat_template)
    known = tool_format_of(file.chat_template)
    tool_format = known or GENERIC
    if known is None:
        messages = _as_plain_messages(messages, tool_format)
        text = await render(_with_instructions(messages, tool_format, tools, marks), None)
    else:
        if "tool_calls" not in file.chat_template:
            messages = _with_calls_as_text(messages, tool_format)
        text = await _with_tools(render, messages, tools, marks)
        if not all(tool.name in text for tool in tools.tools):  # some templates that write calls list no tools
            text = await render(_with_instructions(messages, tool_format, tools, marks), None)
        text = tool_format.continued(text)
    text, quoted = marks.unmarked(text)
    add_special = not (file.bos_token and text.startswith(file.bos_token))
    tool_calling = ToolCalling(tool_format, tools) if tools.tools else None
    tags = reasoning_tags_of(file.chat_template, text)
    return Prompt(text, add_special, tags, tool_calling, quoted=quoted, chat_template=file.chat_template)


async def _with_tools(render: _Render, messages: Messages, options: ToolOptions, marks: QuoteMarks) -> str:
    """Return the prompt of `messages` with tools, "" where the template fails with their schemas and not without."""
    if not options.tools:
        return await render(messages, None)
    try:
        return await render(messages, [marks.marked_tool(tool_for_template(tool)) for tool in options.tools])
    except RequestError:
        await render(messages, None)  # a failure of the messages is the client's to know
        return ""


def _with_instructions(
    messages: Messages, tool_format: ToolFormat, options: ToolOptions, marks: QuoteMarks
) -> list[Message]:
    """Return `messages` with instructions in the system message, or else before the first message."""
    if not options.tools:
        return list(messages)
    definitions = [marks.marked_tool(tool_for_template(tool)["function"]) for tool in options.tools]
    functions = [json.dumps(definition, ensure_ascii=False) for definition in definitions]
    form = tool_format.written([("NAME", {"ARGUMENT": "VALUE"})])
    text = "\n\n".join(["\n".join((_INTRODUCTION, *functions)), f"{_FORM}\n{form}", _ELSE])
    first, *others = messages
    parts = (first["content"] or "", text) if first["role"] == "system" else (text, first["content"] or "")
    return [{**first, "content": "\n\n".join(filter(None, parts))}, *others]


def _with_calls_as_text(messages: Messages, tool_format: ToolFormat) -> list[Message]:
    """Return `messages` with calls in their content, for templates that know results only, as LFM2's."""
    return [
        {
            **{key: value for key, value in message.items() if key != "tool_calls"},
            "content": (message["content"] or "") + tool_format.written(_calls_of(message)),
        }
        if "tool_calls" in message
        else message
        for message in messages
    ]


def _calls_of(message: Message) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of `message`, names with arguments."""
    functions = [call["function"] for call in message["tool_calls"]]
    return [(function["name"], function["arguments"]) for function in functions]


def _as_plain_messages(messages: Messages, tool_format: ToolFormat) -> list[Message]:
    """Return `messages` with calls in the model's format and results in messages of the user."""
    plain: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            _add_result(plain, message["content"] or "")
        elif "tool_calls" in message:
            text = "\n".join(filter(None, (message["content"], tool_format.written(_calls_of(message)))))
            plain.append({"role": message["role"], "content": text})
        else:
            plain.append(message)
    return plain


def _add_result(plain: list[Message], content: str) -> None:
    """Add the result of a call, to the message of the result before it, since roles have to alternate."""
    result = f"<tool_response>\n{content}\n</tool_response>"
    if plain and plain[-1].get("role") == "user" and plain[-1]["content"].endswith("</tool_response>"):
        plain[-1] = {"role": "user", "content": f"{plain[-1]['content']}\n{result}"}
    else:
        plain.append({"role": "user", "content": result})
