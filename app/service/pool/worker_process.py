"""An engine worker as a child process that exchanges messages, and the requests that wait for them.

Answers stream; calls have one result. Models and restarts are `engine_client`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from app.engine.messages import Finished, Output, Spoken, WorkerMessage, decode, encode, message_length
from app.engine.request import READ_AHEAD_PRIORITY, Request
from app.service.starting import ENGINE_PROCESS, start_worker_process
from quantizer.system.errors import EngineError, UserError
from quantizer.system.process import ChildProcess, exit_error

_LENGTH_BYTES = 4

AnswerEvent: TypeAlias = Output | Finished
SpeechEvent: TypeAlias = Spoken | Finished
Events: TypeAlias = asyncio.Queue[Any]  # of AnswerEvent or SpeechEvent, with a UserError at the end
# Starts a worker. Raises EngineError where the system cannot.
StartWorker: TypeAlias = Callable[[], Awaitable["WorkerProcess"]]


class WorkerProcess:
    """A running worker. Make it with `start`; `end` must be awaited in every case."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child

    @classmethod
    async def start(cls, command: Sequence[str]) -> WorkerProcess:
        """Start `command`. Raises EngineError where the system cannot."""
        return cls(await start_worker_process(command))

    @property
    def pid(self) -> int:
        return self._child.pid

    def forget_output(self) -> None:
        """Leave what the worker wrote so far out of the error by which it may end."""
        self._child.stderr.clear()

    def send(self, message: WorkerMessage) -> None:
        """Queue `message` for the worker. A dead worker loses it; `messages` ends then."""
        self._child.write(encode(message))

    async def messages(self) -> AsyncGenerator[WorkerMessage, None]:
        """Yield the worker's messages until its pipe closes. Raises EngineError for anything else that it writes."""
        stdout = self._child.stdout
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                prefix = await stdout.readexactly(_LENGTH_BYTES)
                try:
                    message = decode(await stdout.readexactly(message_length(prefix)))
                except (ValueError, TypeError, KeyError) as error:
                    cause = f"The engine process sent an invalid message: {error}."
                    raise EngineError(cause, "Report this.") from error
                yield message

    async def end(self, grace_s: float) -> EngineError:
        """Close the worker's stdin, kill it unless it ends within `grace_s`, and return how it ended as an error."""
        status = await self._child.end(grace_s)
        remedy = "Send the request again: a new engine is started."
        return exit_error(ENGINE_PROCESS, status, self._child.stderr, remedy, runs_llama=True)


class WorkerStarter:
    """Starts workers by `command`. The first is `started`, which runs already; unused it ends with this context."""

    def __init__(self, command: Sequence[str], started: ChildProcess | None) -> None:
        self._command = command
        self._started = started

    async def __aenter__(self) -> WorkerStarter:
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._started is not None:
            await self._started.end(0)

    async def __call__(self) -> WorkerProcess:
        started, self._started = self._started, None
        return WorkerProcess(started) if started is not None else await WorkerProcess.start(self._command)


class PendingRequests:
    """The running answers and calls of one engine. Messages for unknown ids are dropped."""

    def __init__(self) -> None:
        self._answers: dict[str, Events] = {}
        self._requests: dict[str, Request] = {}
        self._calls: dict[str, asyncio.Future[Any]] = {}

    @property
    def n_answers(self) -> int:
        return len(self._answers)

    @property
    def is_awaited_by_somebody(self) -> bool:
        return any(request.priority > READ_AHEAD_PRIORITY for request in self._requests.values())

    def request(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def variants_of(self, request_id: str) -> tuple[str, ...]:
        return tuple(name for name in self._answers if name == request_id or name.startswith(f"{request_id}-"))

    def expect_answers(self, requests: Sequence[Request]) -> Events:
        events: Events = asyncio.Queue()
        self._answers.update({request.request_id: events for request in requests})
        self._requests.update({request.request_id: request for request in requests})
        return events

    def expect_speech(self, request_id: str) -> Events:
        events: Events = asyncio.Queue()
        self._answers[request_id] = events
        return events

    def expect_result(self, call_id: str) -> asyncio.Future[Any]:
        result = self._calls[call_id] = asyncio.get_running_loop().create_future()
        return result

    def is_awaited(self, request_id: str) -> bool:
        return request_id in self._answers

    def forget(self, any_id: str) -> None:
        self._answers.pop(any_id, None)
        self._requests.pop(any_id, None)
        self._calls.pop(any_id, None)

    def add_event(self, request_id: str, event: AnswerEvent | SpeechEvent | UserError) -> None:
        """Deliver an event of an answer; a Finished or an error is the last."""
        events = self._answers.get(request_id)
        if events is not None:
            events.put_nowait(event)
        if not isinstance(event, Output | Spoken):
            self._answers.pop(request_id, None)
            self._requests.pop(request_id, None)

    def resolve(self, call_id: str, value: object) -> None:
        result = self._calls.get(call_id)
        if result is not None and not result.done():
            result.set_result(value)

    def fail(self, any_id: str, error: UserError) -> None:
        self.add_event(any_id, error)
        result = self._calls.get(any_id)
        if result is not None and not result.done():
            result.set_exception(error)

    def fail_all(self, error: UserError) -> None:
        for any_id in (*self._answers, *self._calls):
            self.fail(any_id, error)


async def until_finished(events: Events, n_answers: int) -> AsyncGenerator[Any, None]:
    """Yield events until `n_answers` have ended. Raises the error of the first that fails."""
    while n_answers:
        event = await events.get()
        if isinstance(event, UserError):
            raise event.with_traceback(None)
        n_answers -= isinstance(event, Finished)
        yield event
