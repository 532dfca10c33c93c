"""Responses that are generated in the background: whether or not somebody listens, and until they are cancelled.

Owns their tasks, and their events for those who listen later. Independent of how a response is generated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from app.common.event_log import log_event
from app.protocol.errors import ServiceError
from app.service.api.responses.exchange import Exchange
from app.service.api.responses.responses import UNFINISHED, Event, ResponseObject, ResponseStatus
from app.service.http.errors import BUG, RefusedError
from quantizer.system.errors import UserError

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
