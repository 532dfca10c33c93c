"""Conversations as sequences of roles, in the words of each dialect, and whether a prompt says all of one, in order.

S is a system message, U the user's, A an answer, C a call, D two calls at once, B a text with a call, T a result: of
the first call that has none, or of none. Each has a text that no other has; calls have it in their arguments.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, cast

from app.client.connection import chat_body
from app.engine.chat_template.render import render
from app.library.local.model_files import ModelRef
from app.protocol.chat import Message, Role, ToolCall
from app.protocol.errors import RequestError
from app.service.api.anthropic.requests import MessagesBody
from app.service.api.lmstudio.sdk_requests import ChatHistory
from app.service.api.ollama.requests import OllamaChatBody
from app.service.api.openai.requests import ChatCompletionBody
from app.service.api.responses.requests import ResponsesBody
from app.service.generation.chat import ChatTurn, prompt_of
from app.service.generation.message_order import is_plain
from app.service.generation.prompt import template_message, with_results_in_calls
from app.service.generation.thinking import DEFAULT_THINKING
from app.service.models.model_file import ModelFile
from app.service.models.served_model import ServedModel
from app.service.tools.formats import tool_format_of
from tests.app.service.generation.test_chat import HereAndNow

TOOL = "get_weather"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": TOOL, "description": "The weather.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
_ROLES: Mapping[str, Role] = {"S": "system", "U": "user", "A": "assistant", "B": "assistant", "T": "tool"}
Body = dict[str, Any]

# What some template refuses, or leaves a text of out, and some client sends.
HARD = (
    *("SSU", "USU", "SUAU", "SAU", "SUASU", "UUAU", "UAAU", "AU", "ST", "TU", "UT", "CTU", "CUT", "UCU", "UBTAU"),
    *(
        "UBTBTAU",
        "UCTU",
        "SUCTUAU",
        "UCTSU",
        "UCTCTAU",
        "UDTTAU",
        "UDTU",
        "UDTTDTTAU",
        "BAU",
        "UCCT",
        "TTUT",
        "UC",
        "UBCTT",
    ),
)


_NO_CALL = "call_of_none"


def conversation(letters: str) -> list[Message]:
    """Return the messages of `letters`, with ids of OpenAI's form."""
    messages: list[Message] = []
    unanswered: list[str] = []
    for place, letter in enumerate(letters):
        text = f"Text{place}of{letter}." if letter in _ROLES else ""
        if letter == "T":
            messages.append(Message("tool", text, call_id=unanswered.pop(0) if unanswered else _NO_CALL, name=TOOL))
            continue
        calls = [
            ToolCall(f"call_{place}_{number:016x}", TOOL, json.dumps({"city": f"Place{place}no{number}."}))
            for number in range({"C": 1, "D": 2, "B": 1}.get(letter, 0))
        ]
        unanswered += [call.call_id for call in calls]
        messages.append(Message(_ROLES.get(letter, "assistant"), text, calls=tuple(calls)))
    return messages


def says_all(prompt: str, messages: Sequence[Message]) -> bool:
    """Return whether `prompt` has each text of `messages`, in order. Calls at once may be written one after the other,
    each before its result: their arguments only have to come after what was said before them, and results that follow
    each other may change places."""
    end = before_results = 0
    for message in messages:
        if message.role != "tool":
            before_results = end
        if message.content:
            place = prompt.find(message.content, before_results if message.role == "tool" else end)
            if place < 0:
                return False
            end = max(end, place + len(message.content))
        places = [prompt.find(json.loads(call.arguments)["city"], end) for call in message.calls]
        if any(place < 0 for place in places):
            return False
        end = max(end, *places[:1]) if places else end
    return True


def served(template: str) -> ServedModel:
    """Return a model of `template` without an engine, whose prompts are rendered in this process."""
    file = ModelFile(chat_template=template, bos_token="<s>", eos_token="</s>", n_ctx_train=1, n_bytes=1)
    no_engine = cast("Any", None)
    return ServedModel(ModelRef("test", Path("test.gguf")), file, no_engine, no_engine, HereAndNow())


def as_said(messages: Sequence[Message], dialect: str) -> list[Message]:
    """Return `messages` with the ids and names that a `dialect` has."""
    if dialect == "Ollama":
        return [
            replace(message, call_id="", calls=tuple(replace(call, call_id="") for call in message.calls))
            for message in messages
        ]
    if dialect in ("OpenAI", "run"):
        return list(messages)
    said: list[Message] = []
    for message in messages:
        last = said[-1] if said and dialect == "Responses" else None
        if last and last.role == "assistant" and message.calls and not message.content:
            said[-1] = replace(last, calls=(*last.calls, *message.calls))  # it has items: these are one answer
        else:
            said.append(replace(message, name=""))
    return said


def by_itself(template: str, messages: Sequence[Message], *, has_tools: bool) -> str:
    """Return what Jinja makes of `messages` as they are, "" where the template refuses them. It is told to think where
    the model's makers serve it so; results are where it reads them."""
    variables = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    variables |= DEFAULT_THINKING.for_template(template)
    sent = [template_message(message) for message in messages]
    if "tool_responses" in template and "tool_call_id" not in template:
        sent = list(with_results_in_calls(sent))
    try:
        return render(template, {**variables, "tools": TOOLS if has_tools else None, "messages": sent})
    except Exception:  # whatever its expressions raise
        return ""


def _openai_body(messages: Sequence[Message]) -> list[Body]:
    sent = [template_message(message) for message in messages]
    for call in (call for body in sent for call in body.get("tool_calls", ())):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return sent


def openai(messages: Sequence[Message], *, has_tools: bool) -> ChatTurn:
    body = {"messages": _openai_body(messages), "tools": TOOLS if has_tools else None}
    return ChatCompletionBody.model_validate(body).turn()


def run(messages: Sequence[Message], *, has_tools: bool) -> ChatTurn:
    """What `localllm run` and the app send, to the route of OpenAI's clients."""
    body = chat_body(messages, "", None) | {"tools": TOOLS if has_tools else None}
    return ChatCompletionBody.model_validate(body).turn()


def ollama(messages: Sequence[Message], *, has_tools: bool) -> ChatTurn:
    """Its clients send no ids."""
    sent: list[Body] = []
    for message in messages:
        sent.append({"role": message.role, "content": message.content})
        if message.role == "tool":
            sent[-1]["tool_name"] = message.name
        if message.calls:
            calls = [{"name": call.name, "arguments": call.arguments_object()} for call in message.calls]
            sent[-1]["tool_calls"] = [{"function": call} for call in calls]
    return OllamaChatBody.model_validate({"messages": sent, "tools": TOOLS if has_tools else None}).turn()


def responses(messages: Sequence[Message], *, has_tools: bool) -> ChatTurn:
    items: list[Body] = []
    for message in messages:
        if message.role == "tool":
            items.append({"type": "function_call_output", "call_id": message.call_id, "output": message.content})
        elif message.content:
            items.append({"role": message.role, "content": message.content})
        items += [
            {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
            for call in message.calls
        ]
    tools = [{"type": "function", **FUNCTION}] if has_tools else None
    return ResponsesBody.model_validate({"input": items, "tools": tools}).turn()


def anthropic(messages: Sequence[Message], *, has_tools: bool) -> ChatTurn:
    """Results that follow each other, and what the user says with them, are one message."""
    sent: list[Body] = []
    for message in messages:
        role = "user" if message.role == "tool" else message.role
        if message.role == "tool":
            use_id = f"toolu_{message.call_id}"
            blocks = [{"type": "tool_result", "tool_use_id": use_id, "content": message.content}]
        else:
            blocks = [{"type": "text", "text": message.content}] if message.content else []
        blocks += [
            {"type": "tool_use", "id": f"toolu_{call.call_id}", "name": call.name, "input": call.arguments_object()}
            for call in message.calls
        ]
        if sent and role == "user" and sent[-1]["content"][-1]["type"] == "tool_result":
            sent[-1]["content"] += blocks
        else:
            sent.append({"role": role, "content": blocks})
    tool = {"name": TOOL, "description": FUNCTION["description"], "input_schema": PARAMETERS}
    tools = [tool] if has_tools else None
    turn = MessagesBody.model_validate({"messages": sent, "tools": tools, "max_tokens": 9}).turn()
    return replace(turn, thinking=DEFAULT_THINKING)  # which is off in this dialect


def lmstudio(messages: Sequence[Message], *, has_tools: bool) -> ChatTurn:
    """The history of its SDK; the REST API that it shares with OpenAI's is that."""
    history: list[Body] = []
    for message in messages:
        parts: list[Body] = [{"type": "text", "text": message.content}] if message.content else []
        if message.role == "tool":
            parts = [{"type": "toolCallResult", "content": message.content, "toolCallId": message.call_id}]
        for call in message.calls:
            asked = {"id": call.call_id, "type": "function", "name": call.name, "arguments": call.arguments_object()}
            parts.append({"type": "toolCallRequest", "toolCallRequest": asked})
        history.append({"role": message.role, "content": parts})
    sent = ChatHistory.model_validate({"messages": history}).openai_messages()
    return ChatCompletionBody.model_validate({"messages": sent, "tools": TOOLS if has_tools else None}).turn()


DIALECTS: Mapping[str, Callable[..., ChatTurn]] = {
    "OpenAI": openai,
    "run": run,
    "Ollama": ollama,
    "Responses": responses,
    "Anthropic": anthropic,
    "LM Studio": lmstudio,
}


def published_templates() -> dict[str, str]:
    """Return the chat templates beside llama.cpp's source by name: as uv unpacked it to build llama-cpp-python, or in
    the folder that LLAMA_CPP_TEMPLATES names. Their publishers' licences are not this project's, so that it has no copy
    of them: where that source is not, there are none."""
    version = importlib.metadata.version("llama-cpp-python")
    home = Path(os.environ.get("LOCALAPPDATA", "~") if sys.platform == "win32" else "~").expanduser()
    usual = home / "uv" / "cache" if sys.platform == "win32" else home / ".cache" / "uv"
    if sys.platform != "win32" and (caches := os.environ.get("XDG_CACHE_HOME")):
        usual = Path(caches, "uv")
    cache = Path(os.environ.get("UV_CACHE_DIR") or usual)
    unpacked = cache.glob(f"sdists-v*/pypi/llama-cpp-python/{version}/*/src/vendor/llama.cpp/models/templates")
    own = os.environ.get("LLAMA_CPP_TEMPLATES")
    folder = Path(own) if own else next(unpacked, None)
    paths = sorted(folder.glob("*.jinja")) if folder else []
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


async def fault_of(model: ServedModel, letters: str, dialect: str, *, has_tools: bool) -> str:
    """Return what is wrong with the prompt of `letters`: it is "refused", has "lost" a text, or is "changed" though
    the template prints the messages as they are too; "" where nothing is. A result without its call is refused in
    Anthropic's dialect, as that API does, and "taken" where it is not."""
    messages, template = conversation(letters), model.file.chat_template
    try:
        turn = DIALECTS[dialect](messages, has_tools=has_tools)
    except RequestError:
        return "" if dialect == "Anthropic" and _has_orphan(messages) else "refused"
    if dialect == "Anthropic" and _has_orphan(messages):
        return "taken"
    try:
        prompt = (await prompt_of(model, turn)).prompt
    except RequestError:
        return "refused"
    said = as_said(messages, dialect)
    late = [*said[1:-1], said[0], said[-1]]  # where Mistral Nemo's prints the system message of a plain chat
    is_late = not has_tools and said[0].role == "system" and is_plain(said) and says_all(prompt, late)
    if not (is_late or says_all(prompt, said)):
        return "lost"
    # Calls whose form is not known are written as text, and so are tools that a template does not list.
    if turn.begun or (tool_format_of(template) is None and (has_tools or set(letters) - set("SUA"))):
        return ""
    plain = by_itself(template, said, has_tools=has_tools)
    is_whole = (is_late or says_all(plain, said)) and (TOOL in plain or not has_tools)
    return "changed" if is_whole and prompt != plain else ""


def _has_orphan(messages: Sequence[Message]) -> bool:
    return any(message.call_id == _NO_CALL for message in messages)


class TemplateRow(TypedDict):
    """What a template takes: `refused` has the fields of TemplateOrder that are false, without "takes_"."""

    format: str
    refused: list[str]
    refused_with_tools: list[str]
    keeps_thoughts: bool
    shows_pictures: bool


async def row_of(model: ServedModel) -> TemplateRow:
    """Measure a row of the table of templates by rendering, as the service does."""
    template, refused = model.file.chat_template, []
    for has_tools in (False, True):
        await prompt_of(model, openai(conversation("UU"), has_tools=has_tools))
        order = model.template_probe._found["order", has_tools, template]
        refused.append([name.removeprefix("takes_") for name in order.__slots__ if not getattr(order, name)])
    caps = await model.template_probe.caps_of(model.file, model.renderer)
    known = tool_format_of(template)
    return {
        "format": known.name if known else "",
        "refused": refused[0],
        "refused_with_tools": refused[1],
        "keeps_thoughts": caps["supports_preserve_reasoning"],
        "shows_pictures": await _shows_pictures(model),
    }


async def _shows_pictures(model: ServedModel) -> bool:
    prompts = []
    for parts in ([{"type": "text", "text": "x"}], [{"type": "image"}, {"type": "text", "text": "x"}]):
        try:
            sent = [{"role": "user", "content": parts}]
            prompts.append(await model.renderer.render(model.file.chat_template, sent, bos_token="", eos_token=""))
        except RequestError:
            return False
    return prompts[0] != prompts[1] and not any("'type'" in prompt or '"type"' in prompt for prompt in prompts)


def twin(refused: Collection[str], *, has_calls: bool) -> str:
    """Return a template that takes what one with the row `refused` does; it writes calls, if it `has_calls`, as Hermes'
    does."""
    wrong = " or ".join(f"({_REFUSALS[name]})" for name in refused if name in _REFUSALS) or "false"
    text = "{{ '' if m.tool_calls else m.content or '' }}" if "text_with_call" in refused else "{{ m.content or '' }}"
    skips = "m.role != 'tool'" if "calls" in refused else "true"
    calls = _CALLS if has_calls else ""
    return _TWIN.replace("WRONG", wrong).replace("CALLS", calls).replace("TEXT", text).replace("SKIPS", skips)


# When a twin raises: `m` is a message, `p` the one before it, `n` the one after it, `s` all before it but systems.
_REFUSALS = {
    "system": "m.role == 'system'",
    "several_systems": "m.role == p.role == 'system'",
    "late_system": "m.role == 'system' and p and p.role != 'system'",
    "no_user": "not (messages | selectattr('role', 'equalto', 'user') | list)",
    "users": "m.role == p.role == 'user'",
    "assistants": "m.role == p.role == 'assistant'",
    "assistant_first": "m.role == 'assistant' and not s",
    "user_after_result": "m.role == 'user' and p.role == 'tool'",
    "result_without_call": "m.role == 'tool' and not (p.tool_calls or p.role == 'tool')",
    "call_without_result": "m.tool_calls and n and n.role != 'tool'",
    "parallel_calls": "m.tool_calls and m.tool_calls | length > 1",
    "call_after_result": "m.tool_calls and p.role == 'tool'",
    "any_call_id": "m.role == 'tool' and m.tool_call_id | length != 9",
    "no_call_id": "m.role == 'tool' and not m.tool_call_id",
    "no_tool_name": "m.role == 'tool' and not m.name",
}
_TWIN = """{%- for t in tools or [] %}<tools>{{ t | tojson }}{% endfor -%}
{%- for m in messages %}{% set p = loop.previtem or {} %}{% set n = loop.nextitem or {} -%}
{%- set s = messages[:loop.index0] | rejectattr('role', 'equalto', 'system') | list -%}
{%- if WRONG %}{{ raise_exception('no') }}{% endif -%}
{%- if SKIPS %}<{{ m.role }}>TEXTCALLS{% endif %}{% endfor %}<assistant>"""
_CALLS = """{% for c in m.tool_calls or [] -%}
<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>
{%- endfor %}"""
