"""OpenAI's dialect: /v1/models, /v1/chat/completions, /v1/completions.

Owns these routes; bodies and answers have modules of their own. Knows nothing of how an answer is made.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from app.engine import request as engine_request
from app.library.resolve import ModelRef, UnknownModelError
from app.service.answer import Answer
from app.service.api.access import models_of
from app.service.api.openai_answers import AnswerShape, Kind
from app.service.api.openai_bodies import ChatBody, CompletionBody, GenerationBody
from app.service.body import read_body
from app.service.models import ServedModel
from app.service.problems import openai_error
from app.service.reasoning import NO_THINKING, Thinking
from app.service.streaming import EventStream, JsonBytes, event, while_connected
from app.service.tools.calling import Calling

__all__ = ["router"]

router = APIRouter(prefix="/v1")

_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The engine's requests, one an answer, how the answers are to be read, and what is done with the only one."""

    requests: tuple[engine_request.Request, ...]
    thinking: Thinking = NO_THINKING
    calling: Calling | None = None
    when_said: Callable[[Answer], None] | None = None

    def answers(self) -> dict[str, Answer]:
        """Return the answers by request id, nothing in them yet."""
        return {
            request.request_id: Answer(index, self.thinking, self.calling)
            for index, request in enumerate(self.requests)
        }

    def end(self, answers: Mapping[str, Answer]) -> None:
        """Go on from a conversation's next message; where there are several it is not known which one that is."""
        only, *others = answers.values()
        if self.when_said and not others:
            self.when_said(only)


# A template may have to be rendered, which can fail and takes time.
PrepareRequests = Callable[[], Awaitable[_Wanted]]


@router.get("/models")
async def list_models(request: Request) -> Response:
    """Every model that a request may name."""
    models = models_of(request)
    entries = {model.ref.id: model for model in models.loaded}
    data = [_model_entry(ref, entries.get(ref.id)) for ref in await models.here()]
    return JsonBytes({"object": "list", "data": data})


@router.get("/models/{model_id:path}")
async def retrieve_model(request: Request, model_id: str) -> Response:
    """One model, by its exact id."""
    models = models_of(request)
    here = await models.here()
    for ref in here:
        if ref.id == model_id:
            return JsonBytes(_model_entry(ref, next((model for model in models.loaded if model.ref == ref), None)))
    names = ", ".join(ref.id for ref in here)
    raise UnknownModelError(f"There is no model {model_id!r}.", f"Here are: {names}.")


@router.post("/chat/completions")
async def chat_completions(request: Request) -> Response:
    """The next message of a conversation."""
    body = await read_body(request, ChatBody)
    models = models_of(request)
    messages, offer = body.template_messages(), body.offer()
    model = await models.named(body.model or "")

    async def prepare() -> _Wanted:
        prompt = await models.prompt(model, messages, offer)
        requests = body.chat_requests(prompt)

        def anticipate(answer: Answer) -> None:
            if not answer.calls:  # else a tool answers, not the user
                said = [*messages, {"role": "assistant", "content": answer.text}]
                models.anticipate(model, requests[0], said, offer)

        return _Wanted(requests, body.thinking(prompt), prompt.calling, anticipate)

    return await _respond(request, "chat", body, model, prepare)


@router.post("/completions")
async def completions(request: Request) -> Response:
    """The continuation of a text."""
    body = await read_body(request, CompletionBody)
    wanted = _Wanted(body.completion_requests())
    model = await models_of(request).named(body.model or "")

    async def prepare() -> _Wanted:
        return wanted

    return await _respond(request, "text", body, model, prepare)


async def _respond(
    request: Request, kind: Kind, body: GenerationBody, model: ServedModel, prepare: PrepareRequests
) -> Response:
    if body.stream:
        return EventStream(_chunks(kind, model, prepare, body), openai_error)
    return await while_connected(request, _whole(kind, model, prepare))


async def _chunks(
    kind: Kind, model: ServedModel, prepare: PrepareRequests, body: GenerationBody
) -> AsyncGenerator[bytes, None]:
    wanted = await prepare()
    shape = AnswerShape.of(kind, wanted.requests, model.ref.id)
    answers = wanted.answers()
    is_opened = False
    async with model.answer(*wanted.requests) as events:
        async for part in events:
            if not is_opened:
                is_opened = True
                for opening in shape.openings():
                    yield event(opening)
            answer = answers[part.request_id]
            if delta := answer.add(part):
                yield event(shape.text(delta, counts_tokens=bool(body.timings_per_token)))
            if answer.is_finished:
                yield event(shape.ending(answer))
    wanted.end(answers)
    if body.wants_usage:
        yield event(shape.usage(list(answers.values())))
    yield _DONE


async def _whole(kind: Kind, model: ServedModel, prepare: PrepareRequests) -> Response:
    wanted = await prepare()
    shape = AnswerShape.of(kind, wanted.requests, model.ref.id)
    answers = wanted.answers()
    async with model.answer(*wanted.requests) as events:
        async for part in events:
            answers[part.request_id].add(part)
    wanted.end(answers)
    return JsonBytes(shape.whole(list(answers.values())))


def _model_entry(ref: ModelRef, model: ServedModel | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": ref.id, "object": "model", "created": 0, "owned_by": "localllm"}
    if model is not None:
        entry["created"] = model.file.created_s
        entry["meta"] = _meta(model)
    return entry


def _meta(model: ServedModel) -> dict[str, int]:
    """Return the facts that llama.cpp's clients look for (source: llama-server's /v1/models)."""
    meta = {"n_ctx_train": model.file.n_ctx_train, "size": model.file.n_bytes}
    if (ready := model.engine.status.ready) is not None:
        meta |= {"n_vocab": ready.n_vocab, "n_params": ready.n_parameters, "n_ctx": ready.n_ctx}
    return meta
