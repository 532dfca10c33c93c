"""Routes of llama-server's dialect for text and vectors: /completion, /infill, /apply-template, /embedding.

A body of OpenAI's at /embeddings gets OpenAI's answer: clients that were given no /v1 send it there.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Literal, NotRequired, TypeAlias, cast

from pydantic import Field, NonNegativeInt, StrictInt, StrictStr
from starlette.requests import Request
from typing_extensions import TypedDict

from app.engine import request as engine_request
from app.protocol.chat import PromptProgress
from app.protocol.errors import RequestError
from app.service.api.app_state import app_state, model_of, planner_warnings, prompt_with_media, turn_of
from app.service.api.embeddings import Inputs, as_floats, inputs_of
from app.service.api.fields import Body, TtlBody
from app.service.api.llamacpp.responses import (
    Completion,
    CompletionChunk,
    LlamaCppFormatter,
    SelectedFields,
    SeveralCompletions,
)
from app.service.api.openai.requests import ChatCompletionBody
from app.service.api.openai.routes import EmbeddingList, EmbeddingsBody, embeddings
from app.service.api.text_request import MAX_ANSWERS, GenerationBody, PromptField, with_model_defaults, with_token_ids
from app.service.generation.chat import prompt_of
from app.service.generation.generation import Answer, Generation, Prepare
from app.service.generation.progress import parts_with_progress
from app.service.http.errors import llamacpp_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import EventStream, JsonResponse, while_connected
from app.service.infill_request import FimRequest, Snippet, fim_generation
from app.service.models.served_model import ServedModel

router = Router()

MAX_SNIPPETS = 256
_EUCLIDEAN = 2
_MOST_NORM = 100
_INT16_SCALE = 32760.0  # of the greatest number, where vectors are to fit into 16 bits


class LlamaCppTextBody(GenerationBody):
    """The fields that /completion and /infill share. `n_cmpl` is limited to MAX_ANSWERS."""

    n_predict: int | None = None
    max_tokens: int | None = None
    n_cmpl: Annotated[int, Field(ge=1)] | None = None
    n_probs: int | None = None
    n_indent: int | None = None
    response_fields: list[StrictStr] | None = None
    return_tokens: bool | None = None

    def requests(self, *prompts: str | tuple[int, ...]) -> tuple[engine_request.Request, ...]:
        """Return the engine's requests for `prompts`. Raises RequestError for none, too many, and values out of range.
        The events of a stream have tokens in any case (source: llama-server's README)."""
        n_indent, returns_tokens = self.n_indent or 0, bool(self.return_tokens or self.stream)
        n_answers = min(self.n_cmpl or 1, MAX_ANSWERS)
        return self.requests_for(prompts, n_answers, n_indent=n_indent, returns_tokens=returns_tokens)

    def _limit(self) -> int | None:
        return self.max_tokens if self.n_predict is None else self.n_predict

    def _n_logprobs(self) -> int | None:
        return self.n_probs or None


class PromptBody(LlamaCppTextBody, PromptField):
    """The body of /completion."""


class SnippetBody(Body):
    """A part of another file."""

    text: StrictStr
    filename: StrictStr = ""

    def snippet(self) -> Snippet:
        return Snippet(self.text, self.filename) if self.filename else Snippet(self.text)


class InfillBody(LlamaCppTextBody):
    """The body of /infill: `prompt` is the text typed behind the prefix."""

    input_prefix: StrictStr = ""
    input_suffix: StrictStr = ""
    input_extra: Annotated[list[SnippetBody], Field(max_length=MAX_SNIPPETS)] | None = None
    prompt: StrictStr | None = None

    @property
    def fim_request(self) -> FimRequest:
        return FimRequest(
            prefix=self.input_prefix,
            typed=self.prompt or "",
            suffix=self.input_suffix,
            snippets=tuple(item.snippet() for item in self.input_extra or ()),
        )


class ControlBody(Body):
    """The `id` of a streamed chat completion, and what to do with it."""

    id: StrictStr
    action: Literal["reasoning_end"]
    model: StrictStr | None = None


class ControlResult(TypedDict):
    success: bool
    message: NotRequired[str]


class ApplyTemplateResponse(TypedDict):
    prompt: str


TextResponse: TypeAlias = (
    JsonResponse[Completion | SelectedFields | SeveralCompletions]
    | EventStream[CompletionChunk | Completion | SelectedFields]
)


@router.post("/completion", refusals=errors(404))
@router.post("/completions", refusals=errors(404))
async def completion(request: Request, body: PromptBody) -> TextResponse:
    """The continuation of a text, or of each of several."""
    model = await model_of(request, body.model or "")
    body, media = await prompt_with_media(app_state(request), model, body)
    body = await with_token_ids(body, model)
    requests = with_model_defaults(body, model.file).requests(*body.prompts())

    async def prepare() -> Generation:
        return Generation(tuple([await media.in_request(request) for request in requests]))

    return await _respond(request, body, model, prepare)


@router.post("/infill", refusals=errors(404))
async def infill(request: Request, body: InfillBody) -> TextResponse:
    """The text between two; with n_predict 0 the prompt is only computed ahead."""
    model = await model_of(request, body.model or "")
    requests = with_model_defaults(body, model.file).requests("")
    return await _respond(request, body, model, lambda: fim_generation(model, body.fim_request, requests))


@router.post("/apply-template", refusals=errors(404))
async def apply_template(request: Request, body: ChatCompletionBody) -> JsonResponse[ApplyTemplateResponse]:
    """Messages as the prompt that a chat would make of them."""
    model = await model_of(request, body.model or "")
    turn = await turn_of(app_state(request), model, body.turn)
    prompt = (await prompt_of(model, turn)).prompt
    return JsonResponse({"prompt": turn.media.with_public_markers(prompt, app_state(request).media_marker)})


@router.post("/v1/chat/completions/control")
async def control(request: Request, body: ControlBody) -> JsonResponse[ControlResult]:
    """End the reasoning in a running chat completion, as llama-server does; `reasoning_control` need not be set."""
    if app_state(request).models.end_thought(body.id):
        return JsonResponse({"success": True})
    return JsonResponse({"success": False, "message": "no active completion for this id"})


async def _respond(request: Request, body: LlamaCppTextBody, model: ServedModel, prepare: Prepare) -> TextResponse:
    marker = app_state(request).media_marker

    async def begin() -> tuple[Generation, LlamaCppFormatter]:
        generation = await prepare()
        return generation, LlamaCppFormatter(generation.requests, model.ref.id, body.response_fields)

    async def chunks() -> AsyncGenerator[CompletionChunk | Completion | SelectedFields, None]:
        generation, formatter = await begin()
        parts = parts_with_progress(generation, model) if body.return_progress else generation.parts(model)
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, PromptProgress):
                    yield formatter.progress_chunk(part)
                    continue
                answer, delta = part
                if delta:
                    yield formatter.chunk(delta)
                if answer.is_finished:
                    prompt = await _prompt_text(formatter, answer, model, marker)
                    yield formatter.final_chunk(answer, prompt, planner_warnings(model))

    async def whole() -> Completion | SelectedFields | SeveralCompletions:
        generation, formatter = await begin()
        completions = [
            formatter.whole(answer, await _prompt_text(formatter, answer, model, marker), planner_warnings(model))
            for answer in await generation.answers(model)
        ]
        return completions if len(completions) > 1 else completions[0]

    return EventStream(chunks(), llamacpp_error) if body.stream else await while_connected(request, whole())


async def _prompt_text(formatter: LlamaCppFormatter, answer: Answer, model: ServedModel, marker: str) -> str:
    """Return the prompt of an answer as text with a `marker` for each medium, "" where the objects do not have it."""
    request = formatter.requests[answer.index]
    prompt = request.prompt
    if isinstance(prompt, str):
        for medium in request.media:
            prompt = prompt.replace(medium.marker, marker)
        return prompt
    if not formatter.shows_prompt:
        return ""
    with model.in_use() as engine:
        return await engine.detokenize(prompt)


class EmbeddingBody(Body):
    """`content`, or OpenAI's `input`: a text, token ids, an object, or a list of these. `embd_normalize` is the norm by
    which vectors are divided: 0 the greatest number, 1 the sum, 2 the length, or p."""

    content: Inputs | None = None
    input: Inputs | None = None
    model: StrictStr = ""
    embd_normalize: Annotated[StrictInt, Field(ge=-1, le=_MOST_NORM)] = _EUCLIDEAN

    def given(self) -> Inputs:
        value = self.input if self.content is None else self.content
        if value is None:
            raise RequestError("There is no content.", "Send the text as `content`.")
        return value


class EmbeddingsOfEitherBody(EmbeddingBody, TtlBody):
    """The body of /embeddings, with OpenAI's fields."""

    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None

    def in_openai_form(self) -> EmbeddingsBody:
        names = ("input", "model", "encoding_format", "dimensions", "ttl")
        return EmbeddingsBody.model_construct(**{name: getattr(self, name) for name in names})


class LlamaCppEmbedding(TypedDict):
    """The vectors of one text: one, as llama-server gives it for every pooling but "none"."""

    index: NonNegativeInt
    embedding: list[list[float]]


@router.post("/embedding", refusals=errors(404))
async def embedding(request: Request, body: EmbeddingBody) -> JsonResponse[list[LlamaCppEmbedding]]:
    """A vector for each text, in llama-server's form."""
    given, norm = body.given(), body.embd_normalize
    if norm < 0:
        raise RequestError("embd_normalize is -1, but vectors have the length 1.", "Leave it out, or use 0, 1 or 2.")
    model = await model_of(request, body.model, purpose="vectors")

    async def answer() -> list[LlamaCppEmbedding]:
        inputs = await inputs_of(given, model)
        vectors = [_normalized(as_floats(vector), norm) for vector in (await model.embed(inputs)).vectors]
        return [{"index": index, "embedding": [vector]} for index, vector in enumerate(vectors)]

    return await while_connected(request, answer())


@router.post("/embeddings", refusals=errors(404))
async def embeddings_of_either(
    request: Request, body: EmbeddingsOfEitherBody
) -> JsonResponse[EmbeddingList | list[LlamaCppEmbedding]]:
    """Vectors in the form of the body: llama-server's for `content`, OpenAI's for `input`."""
    is_openai = body.input is not None and body.content is None
    answer = await (embeddings(request, body.in_openai_form()) if is_openai else embedding(request, body))
    return cast("JsonResponse[EmbeddingList | list[LlamaCppEmbedding]]", answer)


def _normalized(vector: list[float], norm: int) -> list[float]:
    """Return `vector`, whose length is 1, divided by another norm (source: llama-server's README, `embd_normalize`)."""
    if norm == _EUCLIDEAN:
        return vector
    if norm == 0:
        size = max(map(abs, vector)) / _INT16_SCALE
    else:
        size = math.fsum(abs(value) ** norm for value in vector) ** (1 / norm)
    return [value / size if size else 0.0 for value in vector]
