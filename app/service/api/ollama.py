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

from app.library.recipe import read_recipe
from app.library.resolve import UnknownModelError
from app.service.api import ollama_objects as objects
from app.service.api.access import model_of, models_of
from app.service.api.embeddings import as_floats, check_dimensions
from app.service.api.ollama_answers import AnswerShape, Kind
from app.service.api.ollama_bodies import ChatBody, EmbedBody, GenerateBody, ModelBody, TextBody, UseBody
from app.service.api.ollama_library import found, not_found
from app.service.api.ollama_models import description_of, entry_of, running_entry_of
from app.service.body import read_body
from app.service.chat import generation_of
from app.service.generation import Generation, Prepare
from app.service.infill.gap import filling_of
from app.service.openapi import gives, refuses, takes
from app.service.problems import RefusedError, ollama_error
from app.service.reasoning import NO_THINKING, thinking_of
from app.service.served_model import ServedModel
from app.service.streaming import LINES, EventStream, JsonBytes, line, while_connected

__all__ = ["router"]

router = APIRouter()

_CHATS = refuses(404) | gives(objects.ChatAnswer | objects.ChatLoaded, lines=objects.ChatFrame | objects.ChatAnswer)
_GENERATES = refuses(404, 501) | gives(
    objects.GenerateAnswer | objects.GenerateLoaded, lines=objects.GenerateFrame | objects.GenerateAnswer
)

API_VERSION = "0.13.5"  # of the Ollama whose API this is; clients ask for 0.13.4 at least


@router.api_route("/", methods=["GET", "HEAD"], response_class=PlainTextResponse, openapi_extra=gives(str))
async def root() -> Response:
    """What clients look for to know that somebody is there."""
    return PlainTextResponse("Ollama is running")


@router.api_route("/api/version", methods=["GET", "HEAD"], openapi_extra=gives(objects.Version))
async def version() -> Response:
    """The version whose API is spoken here."""
    return JsonBytes({"version": API_VERSION})


@router.api_route("/api/tags", methods=["GET", "HEAD"], openapi_extra=gives(objects.Models))
async def tags(request: Request) -> Response:
    """Every model that a request may name; files that the gate refuses are none."""
    return JsonBytes({"models": [entry_of(ref, facts) for ref, facts in await models_of(request).shelf.described()]})


@router.get("/api/ps", openapi_extra=gives(objects.RunningModels))
async def running(request: Request) -> Response:
    """The models that are loaded, each under every name that holds it."""
    models = models_of(request)
    loaded = {model.ref: model for model in models.loaded if model.is_loaded}
    known = await models.shelf.with_facts(tuple(loaded))
    return JsonBytes({"models": [running_entry_of(loaded[ref], facts) for ref, facts in known]})


@router.post("/api/show", openapi_extra=takes(ModelBody) | gives(objects.ModelDescription) | refuses(404))
async def show(request: Request) -> Response:
    """All that is told of one model."""
    body = await read_body(request, ModelBody)
    models = models_of(request)
    ref = await found(models, body.model_name)
    recipe = await asyncio.to_thread(read_recipe, ref.path)
    return JsonBytes(description_of(ref, await models.shelf.facts(ref), recipe, models.serving(ref)))


@router.post("/api/chat", openapi_extra=takes(ChatBody) | _CHATS)
async def chat(request: Request) -> Response:
    """The next message of a conversation; without messages the model is loaded, or let go."""
    body = await read_body(request, ChatBody)
    model = await _used(request, body)
    if not body.messages:
        return await _load(request, AnswerShape("chat", model.ref.id), body, model)
    turn = body.under(model.file.recipe).turn()
    return await _respond(request, "chat", body, model, lambda: generation_of(models_of(request), model, turn))


@router.post("/api/generate", openapi_extra=takes(GenerateBody) | _GENERATES)
async def generate(request: Request) -> Response:
    """The answer to a prompt, or its continuation; without a prompt the model is loaded, or let go."""
    body = await read_body(request, GenerateBody)
    body.check()
    model = await _used(request, body)
    body = body.under(model.file.recipe)
    if not body.prompt and not body.suffix:
        return await _load(request, AnswerShape("generate", model.ref.id), body, model)

    async def prepare() -> Generation:
        if body.gap:
            return await filling_of(model, body.gap, (body.request(),))
        if body.raw:
            return Generation((body.request(body.prompt or ""),))
        return await generation_of(models_of(request), model, body.turn())

    return await _respond(request, "generate", body, model, prepare)


@router.post("/api/embed", openapi_extra=takes(EmbedBody) | gives(objects.Embeddings) | refuses(404))
async def embed(request: Request) -> Response:
    """A vector of length 1 for each input."""
    body = await read_body(request, EmbedBody)
    model = await _used(request, body)

    async def answer() -> Response:
        if not body.inputs():
            return JsonBytes({"model": model.ref.id, "embeddings": []})
        embedded = await model.embed(body.inputs())
        check_dimensions(embedded, body.dimensions)
        vectors = [as_floats(vector) for vector in embedded.vectors]
        return JsonBytes({"model": model.ref.id, "embeddings": vectors, "prompt_eval_count": embedded.n_tokens})

    return await while_connected(request, answer())


@router.post("/api/embeddings", openapi_extra=takes(EmbedBody) | gives(objects.Embedding) | refuses(404))
async def embeddings(request: Request) -> Response:
    """The vector of one prompt."""
    body = await read_body(request, EmbedBody)
    model = await _used(request, body)

    async def answer() -> Response:
        if not body.prompt:
            return JsonBytes({"embedding": []})
        embedded = await model.embed([body.prompt])
        return JsonBytes({"embedding": as_floats(embedded.vectors[0])})

    return await while_connected(request, answer())


async def _used(request: Request, body: UseBody) -> ServedModel:
    """Return the model that `body` names, to be kept as long as it says. Raises RefusedError in Ollama's words."""
    idle_s = body.idle_s
    try:
        model = await model_of(request, body.model_name)
    except UnknownModelError as error:
        raise not_found(body.model_name, error) from error
    if body.keep_alive is not None:
        model.keep_alive.keep(idle_s)
    return model


async def _load(request: Request, shape: AnswerShape, body: UseBody, model: ServedModel) -> Response:
    async def answer() -> Response:
        if not body.ends_use:
            await model.ready()
        model.keep_alive.begin_again()
        return JsonBytes({**shape.without_words("unload" if body.ends_use else "load"), **model.advice})

    return await while_connected(request, answer())


async def _respond(request: Request, kind: Kind, body: TextBody, model: ServedModel, prepare: Prepare) -> Response:
    _check_thinking(body, model)
    shape = AnswerShape(kind, model.ref.id)
    if body.is_streamed:
        return EventStream(_lines(shape, model, prepare), ollama_error, LINES)
    return await while_connected(request, _whole(shape, model, prepare))


def _check_thinking(body: TextBody, model: ServedModel) -> None:
    if body.think and thinking_of(model.file.chat_template, "") == NO_THINKING:
        raise RefusedError(400, "invalid_request", f'"{model.ref.id}" does not support thinking.', "Leave think out.")


async def _lines(shape: AnswerShape, model: ServedModel, prepare: Prepare) -> AsyncGenerator[bytes, None]:
    generation = await prepare()
    async with aclosing(generation.parts(model)) as parts:
        async for answer, delta in parts:
            if delta and (frame := shape.text(delta)):
                yield line(frame)
            if answer.is_finished:
                if calls := shape.calls(answer):
                    yield line(calls)
                yield line({**shape.ending(answer), **model.advice})


async def _whole(shape: AnswerShape, model: ServedModel, prepare: Prepare) -> Response:
    generation = await prepare()
    (answer,) = await generation.answers(model)
    return JsonBytes({**shape.whole(answer), **model.advice})
