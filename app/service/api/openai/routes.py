"""Routes of OpenAI's dialect: chats, completions, embeddings, Mistral's /v1/fim/completions, Jina's /v1/rerank.

Without /v1 they are for clients that were given the address of the server alone; /completions is llama-server's own.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Literal, NotRequired, TypeAlias, TypeVar

from pydantic import Field, NonNegativeInt, StrictStr
from starlette.requests import Request
from typing_extensions import TypedDict

from app.engine.messages import Reranked
from app.protocol.chat import PromptProgress
from app.protocol.errors import RequestError
from app.service.api.app_state import app_state, model_of, planner_warnings, prompt_with_media, turn_of
from app.service.api.embeddings import FLOAT32, MAX_INPUTS, InputIds, as_floats, inputs_of
from app.service.api.fields import Body, TtlBody
from app.service.api.openai.requests import ChatCompletionBody, CompletionBody, FimBody, OpenAiBody
from app.service.api.openai.responses import (
    ChatChunk,
    ChatCompletion,
    ChatFormatter,
    Chunk,
    Completion,
    CompletionFormatter,
    TextChunk,
    TextCompletion,
    TextFormatter,
)
from app.service.api.text_request import with_model_defaults, with_token_ids
from app.service.generation.chat import ChatTurn, chat_generation, n_prompt_tokens
from app.service.generation.generation import Answer, Generation, Prepare
from app.service.generation.progress import parts_with_progress
from app.service.http.errors import openai_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import DONE_EVENTS, EventStream, JsonResponse, while_connected
from app.service.infill_request import fim_generation
from app.service.models.served_model import ServedModel

router = Router()

Choice = TypeVar("Choice")
ChunkChoice = TypeVar("ChunkChoice")


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: NonNegativeInt


ChatResponse: TypeAlias = JsonResponse[ChatCompletion] | EventStream[ChatChunk]
TextResponse: TypeAlias = JsonResponse[TextCompletion] | EventStream[TextChunk]


@router.post("/v1/chat/completions", refusals=errors(404))
@router.post("/chat/completions", refusals=errors(404))
async def chat_completions(request: Request, body: ChatCompletionBody) -> ChatResponse:
    """The next message of a conversation."""
    model = await model_of(request, body.model or "", body.idle_limit)
    turn = await turn_of(app_state(request), model, with_model_defaults(body, model.file).turn)
    return await _respond(request, ChatFormatter, body, model, lambda: chat_generation(model, turn))


@router.post("/v1/chat/completions/input_tokens", refusals=errors(404))
@router.post("/chat/completions/input_tokens", refusals=errors(404))
async def chat_input_tokens(request: Request, body: ChatCompletionBody) -> JsonResponse[InputTokens]:
    """The number of tokens that the prompt of a request would have, as llama-server has it."""
    model = await model_of(request, body.model or "", body.idle_limit)
    return await input_tokens_of(request, model, await turn_of(app_state(request), model, body.turn))


async def input_tokens_of(request: Request, model: ServedModel, turn: ChatTurn) -> JsonResponse[InputTokens]:
    async def count() -> InputTokens:
        return {"object": "response.input_tokens", "input_tokens": await n_prompt_tokens(model, turn)}

    return await while_connected(request, count())


@router.post("/v1/completions", refusals=errors(404))
async def completions(request: Request, body: CompletionBody) -> TextResponse:
    """The continuation of a text, or the text between two."""
    model = await model_of(request, body.model or "", body.idle_limit)
    body, media = await prompt_with_media(app_state(request), model, body)
    body = await with_token_ids(body, model)
    if media.markers and (body.suffix or body.echo):
        raise RequestError("Pictures and sounds exclude a suffix and echo.", "Leave those out.")
    fim, echoed = body.fim_request, body.echoed()
    requests = with_model_defaults(body, model.file).completion_requests()

    async def prepare() -> Generation:
        if fim:
            return await fim_generation(model, fim, requests)
        return Generation(tuple([await media.in_request(request) for request in requests]))

    return await _respond(request, TextFormatter, body, model, prepare, echoed)


@router.post("/v1/fim/completions", refusals=errors(404))
@router.post("/fim/completions", refusals=errors(404))
async def fim_completions(request: Request, body: FimBody) -> ChatResponse:
    """The text between two, as Mistral has it: in the form of a chat's answer."""
    model = await model_of(request, body.model or "", body.idle_limit)
    requests = with_model_defaults(body, model.file).request().variants(body.n_answers())
    fim = body.fim_request
    return await _respond(request, ChatFormatter, body, model, lambda: fim_generation(model, fim, requests))


async def _respond(
    request: Request,
    kind: type[CompletionFormatter[Choice, ChunkChoice]],
    body: OpenAiBody,
    model: ServedModel,
    prepare: Prepare,
    echoed: tuple[str, ...] = (),
) -> JsonResponse[Completion[Choice]] | EventStream[Chunk[ChunkChoice]]:
    async def begin() -> tuple[Generation, CompletionFormatter[Choice, ChunkChoice]]:
        generation = await prepare()
        return generation, kind(generation.requests, model.ref.id, body.n_answers(), echoed)

    async def whole() -> Completion[Choice]:
        generation, formatter = await begin()
        return formatter.whole(await generation.answers(model), planner_warnings(model))

    if body.stream:
        return EventStream(_chunks(begin, model, body), openai_error, DONE_EVENTS)
    return await while_connected(request, whole())


async def _chunks(
    begin: Callable[[], Awaitable[tuple[Generation, CompletionFormatter[Choice, ChunkChoice]]]],
    model: ServedModel,
    body: OpenAiBody,
) -> AsyncGenerator[Chunk[ChunkChoice], None]:
    generation, formatter = await begin()
    ended: list[Answer] = []
    is_opened = False
    parts = parts_with_progress(generation, model) if body.return_progress else generation.parts(model)
    async with aclosing(parts):
        async for part in parts:
            if not is_opened:
                is_opened = True
                for opening in formatter.opening_chunks():
                    yield opening
            if isinstance(part, PromptProgress):
                yield formatter.progress_chunk(part)
                continue
            answer, delta = part
            if delta:
                yield formatter.chunk(delta, counts_tokens=bool(body.timings_per_token))
            if answer.is_finished:
                ended.append(answer)
                yield formatter.final_chunk(answer, planner_warnings(model))
    if body.wants_usage:
        yield formatter.usage_chunk(ended)


Documents = Annotated[list[StrictStr], Field(min_length=1, max_length=MAX_INPUTS)]
Inputs = Annotated[list[StrictStr] | list[InputIds], Field(min_length=1, max_length=MAX_INPUTS)]


class EmbeddingsBody(TtlBody):
    """One text, one list of token ids, or a list of either. With `truncate`, which Text Embeddings Inference has, and
    NVIDIA's NIM as "END", inputs longer than the context lose their end; otherwise they are refused."""

    input: StrictStr | InputIds | Inputs
    model: StrictStr = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    truncate: bool | Literal["NONE", "END"] = False


class RerankBody(Body):
    """`documents` to be ordered by how well they answer `query`; the best `top_n` are returned, all without it. With
    `texts` instead, which the Text Embeddings Inference API has, the answer is in its form too."""

    query: StrictStr
    documents: Documents | None = None
    texts: Documents | None = None
    model: StrictStr = ""
    top_n: Annotated[int, Field(ge=0)] | None = None
    return_documents: bool = False
    return_text: bool = False

    def ranked(self) -> list[str]:
        documents = self.texts or self.documents
        if not documents:
            raise RequestError("There are no documents.", "Send the texts to be ordered as `documents`.")
        return documents


class _Embedding(TypedDict):
    """The vector of one input: numbers, or their bytes as base64."""

    object: Literal["embedding"]
    index: NonNegativeInt
    embedding: list[float] | str


class _InputUsage(TypedDict):
    prompt_tokens: NonNegativeInt
    total_tokens: NonNegativeInt


class EmbeddingList(TypedDict):
    object: Literal["list"]
    data: list[_Embedding]
    model: str
    usage: _InputUsage


class _Document(TypedDict):
    text: str


class _Rank(TypedDict):
    """The score of a document; its text where that is wanted."""

    index: NonNegativeInt
    relevance_score: float
    document: NotRequired[_Document]


class TextRank(TypedDict):
    """The score of a text; the text itself where that is wanted (source: llama-server's `format_response_rerank`)."""

    index: NonNegativeInt
    score: float
    text: NotRequired[str]


class Ranking(TypedDict):
    """The documents, best first."""

    model: str
    object: Literal["list"]
    usage: _InputUsage
    results: list[_Rank]


@router.post("/v1/embeddings", refusals=errors(404))
async def embeddings(request: Request, body: EmbeddingsBody) -> JsonResponse[EmbeddingList]:
    """A vector of length 1 for each input."""
    model = await model_of(request, body.model, body.idle_limit, purpose="vectors")
    is_base64 = body.encoding_format == "base64"

    async def answer() -> EmbeddingList:
        embedded = await model.embed(await inputs_of(body.input, model), cuts=body.truncate in (True, "END"))
        n_dimensions = len(embedded.vectors[0]) // FLOAT32.size
        if body.dimensions not in (None, n_dimensions):
            cause = f"This model's embeddings have {n_dimensions} dimensions, not {body.dimensions}."
            raise RequestError(cause, "Leave `dimensions` out: the model is not known to support shorter vectors.")
        data: list[_Embedding] = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(vector).decode() if is_base64 else as_floats(vector),
            }
            for index, vector in enumerate(embedded.vectors)
        ]
        return {"object": "list", "data": data, "model": model.ref.id, "usage": _usage(embedded.n_tokens)}

    return await while_connected(request, answer())


@router.post("/v1/rerank", refusals=errors(404))
@router.post("/v1/reranking", refusals=errors(404))
@router.post("/rerank", refusals=errors(404))
@router.post("/reranking", refusals=errors(404))
async def rerank(request: Request, body: RerankBody) -> JsonResponse[Ranking | list[TextRank]]:
    """The documents' scores, the best first."""
    documents = body.ranked()
    model = await model_of(request, body.model, purpose="ranking")

    async def answer() -> Ranking | list[TextRank]:
        ranked = await model.rerank(body.query, documents)
        return _text_ranks(ranked, body) if body.texts else _ranking(ranked, body, model.ref.id)

    return await while_connected(request, answer())


def _best(ranked: Reranked, body: RerankBody) -> list[int]:
    return sorted(range(len(ranked.scores)), key=lambda index: -ranked.scores[index])[: body.top_n]


def _text_ranks(ranked: Reranked, body: RerankBody) -> list[TextRank]:
    ranks: list[TextRank] = [{"index": index, "score": ranked.scores[index]} for index in _best(ranked, body)]
    return [{**rank, "text": body.ranked()[rank["index"]]} for rank in ranks] if body.return_text else ranks


def _ranking(ranked: Reranked, body: RerankBody, model_id: str) -> Ranking:
    best = _best(ranked, body)
    results: list[_Rank] = [{"index": index, "relevance_score": ranked.scores[index]} for index in best]
    if body.return_documents:
        results = [{**result, "document": {"text": body.ranked()[result["index"]]}} for result in results]
    return {"model": model_id, "object": "list", "usage": _usage(ranked.n_tokens), "results": results}


def _usage(n_tokens: int) -> _InputUsage:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
