"""One request of /v1/responses on its way: the model's answer as events or whole, and then stored.

Owns what happens when in the life of a response. Independent of who listens.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import cast

from app.protocol.errors import ContextOverflowError
from app.service.api.app_state import planner_warnings
from app.service.api.responses.context import Context, keep
from app.service.api.responses.output import OutputForm
from app.service.api.responses.requests import ResponsesBody
from app.service.api.responses.responses import (
    Event,
    ResponseFormatter,
    ResponseObject,
    ResponseStatus,
    ResponseStreamEvents,
)
from app.service.api.responses.store import ResponseStore
from app.service.api.responses.truncation import without_oldest
from app.service.generation.chat import ChatTurn, chat_generation
from app.service.generation.generation import Answer, Delta
from app.service.models.served_model import ServedModel
from quantizer.system.errors import UserError


class Exchange:
    """The answer of `model` to `turn`, which is the request `body` in its `context`."""

    def __init__(
        self, model: ServedModel, turn: ChatTurn, body: ResponsesBody, context: Context, store: ResponseStore
    ) -> None:
        self._model = model
        self._turn = turn
        self._context = context
        self._store = store
        self._truncates = body.truncates
        self._left_out = ""  # the notice of what truncation has left out
        formatter = ResponseFormatter(
            turn.request.request_id,
            model.ref.id,
            body.echo(turn.request.sampling),
            stores=body.stores and store.is_enabled,
            form=OutputForm(body.wants_summary, body.wants_encrypted_reasoning, body.custom_tools),
        )
        self._events = ResponseStreamEvents(formatter)

    @property
    def response_id(self) -> str:
        return self._events.formatter.response_id

    def so_far(self, status: ResponseStatus = "in_progress") -> ResponseObject:
        """Return the response as it is now."""
        return self._events.so_far(status)

    def failed(self, error: UserError) -> ResponseObject:
        """Return the response that ended with `error`."""
        return self._events.failed(error)

    async def queue(self) -> list[Event]:
        """Store the response as one that waits in the background, and return its first events."""
        await keep(self._store, self._context, self.so_far("queued"), process=os.getpid(), extends=False)
        return list(self._events.opening("queued"))

    async def end(self, response: ResponseObject) -> Event:
        """Store `response`, which ended without its whole answer, and return its event."""
        return self._events.last(await keep(self._store, self._context, response, extends=False))

    async def whole(self) -> ResponseObject:
        """Return the response in one piece. Raises the error of its answer."""
        async with aclosing(self.answer()) as events:
            last = [event async for event in events][-1]
        return cast("ResponseObject", last["response"])

    async def stream(self) -> AsyncGenerator[Event, None]:
        """Yield all events. A client that sees neither completion nor failure retries, so a failure is an event."""
        is_begun = False
        try:
            async with aclosing(self.answer()) as events:
                async for event in events:
                    is_begun = True
                    yield event
        except UserError as error:
            if not is_begun:
                raise
            yield self._events.last({**self.failed(error), "store": False})

    async def answer(self, *, was_queued: bool = False) -> AsyncGenerator[Event, None]:
        """Yield the events, but for those of queuing. Raises the error of the answer."""
        events, is_begun = self._events, False
        async with aclosing(self._parts()) as parts:
            async for answer, delta in parts:
                if not is_begun:  # only now the model is loaded and there may be warnings
                    is_begun = True
                    if self._left_out:
                        self._model.record.notices.append(self._left_out)
                    events.formatter = replace(events.formatter, warnings=planner_warnings(self._model))
                    for event in [events.begun()] if was_queued else events.opening():
                        yield event
                for event in events.of_delta(delta) if delta else ():
                    yield event
                if answer.is_finished:
                    for event in events.closing(answer):
                        yield event
                    yield events.last(await keep(self._store, self._context, events.ended(answer)))

    async def _parts(self) -> AsyncGenerator[tuple[Answer, Delta | None], None]:
        """Yield the parts of the answer, to the newest turns where all are too long and `truncation` is auto."""
        turn = self._turn
        while True:
            overflow, has_begun = None, False
            generation = await chat_generation(self._model, turn)
            try:
                async with aclosing(generation.parts(self._model)) as parts:
                    async for part in parts:
                        has_begun = True
                        yield part
            except ContextOverflowError as error:
                if has_begun or not self._truncates:
                    raise
                overflow = error
            if overflow is None:
                return
            turn = replace(turn, messages=without_oldest(turn.messages, overflow))
            n_left_out = len(self._turn.messages) - len(turn.messages)
            self._left_out = (
                f"The context holds {overflow.n_ctx} tokens; the oldest {n_left_out} messages were left out."
            )
