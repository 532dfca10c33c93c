"""Routes of Ollama's dialect for text and for the models that are present: `/` and /api/*."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from typing_extensions import TypedDict

from app.common.answer_text import reasoning_tags_of
from app.library.external import recipe_of
from app.library.local.model_task import ModelTask
from app.library.local.resolve import UnknownModelError
from app.service.api.app_state import app_state, model_of, planner_warnings, turn_of
from app.service.api.embeddings import as_floats
from app.service.api.fields import WithWarnings
from app.service.api.ollama.library_routes import find_model, model_not_found
from app.service.api.ollama.requests import (
    EmbedBody,
    KeepAliveBody,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaTextBody,
    ShowBody,
)
from app.service.api.ollama.responses import (
    ChatFormatter,
    ChatResponse,
    DoneReason,
    EmbeddingUsage,
    GenerateFormatter,
    GenerateResponse,
    ModelEntry,
    Object,
    OllamaFormatter,
    RunningEntry,
    ShowResponse,
    contents,
    embedding_usage,
    list_entry,
    running_entry,
    show_response,
)
from app.service.generation.chat import chat_generation
from app.service.generation.generation import Generation, Prepare
from app.service.http.errors import RefusedError, ollama_error
from app.service.http.guard import require_manage
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse, LineStream, while_connected
from app.service.infill_request import fim_generation
from app.service.models.served_model import ServedModel

router = Router()


class Version(TypedDict):
    version: str


class ListResponse(TypedDict):
    models: list[ModelEntry]


class ProcessResponse(TypedDict):
    models: list[RunningEntry]


class EmbedResponse(EmbeddingUsage, WithWarnings):
    model: str
    embeddings: list[list[float]]


class EmbeddingsResponse(TypedDict):
    """The vector of one prompt, empty for an empty one."""

    embedding: list[float]


_ZED = re.compile(r"Zed/0\.(\d{1,6})\.")
_ZED_WITH_CALL_IDS = 213  # source: Zed's crates/ollama, and its pull request 42284
API_VERSION = "0.13.5"  # of the Ollama whose API this is; clients ask for 0.13.4 at least


@router.route("/", "GET", "HEAD")
async def root() -> PlainTextResponse:
    """The text by which clients recognise Ollama."""
    return PlainTextResponse("Ollama is running")


@router.route("/api/version", "GET", "HEAD")
async def version() -> JsonResponse[Version]:
    """The version of the API."""
    return JsonResponse({"version": API_VERSION})


@router.route("/api/tags", "GET", "HEAD")
async def tags(request: Request) -> JsonResponse[ListResponse]:
    """Every model that a request may name, without files that fail validation."""
    models = app_state(request).models
    described = await models.catalog.list_with_facts()
    recipes = await asyncio.to_thread(lambda: [recipe_of(ref) for ref, _ in described])
    pairs = zip(described, recipes, strict=True)
    entries = [list_entry(ref, facts, recipe, models.senses(ref, facts)) for (ref, facts), recipe in pairs]
    return JsonResponse({"models": entries})


@router.get("/api/ps")
async def running(request: Request) -> JsonResponse[ProcessResponse]:
    """The loaded models, each under every name that holds it, the one that stays longest first."""
    models = app_state(request).models
    loaded = {model.ref: model for model in models.opened if model.is_loaded}
    described = await models.catalog.with_facts(tuple(loaded))
    entries = [running_entry(loaded[ref], facts) for ref, facts in described]
    return JsonResponse({"models": sorted(entries, key=lambda entry: entry["expires_at"], reverse=True)})


@router.post("/api/show", refusals=errors(404))
async def show(request: Request, body: ShowBody) -> JsonResponse[ShowResponse]:
    """The description of one model."""
    models = app_state(request).models
    ref = await find_model(models, body.model_name)
    recipe = await asyncio.to_thread(recipe_of, ref)
    response = show_response(ref, await models.catalog.facts(ref), recipe, models.serving(ref))
    if body.verbose:
        arrays, response["tensors"] = await asyncio.to_thread(contents, ref.path)
        response["model_info"] |= arrays
    return JsonResponse(response)


@router.post("/api/chat", refusals=errors(404))
async def chat(request: Request, body: OllamaChatBody) -> JsonResponse[ChatResponse] | LineStream[ChatResponse]:
    """The next message of a conversation; without messages the model is loaded or unloaded."""
    model = await _model(request, body)
    zed = _ZED.match(request.headers.get("user-agent", ""))  # before 0.213 it parses only calls without an id
    formatter = ChatFormatter(model.ref.id, model.record, zed is None or int(zed[1]) >= _ZED_WITH_CALL_IDS)
    if not body.messages:
        return await _load(request, formatter, body, model)
    turn = await turn_of(app_state(request), model, body.with_defaults(model.file).turn)
    return await _respond(request, formatter, body, model, lambda: chat_generation(model, turn))


@router.post("/api/generate", refusals=errors(404))
async def generate(
    request: Request, body: OllamaGenerateBody
) -> JsonResponse[GenerateResponse] | LineStream[GenerateResponse]:
    """The answer to a prompt, or its continuation; without a prompt the model is loaded or unloaded."""
    body.check()
    model = await _model(request, body)
    body = body.with_defaults(model.file)
    formatter = GenerateFormatter(model.ref.id, model.record)
    if not body.prompt and not body.suffix and not body.images:
        return await _load(request, formatter, body, model)

    async def prepare() -> Generation:
        if body.fim_request:
            return await fim_generation(model, body.fim_request, (body.request(json_format=body.json_format()),))
        if body.raw or not model.file.chat_template:  # a base model's template is the prompt alone, as in Ollama
            raw, media = await turn_of(app_state(request), model, body.raw_request)
            return Generation((await media.in_request(raw),))
        return await chat_generation(model, await turn_of(app_state(request), model, body.turn))

    return await _respond(request, formatter, body, model, prepare)


@router.post("/api/embed", refusals=errors(404))
async def embed(request: Request, body: EmbedBody) -> JsonResponse[EmbedResponse]:
    """A vector of length 1 for each input."""
    model = await _model(request, body, task="vectors")

    async def answer() -> EmbedResponse:
        if not body.inputs():
            return {"model": model.ref.id, "embeddings": []}
        embedded = await model.embed(body.inputs(), cuts=body.truncate is not False)
        vectors = [_shortened(as_floats(vector), body.dimensions) for vector in embedded.vectors]
        if embedded.n_cut:
            cut = f"{embedded.n_cut} of the inputs did not fit in the context and were truncated."
            model.record.notices.append(f"{cut} Send truncate: false to refuse such inputs.")
        usage = embedding_usage(embedded, model.record)
        return {"model": model.ref.id, "embeddings": vectors, **usage, **planner_warnings(model)}

    return await while_connected(request, answer())


@router.post("/api/embeddings", refusals=errors(404))
async def embeddings(request: Request, body: EmbedBody) -> JsonResponse[EmbeddingsResponse]:
    """The vector of one prompt."""
    model = await _model(request, body, task="vectors")

    async def answer() -> EmbeddingsResponse:
        return {"embedding": as_floats((await model.embed([body.prompt])).vectors[0]) if body.prompt else []}

    return await while_connected(request, answer())


def _shortened(vector: list[float], n_dimensions: int | None) -> list[float]:
    """Return the first `n_dimensions` of a longer vector with length 1 again (source: Ollama's EmbedHandler, 0.33)."""
    if n_dimensions is None or not 0 < n_dimensions < len(vector):
        return vector
    length = math.hypot(*vector[:n_dimensions]) or 1.0
    return [value / length for value in vector[:n_dimensions]]


async def _model(request: Request, body: KeepAliveBody, *, task: ModelTask = "text") -> ServedModel:
    try:
        return await model_of(request, body.model_name, body.idle_limit, purpose=task)
    except UnknownModelError as error:
        raise model_not_found(body.model_name, error) from error


async def _load(
    request: Request, formatter: OllamaFormatter[Object], body: KeepAliveBody, model: ServedModel
) -> JsonResponse[Object]:
    async def answer() -> Object:
        if body.unloads:
            require_manage(request.scope)
            model.keep_alive.expire()
        else:
            await model.ready()
        reason: DoneReason = "unload" if body.unloads else "load"
        return formatter.without_text(reason, planner_warnings(model))

    return await while_connected(request, answer())


async def _respond(
    request: Request, formatter: OllamaFormatter[Object], body: OllamaTextBody, model: ServedModel, prepare: Prepare
) -> JsonResponse[Object] | LineStream[Object]:
    if body.how_to_think().is_wanted and not reasoning_tags_of(model.file.chat_template, "").has_reasoning:
        raise RefusedError(400, "invalid_request", f'"{model.ref.id}" does not support thinking.', "Leave think out.")

    async def lines() -> AsyncGenerator[Object, None]:
        generation = await prepare()
        async with aclosing(generation.parts(model)) as parts:
            async for answer, delta in parts:
                if delta and (line := formatter.line(delta)):
                    yield line
                if answer.is_finished:
                    if calls := formatter.calls_line(answer):
                        yield calls
                    yield formatter.last_line(answer, planner_warnings(model))

    async def whole() -> Object:
        (answer,) = await (await prepare()).answers(model)
        return formatter.whole(answer, planner_warnings(model))

    if body.stream is not False:
        return LineStream(lines(), ollama_error)
    return await while_connected(request, whole())
