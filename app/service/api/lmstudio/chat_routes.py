"""LM Studio's /api/v1/chat: the next message of a conversation that the service keeps, whole or as events.

It is a response of OpenAI's /v1/responses in other words, kept in the same place: `previous_response_id` may name one
of either. Source: LM Studio's documentation of its REST API, version 0.4 (chat, streaming-events, stateful-chats).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, TypeAlias, cast

from pydantic import Field, NonNegativeFloat, NonNegativeInt, StrictBool, StrictInt, StrictStr
from starlette.requests import Request
from typing_extensions import TypedDict

from app.protocol.chat import PromptProgress
from app.protocol.errors import ServiceError
from app.service.api.app_state import app_state, model_of, responses_of, turn_of
from app.service.api.fields import Body, WithWarnings
from app.service.api.lmstudio.model_routes import begin_loading, loading
from app.service.api.responses.exchange import Exchange, context_of
from app.service.api.responses.requests import ResponsesBody
from app.service.api.text_request import with_model_defaults
from app.service.generation.progress import prompt_progress, with_progress
from app.service.http.errors import RefusedError, lmstudio_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import NAMED_EVENTS, EventStream, JsonResponse, while_connected
from app.service.models.manager import ModelManager
from app.service.models.served_model import ServedModel
from quantizer.system.errors import UserError

router = Router(prefix="/api/v1")

Event: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["message", "reasoning"]

_DELTAS: Mapping[str, Kind] = {"response.output_text.delta": "message", "response.reasoning_text.delta": "reasoning"}
_LAST = ("response.completed", "response.incomplete", "response.failed")


class InputPart(Body):
    """A text, or a picture as a data URL, of the user's message."""

    type: Literal["image", "message", "text"]
    content: StrictStr = ""
    data_url: StrictStr = ""

    def content_part(self) -> dict[str, str]:
        if self.type == "image":
            return {"type": "input_image", "image_url": self.data_url}
        return {"type": "input_text", "text": self.content}


class StudioChatBody(Body):
    model: StrictStr
    input: StrictStr | Annotated[list[InputPart], Field(min_length=1)]
    system_prompt: StrictStr | None = None
    integrations: list[Any] | None = None
    stream: StrictBool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    max_output_tokens: int | None = None
    reasoning: Literal["off", "low", "medium", "high", "on"] | None = None
    context_length: StrictInt | None = None
    store: StrictBool = True
    deterministic: StrictBool | None = None
    previous_response_id: StrictStr | None = None

    def response_body(self) -> ResponsesBody:
        """Return the request in OpenAI's words. Raises RefusedError (501) for integrations."""
        if self.integrations:
            cause = "localllm runs no MCP servers and plugins (integrations)."
            raise RefusedError(501, "not_implemented", cause, "Send tools to /v1/responses, and run them yourself.")
        parts = [InputPart(type="text", content=self.input)] if isinstance(self.input, str) else self.input
        items: list[dict[str, Any]] = [{"role": "user", "content": [part.content_part() for part in parts]}]
        if self.system_prompt and not self.previous_response_id:
            items.insert(0, {"role": "system", "content": self.system_prompt})
        names = (
            *("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_output_tokens", "store"),
            "deterministic",
        )
        effort = {"off": "none", "on": "medium"}.get(self.reasoning or "", self.reasoning)
        fields: dict[str, Any] = {
            **{name: getattr(self, name) for name in names},
            "model": self.model,
            "input": items,
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": effort} if effort else None,
        }
        if self.system_prompt and self.previous_response_id:  # the conversation has one of its own
            fields["instructions"] = self.system_prompt
        return ResponsesBody.model_validate(fields)


class ChatItem(TypedDict):
    type: Kind
    content: str


class ChatStats(TypedDict):
    input_tokens: NonNegativeInt
    total_output_tokens: NonNegativeInt
    reasoning_output_tokens: NonNegativeInt
    tokens_per_second: NonNegativeFloat
    time_to_first_token_seconds: NonNegativeFloat
    model_load_time_seconds: NotRequired[NonNegativeFloat]


class ChatResult(WithWarnings):
    """An answer; `response_id` names it in the next request, where it is stored."""

    model_instance_id: str
    output: list[ChatItem]
    stats: ChatStats
    response_id: NotRequired[str]


@router.post("/chat", refusals=errors(404, 501))
async def chat(request: Request, body: StudioChatBody) -> JsonResponse[ChatResult] | EventStream[Event]:
    """The next message of a conversation."""
    state, store, wanted = app_state(request), responses_of(request), body.response_body()
    context = await context_of(store, state.runs, wanted)
    model = await model_of(request, body.model)
    asked = with_model_defaults(wanted, model.file)
    turn = await turn_of(state, model, lambda media: asked.turn(context.items, media))
    exchange = Exchange(model, turn, wanted, context, store)
    answer = _Answer(state.models, model, exchange, turn.request.request_id, body.context_length)
    if body.stream:
        return EventStream(answer.events(), _stream_error, NAMED_EVENTS)

    async def whole() -> ChatResult:
        async with aclosing(answer.events(raises=True)) as events:
            last = [event async for event in events][-1]
        return cast("ChatResult", last["result"])

    return await while_connected(request, whole())


class _Answer:
    """The answer of one request: the events of `exchange` in LM Studio's words, around them loading and prefill."""

    def __init__(
        self, models: ModelManager, model: ServedModel, exchange: Exchange, request_id: str, n_ctx: int | None
    ) -> None:
        self._models = models
        self._request_id = request_id
        self._model = model
        self._exchange = exchange
        self._n_ctx = n_ctx
        self._open: Kind | None = None
        self._load_s: float | None = None
        self._begun_s = 0.0
        self._first_token_s: float | None = None

    async def events(self, *, raises: bool = False) -> AsyncGenerator[Event, None]:
        """Yield all events. An error of the answer is an event before the last one, unless it `raises`."""
        model_id = self._model.ref.id
        yield {"type": "chat.start", "model_instance_id": model_id}
        async with aclosing(self._loading()) as loaded:
            async for event in loaded:
                yield event
        self._begun_s = time.monotonic()
        yield {"type": "prompt_processing.start"}
        answering = self._exchange.answer() if raises else self._exchange.stream()
        progress = partial(prompt_progress, self._model, self._request_id)
        async with aclosing(with_progress(answering, progress, only_growth=True)) as answered:
            async for part in answered:
                if isinstance(part, PromptProgress):
                    yield {"type": "prompt_processing.progress", "progress": part.n_read / part.n_tokens}
                    continue
                for translated in self._translated(part):
                    yield translated

    async def _loading(self) -> AsyncGenerator[Event, None]:
        """Yield the events of loading the model, none where it is loaded with the context that is wanted."""
        ready = self._model.status.facts
        if ready is not None and (self._n_ctx is None or ready.n_ctx >= self._n_ctx):
            return
        started_s, name = time.monotonic(), {"model_instance_id": self._model.ref.id}
        yield {"type": "model_load.start", **name}
        n_ctx = self._n_ctx
        await begin_loading(self._models, self._model, (lambda config: replace(config, n_ctx=n_ctx)) if n_ctx else None)
        async with aclosing(loading(self._model)) as fractions:
            async for fraction in fractions:
                yield {"type": "model_load.progress", **name, "progress": fraction}
        self._load_s = round(time.monotonic() - started_s, 3)
        yield {"type": "model_load.end", **name, "load_time_seconds": self._load_s}

    def _translated(self, event: Event) -> list[Event]:
        if self._first_token_s is None:  # the first event comes with the first token
            self._first_token_s = time.monotonic() - self._begun_s
            return [{"type": "prompt_processing.end"}, *self._translated(event)]
        if kind := _DELTAS.get(event["type"]):
            begun = []
            if self._open != kind:
                begun = [*self._end(), {"type": f"{kind}.start"}]
                self._open = kind
            return [*begun, {"type": f"{kind}.delta", "content": event["delta"]}]
        if event["type"] not in _LAST:
            return []
        response = event["response"]
        failed = [_stream_error(ServiceError(response["error"]["message"]))] if response["error"] else []
        return [*self._end(), *failed, {"type": "chat.end", "result": self._result(response)}]

    def _end(self) -> list[Event]:
        ended, self._open = self._open, None
        return [{"type": f"{ended}.end"}] if ended else []

    def _result(self, response: Mapping[str, Any]) -> ChatResult:
        items: list[ChatItem] = [
            {"type": part["type"], "content": "".join(content["text"] for content in part.get("content", ()))}
            for part in response["output"]
        ]
        result: ChatResult = {
            "model_instance_id": self._model.ref.id,
            "output": [item for item in items if item["content"]],
            "stats": self._stats(response["usage"]),
        }
        if response["store"]:
            result["response_id"] = response["id"]
        if warnings := response.get("warnings"):
            result["warnings"] = warnings
        return result

    def _stats(self, usage: Mapping[str, Any] | None) -> ChatStats:
        n_output = usage["output_tokens"] if usage else 0
        first_s = self._first_token_s or 0.0
        decode_s = time.monotonic() - self._begun_s - first_s
        stats: ChatStats = {
            "input_tokens": usage["input_tokens"] if usage else 0,
            "total_output_tokens": n_output,
            "reasoning_output_tokens": usage["output_tokens_details"]["reasoning_tokens"] if usage else 0,
            "tokens_per_second": n_output / decode_s if decode_s > 0 else 0.0,
            "time_to_first_token_seconds": round(first_s, 3),
        }
        if self._load_s is not None:
            stats["model_load_time_seconds"] = self._load_s
        return stats


def _stream_error(error: UserError, *, hide_paths: bool = True) -> Event:
    return {"type": "error", **lmstudio_error(error, hide_paths=hide_paths)}
