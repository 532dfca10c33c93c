"""The requests that wait for messages of an engine: answers that stream, and calls with one result.

Owns who waits for which id. Independent of processes and of loading.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeAlias

from app.engine.protocol.messages import Finished, Output
from app.engine.request import Request
from quantizer.errors import UserError

__all__ = ["AnswerEvent", "Events", "PendingRequests", "until_finished"]

AnswerEvent: TypeAlias = Output | Finished
Events: TypeAlias = asyncio.Queue[AnswerEvent | UserError]


class PendingRequests:
    """The running answers and calls of one engine. Messages for unknown ids are dropped."""

    def __init__(self) -> None:
        self._answers: dict[str, Events] = {}
        self._calls: dict[str, asyncio.Future[Any]] = {}

    @property
    def n_answers(self) -> int:
        """Number of running answers."""
        return len(self._answers)

    def expect_answers(self, requests: Sequence[Request]) -> Events:
        """Return the queue that gets the events of `requests`."""
        events: Events = asyncio.Queue()
        self._answers.update({request.request_id: events for request in requests})
        return events

    def expect_result(self, call_id: str) -> asyncio.Future[Any]:
        """Return the future that gets the result of a call."""
        result = self._calls[call_id] = asyncio.get_running_loop().create_future()
        return result

    def is_awaited(self, request_id: str) -> bool:
        """Whether an answer has not ended yet."""
        return request_id in self._answers

    def forget(self, any_id: str) -> None:
        """Drop what still comes for a request or a call."""
        self._answers.pop(any_id, None)
        self._calls.pop(any_id, None)

    def add_event(self, request_id: str, event: AnswerEvent | UserError) -> None:
        """Deliver an event of an answer; a Finished or an error is the last."""
        events = self._answers.get(request_id)
        if events is not None:
            events.put_nowait(event)
        if not isinstance(event, Output):
            self._answers.pop(request_id, None)

    def resolve(self, call_id: str, value: object) -> None:
        """Deliver the result of a call."""
        result = self._calls.get(call_id)
        if result is not None and not result.done():
            result.set_result(value)

    def fail(self, any_id: str, error: UserError) -> None:
        """End the request or call of that id with `error`."""
        self.add_event(any_id, error)
        result = self._calls.get(any_id)
        if result is not None and not result.done():
            result.set_exception(error)

    def fail_all(self, error: UserError) -> None:
        """End everything with `error`."""
        for any_id in (*self._answers, *self._calls):
            self.fail(any_id, error)


async def until_finished(events: Events, n_answers: int) -> AsyncGenerator[AnswerEvent, None]:
    """Yield events until `n_answers` have ended. Raises the error of the first that fails."""
    while n_answers:
        event = await events.get()
        if isinstance(event, UserError):
            raise event.with_traceback(None)
        n_answers -= isinstance(event, Finished)
        yield event
