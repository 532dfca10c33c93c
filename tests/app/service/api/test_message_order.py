"""Two system messages, two questions, a word after a result, ids of other services: every dialect takes them with every
template, and leaves no text out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from app.library.local.model_files import ModelRef
from app.service.api.anthropic.requests import MessagesBody
from app.service.api.lmstudio.sdk_requests import ChatHistory
from app.service.api.ollama.requests import OllamaChatBody
from app.service.api.openai.requests import ChatCompletionBody
from app.service.api.responses.requests import ResponsesBody
from app.service.generation.chat import ChatTurn, prompt_of
from app.service.models.model_file import ModelFile
from app.service.models.served_model import ServedModel
from tests.app.service.generation.test_chat import HereAndNow
from tests.app.service.generation.test_message_order import TEMPLATES

TOOL = (
    '{% for t in tools or [] %}<tool_call>{"name": {{ t.function.name }}{% endfor %}'  # a form of calls that is known
)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "parameters": PARAMETERS}


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


SPOKEN = [
    said("system", "Be brief."),
    said("system", "Be kind."),
    said("user", "A fox?"),
    said("user", "Or a wolf?"),
    said("assistant", "A fox."),
    said("system", "It is late."),
    said("user", "Good night."),
    said("user", "Sleep well."),
]
FIRST, LAST = said("user", "Weather?"), said("user", "And tomorrow?")
CALL_ID, ARGUMENTS, RESULT = "call_0123456789abcdef", {"city": "Aare"}, "It snows."


def openai(messages: list[dict[str, Any]]) -> ChatTurn:
    return ChatCompletionBody.model_validate({"messages": messages}).turn()


def openai_with_call() -> ChatTurn:
    call = {"id": CALL_ID, "type": "function", "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    messages = [FIRST, called, {"role": "tool", "tool_call_id": CALL_ID, "content": RESULT}, LAST]
    tools = [{"type": "function", "function": FUNCTION}]
    return ChatCompletionBody.model_validate({"messages": messages, "tools": tools}).turn()


def ollama_with_call() -> ChatTurn:
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "weather", "arguments": ARGUMENTS}}],
    }
    messages = [FIRST, called, {"role": "tool", "tool_name": "weather", "content": RESULT}, LAST]
    tools = [{"type": "function", "function": FUNCTION}]
    return OllamaChatBody.model_validate({"messages": messages, "tools": tools}).turn()


def anthropic_with_call() -> ChatTurn:
    use = {"type": "tool_use", "id": f"toolu_{CALL_ID}", "name": "weather", "input": ARGUMENTS}
    result = {"type": "tool_result", "tool_use_id": f"toolu_{CALL_ID}", "content": RESULT}
    asked = [result, {"type": "text", "text": LAST["content"]}]
    messages = [FIRST, said("assistant", "") | {"content": [use]}, said("user", "") | {"content": asked}]
    tools = [{"name": "weather", "input_schema": PARAMETERS}]
    return MessagesBody.model_validate({"messages": messages, "tools": tools, "max_tokens": 9}).turn()


def responses_with_call() -> ChatTurn:
    call = {"type": "function_call", "call_id": CALL_ID, "name": "weather", "arguments": json.dumps(ARGUMENTS)}
    items = [FIRST, call, {"type": "function_call_output", "call_id": CALL_ID, "output": RESULT}, LAST]
    return ResponsesBody.model_validate({"input": items, "tools": [{"type": "function", **FUNCTION}]}).turn()


def lmstudio(messages: list[dict[str, Any]]) -> ChatTurn:
    history = [{"role": each["role"], "content": [{"type": "text", "text": each["content"]}]} for each in messages]
    return openai(ChatHistory.model_validate({"messages": history}).openai_messages())


DIALECTS: dict[str, tuple[Callable[[], ChatTurn], Callable[[], ChatTurn]]] = {
    "/v1/chat/completions and /apply-template": (lambda: openai(SPOKEN), openai_with_call),
    "/api/chat": (lambda: OllamaChatBody.model_validate({"messages": SPOKEN}).turn(), ollama_with_call),
    "/v1/messages": (
        lambda: MessagesBody.model_validate({"messages": SPOKEN, "max_tokens": 9}).turn(),
        anthropic_with_call,
    ),
    "/v1/responses": (lambda: ResponsesBody.model_validate({"input": SPOKEN}).turn(), responses_with_call),
    "LM Studio's SDK": (lambda: lmstudio(SPOKEN), openai_with_call),
}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_text_is_in_the_prompt_and_in_order(dialect: str, template: str) -> None:
    text = TOOL + TEMPLATES[template][0] + "{# tool_calls #}"
    file = ModelFile(chat_template=text, bos_token="", eos_token="", n_ctx_train=1, n_bytes=1)
    no_engine = cast("Any", None)
    model = ServedModel(ModelRef("test", Path("test.gguf")), file, no_engine, no_engine, HereAndNow())
    for make, texts in zip(
        DIALECTS[dialect],
        ([message["content"] for message in SPOKEN], ["Weather?", "Aare", RESULT, LAST["content"]]),
        strict=True,
    ):
        prompt, end = (await prompt_of(model, make())).prompt, 0
        for each in texts:
            end = prompt.index(each, end) + len(each)
