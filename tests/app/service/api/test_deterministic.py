"""`deterministic`, an extension of every dialect: the request field, recipes, and the service's setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.engine.request import Request
from app.service.api.anthropic.requests import MessagesBody
from app.service.api.llamacpp.routes import InfillBody, PromptBody
from app.service.api.lmstudio.chat_routes import StudioChatBody
from app.service.api.lmstudio.sdk_requests import prediction_fields
from app.service.api.ollama.requests import OllamaChatBody, OllamaGenerateBody
from app.service.api.openai.requests import ChatCompletionBody, CompletionBody
from app.service.api.responses.requests import ResponsesBody
from app.service.api.text_request import parse_parameters
from app.settings.settings import load_settings

ASK = [{"role": "user", "content": "Hi"}]

DIALECTS: dict[str, Callable[[dict[str, Any]], Request]] = {
    "openai chat": lambda more: ChatCompletionBody.model_validate({"messages": ASK, **more}).turn().request,
    "openai completion": lambda more: CompletionBody.model_validate({"prompt": "x", **more}).completion_requests()[0],
    "responses": lambda more: ResponsesBody.model_validate({"input": "Hi", **more}).turn().request,
    "anthropic": lambda more: MessagesBody.model_validate({"messages": ASK, "max_tokens": 9, **more}).turn().request,
    "llama-server": lambda more: PromptBody.model_validate({"prompt": "x", **more}).request("x"),
    "llama-server infill": lambda more: InfillBody.model_validate({"input_prefix": "x", **more}).request("x"),
    "ollama chat": lambda more: OllamaChatBody.model_validate(
        {"model": "m", "messages": ASK, "options": more}
    ).request(),
    "ollama generate": lambda more: OllamaGenerateBody.model_validate(
        {"model": "m", "prompt": "x", "options": more}
    ).request("x"),
    "lm studio": lambda more: (
        StudioChatBody.model_validate({"model": "m", "input": "Hi", **more}).response_body().turn().request
    ),
    "lm studio sdk": lambda more: ChatCompletionBody.model_validate(
        {"messages": ASK, **prediction_fields({f"llm.prediction.{key}": value for key, value in more.items()})[0]}
    ).request(),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_field_reaches_the_engine_in_every_dialect(dialect: str) -> None:
    request_of = DIALECTS[dialect]
    found = [request_of(more).is_deterministic for more in ({"deterministic": True}, {"deterministic": False}, {})]
    assert found == [True, False, None], "without it the setting decides"


def test_a_recipe_can_say_it() -> None:
    assert parse_parameters({"deterministic": True}).deterministic is True


def test_it_is_a_setting() -> None:
    environment = {"LOCALLLM_CONFIG": "/nowhere"}
    assert load_settings({}, environment).deterministic_answers is False
    assert load_settings({}, environment | {"LOCALLLM_DETERMINISTIC_ANSWERS": "true"}).deterministic_answers is True
