"""One request of /v1/responses on its way: the answer as events or whole, then stored; in the background if it says so.

Owns what happens when in the life of a response, and what `truncation: "auto"` leaves out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import cast

from app.common.event_log import log_event
from app.protocol.chat import Message
from app.protocol.errors import ContextOverflowError, ServiceError
from app.service.api.app_state import planner_warnings
from app.service.api.responses.context import Context, keep
from app.service.api.responses.requests import ResponsesBody
from app.service.api.responses.responses import (
    UNFINISHED,
    Event,
    OutputForm,
    ResponseFormatter,
    ResponseObject,
    ResponseStatus,
    ResponseStreamEvents,
)
from app.service.api.responses.store import ResponseStore
from app.service.generation.chat import ChatTurn, chat_generation
from app.service.generation.generation import Answer, Delta
from app.service.http.errors import BUG, RefusedError
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


_SHARE = 0.75  # of the context, so that the answer has room and the next turns do not cut again
_MESSAGE_CHARACTERS = 48  # what a template adds to a message, at least


def without_oldest(messages: Sequence[Message], overflow: ContextOverflowError) -> list[Message]:
    """Return `messages` with the system's and the newest turns of the others, each of which begins with the user.

    The number of tokens is estimated by length, so the result may be too long again, but it is shorter.
    Raises `overflow` where no turn can leave.
    """
    n_system = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    starts = [index for index in range(n_system + 1, len(messages)) if messages[index].role == "user"]
    if not starts:
        raise overflow
    lengths = [
        len(message.content)
        + len(message.reasoning)
        + sum(len(call.name) + len(call.arguments) for call in message.calls)
        + _MESSAGE_CHARACTERS
        for message in messages
    ]
    most = _SHARE * overflow.n_ctx * sum(lengths) / max(1, overflow.n_prompt_tokens)
    start = next((start for start in starts if sum(lengths[:n_system]) + sum(lengths[start:]) <= most), starts[-1])
    return [*messages[:n_system], *messages[start:]]


MAX_RUNNING = 64
MAX_ENDED = 16  # whose events are held for those who listen later
_ENDED = ServiceError("The service ended before the answer was whole.", "Ask again.")


class Run:
    """An exchange in a task of its own. `response` is what there is of it."""

    def __init__(self, exchange: Exchange, events: list[Event]) -> None:
        self._exchange = exchange
        self._events = events
        self._status: ResponseStatus = "queued"
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def response(self) -> ResponseObject:
        if not self.has_ended:
            return self._exchange.so_far(self._status)
        return cast("ResponseObject", self._events[-1]["response"])

    @property
    def has_ended(self) -> bool:
        return self._status not in UNFINISHED

    async def follow(self, after: int = -1) -> AsyncGenerator[Event, None]:
        """Yield the events with a higher number than `after`, until the last one."""
        index = after + 1
        while True:
            changed = self._changed
            for event in self._events[index:]:
                index += 1
                yield event
            if self.has_ended and index >= len(self._events):
                return
            await changed.wait()

    async def cancel(self) -> None:
        """End it; what there is of the answer stays."""
        await self._stop()
        if not self.has_ended:
            self._add(await self._exchange.end(self._exchange.so_far("cancelled")))

    async def close(self) -> None:
        """End it with the service."""
        await self._stop()
        if not self.has_ended:
            self._add(await self._exchange.end(self._exchange.failed(_ENDED)))

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            async with aclosing(self._exchange.answer(was_queued=True)) as events:
                async for event in events:
                    self._add(event)
        except UserError as error:
            self._add(await self._exchange.end(self._exchange.failed(error)))
        except Exception as error:
            log_event("service", f"A response in the background failed: {error!r}")
            self._add(await self._exchange.end(self._exchange.failed(BUG)))

    def _add(self, event: Event) -> None:
        self._events.append(event)
        if "response" in event:
            self._status = event["response"]["status"]
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Runs:
    """The runs of this service, by the id of the response: those that run, and the last ones that have ended."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}

    async def start(self, exchange: Exchange) -> Run:
        """Begin to answer, and return the run, which goes on by itself. Raises RefusedError where too many run."""
        if sum(not run.has_ended for run in self._runs.values()) >= MAX_RUNNING:
            cause = f"{MAX_RUNNING} responses run in the background already."
            raise RefusedError(429, "rate_limit_exceeded", cause, "Wait until one has ended, or cancel one.")
        run = self._runs[exchange.response_id] = Run(exchange, await exchange.queue())
        ended = [name for name, other in self._runs.items() if other.has_ended]
        for name in ended[: max(0, len(ended) - MAX_ENDED)]:
            del self._runs[name]
        return run

    def find(self, response_id: str) -> Run | None:
        """Return the run of a response, None if it is none of this service or ended long ago."""
        return self._runs.get(response_id)

    async def remove(self, response_id: str) -> None:
        """End the run of a response that is to be deleted."""
        if run := self._runs.pop(response_id, None):
            await run.cancel()

    async def close(self) -> None:
        """End all."""
        await asyncio.gather(*(run.close() for run in self._runs.values()))
