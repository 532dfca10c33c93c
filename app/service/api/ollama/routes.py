"""Ollama's dialect: `/` and /api/*, as its own client and the editors that know it call them.

Owns these routes, but for those that change which models are here (`ollama_library`); bodies, answers and descriptions
of models have modules of their own. Knows nothing of how an answer is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response
from starlette.responses import PlainTextResponse

from app.library.local.recipe import read_recipe
from app.library.local.resolve import UnknownModelError
from app.service.api.app_state import model_of, models_of
from app.service.api.ollama import schemas as objects
from app.service.api.ollama.library_routes import found, not_found
from app.service.api.ollama.model_info import list_entry, running_entry, show_response
from app.service.api.ollama.requests import (
    EmbedBody,
    ModelBody,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaTextBody,
    UseBody,
)
from app.service.api.ollama.responses import Kind, OllamaFormatter
from app.service.api.openai.embeddings import as_floats, check_dimensions
from app.service.generation.chat import chat_generation
from app.service.generation.generation import Generation, Prepare
from app.service.generation.reasoning import NO_REASONING, reasoning_tags_of
from app.service.http.body import read_body
from app.service.http.errors import RefusedError, ollama_error
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import LINES, EventStream, JsonResponse, line, while_connected
from app.service.infill.fim_request import fim_generation
from app.service.models.served_model import ServedModel

__all__ = ["router"]

router = APIRouter()

_CHATS = refuses(404) | gives(
    objects.ChatResponse | objects.ChatLoadResponse, lines=objects.ChatResponseChunk | objects.ChatResponse
)
_GENERATES = refuses(404, 501) | gives(
    objects.GenerateResponse | objects.GenerateLoadResponse,
    lines=objects.GenerateResponseChunk | objects.GenerateResponse,
)

API_VERSION = "0.13.5"  # of the Ollama whose API this is; clients ask for 0.13.4 at least


@router.api_route("/", methods=["GET", "HEAD"], response_class=PlainTextResponse, openapi_extra=gives(str))
async def root() -> Response:
    """What clients look for to know that somebody is there."""
    return PlainTextResponse("Ollama is running")


@router.api_route("/api/version", methods=["GET", "HEAD"], openapi_extra=gives(objects.Version))
async def version() -> Response:
    """The version whose API is spoken here."""
    return JsonResponse({"version": API_VERSION})


@router.api_route("/api/tags", methods=["GET", "HEAD"], openapi_extra=gives(objects.ListResponse))
async def tags(request: Request) -> Response:
    """Every model that a request may name; files that the gate refuses are none."""
    return JsonResponse(
        {"models": [list_entry(ref, facts) for ref, facts in await models_of(request).catalog.list_with_facts()]}
    )


@router.get("/api/ps", openapi_extra=gives(objects.ProcessResponse))
async def running(request: Request) -> Response:
    """The models that are loaded, each under every name that holds it."""
    models = models_of(request)
    loaded = {model.ref: model for model in models.loaded if model.is_loaded}
    known = await models.catalog.with_facts(tuple(loaded))
    return JsonResponse({"models": [running_entry(loaded[ref], facts) for ref, facts in known]})


@router.post("/api/show", openapi_extra=takes(ModelBody) | gives(objects.ShowResponse) | refuses(404))
async def show(request: Request) -> Response:
    """All that is told of one model."""
    body = await read_body(request, ModelBody)
    models = models_of(request)
    ref = await found(models, body.model_name)
    recipe = await asyncio.to_thread(read_recipe, ref.path)
    return JsonResponse(show_response(ref, await models.catalog.facts(ref), recipe, models.serving(ref)))


@router.post("/api/chat", openapi_extra=takes(OllamaChatBody) | _CHATS)
async def chat(request: Request) -> Response:
    """The next message of a conversation; without messages the model is loaded, or let go."""
    body = await read_body(request, OllamaChatBody)
    model = await _used(request, body)
    if not body.messages:
        return await _load(request, OllamaFormatter("chat", model.ref.id), body, model)
    turn = body.under(model.file.recipe).turn()
    return await _respond(request, "chat", body, model, lambda: chat_generation(model, turn))


@router.post("/api/generate", openapi_extra=takes(OllamaGenerateBody) | _GENERATES)
async def generate(request: Request) -> Response:
    """The answer to a prompt, or its continuation; without a prompt the model is loaded, or let go."""
    body = await read_body(request, OllamaGenerateBody)
    body.check()
    model = await _used(request, body)
    body = body.under(model.file.recipe)
    if not body.prompt and not body.suffix:
        return await _load(request, OllamaFormatter("generate", model.ref.id), body, model)

    async def prepare() -> Generation:
        if body.gap:
            return await fim_generation(model, body.gap, (body.request(),))
        if body.raw:
            return Generation((body.request(body.prompt or ""),))
        return await chat_generation(model, body.turn())

    return await _respond(request, "generate", body, model, prepare)


@router.post("/api/embed", openapi_extra=takes(EmbedBody) | gives(objects.EmbedResponse) | refuses(404))
async def embed(request: Request) -> Response:
    """A vector of length 1 for each input."""
    body = await read_body(request, EmbedBody)
    model = await _used(request, body)

    async def answer() -> Response:
        if not body.inputs():
            return JsonResponse({"model": model.ref.id, "embeddings": []})
        embedded = await model.embed(body.inputs())
        check_dimensions(embedded, body.dimensions)
        vectors = [as_floats(vector) for vector in embedded.vectors]
        return JsonResponse({"model": model.ref.id, "embeddings": vectors, "prompt_eval_count": embedded.n_tokens})

    return await while_connected(request, answer())


@router.post("/api/embeddings", openapi_extra=takes(EmbedBody) | gives(objects.EmbeddingsResponse) | refuses(404))
async def embeddings(request: Request) -> Response:
    """The vector of one prompt."""
    body = await read_body(request, EmbedBody)
    model = await _used(request, body)

    async def answer() -> Response:
        if not body.prompt:
            return JsonResponse({"embedding": []})
        embedded = await model.embed([body.prompt])
        return JsonResponse({"embedding": as_floats(embedded.vectors[0])})

    return await while_connected(request, answer())


async def _used(request: Request, body: UseBody) -> ServedModel:
    """Return the model that `body` names, to be kept as long as it says. Raises RefusedError in Ollama's words."""
    idle_s = body.idle_s
    try:
        model = await model_of(request, body.model_name)
    except UnknownModelError as error:
        raise not_found(body.model_name, error) from error
    if body.keep_alive is not None:
        model.keep_alive.set_idle_limit(idle_s)
    return model


async def _load(request: Request, shape: OllamaFormatter, body: UseBody, model: ServedModel) -> Response:
    async def answer() -> Response:
        if not body.ends_use:
            await model.ready()
        model.keep_alive.restart_timer()
        return JsonResponse({**shape.without_words("unload" if body.ends_use else "load"), **model.advice})

    return await while_connected(request, answer())


async def _respond(
    request: Request, kind: Kind, body: OllamaTextBody, model: ServedModel, prepare: Prepare
) -> Response:
    _check_thinking(body, model)
    shape = OllamaFormatter(kind, model.ref.id)
    if body.is_streamed:
        return EventStream(_lines(shape, model, prepare), ollama_error, LINES)
    return await while_connected(request, _whole(shape, model, prepare))


def _check_thinking(body: OllamaTextBody, model: ServedModel) -> None:
    if body.think and reasoning_tags_of(model.file.chat_template, "") == NO_REASONING:
        raise RefusedError(400, "invalid_request", f'"{model.ref.id}" does not support thinking.', "Leave think out.")


async def _lines(shape: OllamaFormatter, model: ServedModel, prepare: Prepare) -> AsyncGenerator[bytes, None]:
    generation = await prepare()
    async with aclosing(generation.parts(model)) as parts:
        async for answer, delta in parts:
            if delta and (frame := shape.text(delta)):
                yield line(frame)
            if answer.is_finished:
                if calls := shape.calls(answer):
                    yield line(calls)
                yield line({**shape.ending(answer), **model.advice})


async def _whole(shape: OllamaFormatter, model: ServedModel, prepare: Prepare) -> Response:
    generation = await prepare()
    (answer,) = await generation.answers(model)
    return JsonResponse({**shape.whole(answer), **model.advice})
