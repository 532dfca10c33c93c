"""Each field that the SDKs can send is read, refused, or in the one list of fields that cannot change an answer.

The SDKs are those that the development group pins: a newer version with a field more fails here, with its name.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, Required

import pytest
from typing_extensions import TypedDict

from app.protocol.errors import RequestError
from app.service.api.anthropic.requests import CountTokensBody, MessagesBody
from app.service.api.batches.routes import BatchBody, UploadBody
from app.service.api.fields import Body
from app.service.api.lmstudio.sdk_models import MODEL_ENDPOINTS
from app.service.api.lmstudio.sdk_requests import change_of_loading, prediction_fields
from app.service.api.lmstudio.sdk_text import EMBEDDING_ENDPOINTS, LLM_ENDPOINTS
from app.service.api.ollama.requests import (
    CopyBody,
    CreateBody,
    EmbedBody,
    ModelBody,
    OllamaChatBody,
    OllamaGenerateBody,
    PullBody,
)
from app.service.api.openai.audio import TranscriptionBody
from app.service.api.openai.requests import ChatCompletionBody, CompletionBody
from app.service.api.openai.routes import EmbeddingsBody
from app.service.api.openai.speech import SpeechBody
from app.service.api.responses.requests import CompactBody, InputTokensBody, ResponsesBody
from app.service.api.responses.routes import ConversationBody, ConversationChange, NewItemsBody
from app.service.api.unread_fields import HARMLESS, REFUSED, keys_of
from tests.app.service.api.sdk_fields import SdkField, walked


class Request(NamedTuple):
    """A type of an SDK's requests, by its module, and the body that takes them."""

    module: str
    name: str
    body: type[Body]
    n_fields: int  # of the pinned version; the walk must not become shorter by itself


REQUESTS = [
    Request("openai.types.chat.completion_create_params", "CompletionCreateParamsBase", ChatCompletionBody, 85),
    Request("openai.types.completion_create_params", "CompletionCreateParamsBase", CompletionBody, 19),
    Request("openai.types.embedding_create_params", "EmbeddingCreateParams", EmbeddingsBody, 5),
    Request("openai.types.responses.response_create_params", "ResponseCreateParamsBase", ResponsesBody, 139),
    Request("openai.types.responses.input_token_count_params", "InputTokenCountParams", InputTokensBody, 118),
    Request("openai.types.responses.response_compact_params", "ResponseCompactParams", CompactBody, 54),
    Request("openai.types.conversations.conversation_create_params", "ConversationCreateParams", ConversationBody, 47),
    Request("openai.types.conversations.conversation_update_params", "ConversationUpdateParams", ConversationChange, 1),
    Request("openai.types.conversations.item_create_params", "ItemCreateParams", NewItemsBody, 47),
    Request("openai.types.file_create_params", "FileCreateParams", UploadBody, 5),
    Request("openai.types.audio.transcription_create_params", "TranscriptionCreateParamsBase", TranscriptionBody, 13),
    Request("openai.types.audio.translation_create_params", "TranslationCreateParams", TranscriptionBody, 5),
    Request("openai.types.audio.speech_create_params", "SpeechCreateParams", SpeechBody, 8),
    Request("openai.types.batch_create_params", "BatchCreateParams", BatchBody, 7),
    Request("anthropic.types.message_create_params", "MessageCreateParamsBase", MessagesBody, 158),
    Request("anthropic.types.message_count_tokens_params", "MessageCountTokensParams", CountTokensBody, 151),
    Request("anthropic.types.beta.message_create_params", "MessageCreateParamsBase", MessagesBody, 188),
    Request("anthropic.types.beta.message_count_tokens_params", "MessageCountTokensParams", CountTokensBody, 176),
    Request("ollama._types", "ChatRequest", OllamaChatBody, 54),
    Request("ollama._types", "GenerateRequest", OllamaGenerateBody, 48),
    Request("ollama._types", "EmbedRequest", EmbedBody, 6),
    Request("ollama._types", "EmbeddingsRequest", EmbedBody, 4),
    Request("ollama._types", "PullRequest", PullBody, 3),
    Request("ollama._types", "CreateRequest", CreateBody, 17),
    Request("ollama._types", "CopyRequest", CopyBody, 2),
    Request("ollama._types", "DeleteRequest", ModelBody, 1),
    Request("ollama._types", "ShowRequest", ModelBody, 1),
]
_CALLS = [  # of LM Studio's SDK, over its websockets
    Request("lmstudio._sdk_models", "PredictionChannelRequestDict", LLM_ENDPOINTS["predict"].parameter, 34),
    Request(
        "lmstudio._sdk_models",
        "LlmRpcApplyPromptTemplateParameterDict",
        LLM_ENDPOINTS["applyPromptTemplate"].parameter,
        36,
    ),
    Request("lmstudio._sdk_models", "LlmRpcTokenizeParameterDict", LLM_ENDPOINTS["tokenize"].parameter, 9),
    Request(
        "lmstudio._sdk_models", "LlmRpcPreloadDraftModelParameterDict", LLM_ENDPOINTS["preloadDraftModel"].parameter, 9
    ),
    Request(
        "lmstudio._sdk_models", "EmbeddingRpcEmbedStringParameterDict", EMBEDDING_ENDPOINTS["embedString"].parameter, 9
    ),
    Request(
        "lmstudio._sdk_models", "LlmChannelLoadModelCreationParameterDict", MODEL_ENDPOINTS["loadModel"].parameter, 10
    ),
    Request(
        "lmstudio._sdk_models", "LlmChannelGetOrLoadCreationParameterDict", MODEL_ENDPOINTS["getOrLoad"].parameter, 9
    ),
    Request("lmstudio._sdk_models", "LlmRpcGetModelInfoParameterDict", MODEL_ENDPOINTS["getModelInfo"].parameter, 9),
    Request("lmstudio._sdk_models", "LlmRpcUnloadModelParameterDict", MODEL_ENDPOINTS["unloadModel"].parameter, 1),
]
_LISTED = {name for harmless in HARMLESS for name in harmless.names}


def fields_of(request: Request) -> list[SdkField]:
    return [*walked(getattr(importlib.import_module(request.module), request.name), request.body)]


@pytest.mark.parametrize("request_", [*REQUESTS, *_CALLS], ids=lambda each: f"{each.module} {each.name}")
def test_each_field_of_an_sdk_is_read_or_refused_or_cannot_change_an_answer(
    request_: Request,
) -> None:
    package = request_.module.partition(".")[0]
    pytest.importorskip(package, reason="lmstudio came to the development group late")
    fields = fields_of(request_)
    open_ = [field.path for field in fields if not field.is_read and not _is_decided(field.path)]
    n_read = sum(field.is_read for field in fields)
    print(f"{package} {version(package)}, {request_.name}: {len(fields)} fields, {n_read} read")
    assert open_ == [], f"{package} {version(package)} has fields that nobody has decided about"
    assert len(fields) == request_.n_fields, f"{package} {version(package)}: count them anew"


class _Part(TypedDict):
    type: Required[Literal["text"]]
    tone: str


class _Message(TypedDict, total=False):
    role: Required[Literal["user"]]
    content: str | list[_Part]
    mood: str


class _Params(TypedDict, total=False):
    messages: Required[list[_Message]]
    store: bool
    mood: str


def test_a_field_that_a_new_version_brings_is_found_at_any_depth() -> None:
    fields = [*walked(_Params, ChatCompletionBody)]
    undecided = [field.path for field in fields if not field.is_read and not _is_decided(field.path)]
    assert undecided == ["messages.content.tone", "messages.mood", "mood"]


N_SETTINGS = {"FROM_SERVER_PREDICTION": 18, "FROM_SERVER_LOAD_LLM": 16, "FROM_SERVER_LOAD_EMBEDDING": 7}


@pytest.mark.parametrize(
    ("table", "converted"),
    [
        ("FROM_SERVER_PREDICTION", prediction_fields),
        ("FROM_SERVER_LOAD_LLM", change_of_loading),
        ("FROM_SERVER_LOAD_EMBEDDING", change_of_loading),
    ],
)
def test_each_setting_of_lm_studios_sdk_is_read_or_refused_or_cannot_change_an_answer(
    table: str, converted: Callable[[dict[str, Any]], tuple[Any, tuple[str, ...]]]
) -> None:
    pytest.importorskip("lmstudio", reason="lmstudio came to the development group late")
    settings = getattr(importlib.import_module("lmstudio._kv_config"), table)
    print(f"lmstudio {version('lmstudio')}, {table}: {len(settings)} settings")

    def is_read(key: str) -> bool:
        try:
            return key not in converted({key: {"checked": True, "value": 1}})[1]
        except RequestError:  # read, and of another type
            return True

    assert [key for key in settings if not is_read(key) and not _is_decided(key)] == []
    assert len(settings) == N_SETTINGS[table], f"lmstudio {version('lmstudio')}: count them anew"


def test_no_field_is_in_both_tables_or_listed_twice() -> None:
    names = [name for harmless in HARMLESS for name in harmless.names]
    assert len(names) == len(set(names))
    assert set(names) & set(REFUSED) == {"content.citations"}  # made in a list, asked for in an object


def test_the_page_on_the_api_has_both_tables() -> None:
    page = (Path(__file__).parents[4] / "assets" / "docs" / "api.md").read_text(encoding="utf-8")
    told = {True: "*", False: ""}
    lines = [f"- {each.reason}{told[each.is_told]}: {_named(each.names)}" for each in HARMLESS]
    written = " ".join([*lines, "## Refused fields Each is a 400 that says what to do instead.", _named(REFUSED) + "."])
    assert written in re.sub(r"\s+", " ", page), f"assets/docs/api.md does not say: {written}"


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _is_decided(path: str) -> bool:
    return any(key in _LISTED or key in REFUSED for key in keys_of(path))
