"""One model's engine, kept alive: loading, answers, and a fresh worker when one dies.

Owns the life of a worker process and which request each frame belongs to. Knows nothing of HTTP, of chat templates or
of model names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from app.engine.frames import (
    Abort,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    EngineConfig,
    Failed,
    Finished,
    Frame,
    Load,
    LoadProgress,
    Notice,
    Observe,
    Observed,
    Output,
    Planned,
    Rank,
    Ranked,
    Ready,
    Submit,
    Tokenize,
    Tokenized,
    WhenUnfit,
)
from app.engine.request import FinishReason, Request
from app.service.crash_limit import CrashLimit
from app.service.worker_process import WorkerProcess
from quantizer.errors import EngineError, UnfitError, UserError, rebuild

__all__ = ["AnswerEvent", "EngineStatus", "Supervisor"]

AnswerEvent: TypeAlias = Output | Finished

_GRACE_AFTER_DEATH_S = 0.3  # running answers wait for it, and they learn of the death within a second
_OBSERVE_TIMEOUT_S = 1.0
_GRACE_AT_STOP_S = 6.0  # a worker saves what it computed for 3 s at most, and writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """What is known of an engine. `plan` is what loading follows, the object of `localllm plan --json`.

    `ready` describes the loaded model, `error` is set when `state` is "failed".

    One that is "unloaded" loads its model when somebody asks.
    """

    state: Literal["loading", "ready", "failed", "unloaded"] = "loading"
    progress: float = 0.0
    notices: tuple[str, ...] = ()
    plan: dict[str, Any] | None = None
    ready: Ready | None = None
    error: UserError | None = None


class Supervisor:
    """The engine of the model at `model_path`, run by `command`.

    A worker that dies fails what was running with an EngineError and is started again: at once if it had been ready,
    with the next request otherwise. After 3 failures within a minute the state stays "failed" until that is over.
    """

    def __init__(
        self,
        model_path: Path,
        config: EngineConfig,
        command: Sequence[str],
        limit: CrashLimit | None = None,
        on_work: Callable[[], None] = lambda: None,
    ) -> None:
        self.status = EngineStatus()
        self._load = Load(str(model_path), config)
        self._command = tuple(command)
        self._on_work = on_work
        self._limit = limit or CrashLimit()
        self._worker: WorkerProcess | None = None
        self._life: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None  # the life before, whose worker may still be there
        self._settled = asyncio.Event()  # loading is over, well or badly
        self._answers: dict[str, asyncio.Queue[AnswerEvent | UserError]] = {}
        self._calls: dict[str, asyncio.Future[Any]] = {}

    @property
    def n_running(self) -> int:
        """Number of answers under way."""
        return len(self._answers)

    @property
    def is_busy(self) -> bool:
        """Whether the engine loads, answers or is asked something."""
        return self.status.state == "loading" or bool(self._answers or self._calls)

    @property
    def worker_pid(self) -> int | None:
        return self._worker.pid if self._worker else None

    def start(self, when_unfit: WhenUnfit | None = None) -> None:
        """Begin loading unless a worker lives, or too many have failed of late; `when_unfit` holds from then on."""
        is_alive = self._life is not None and not self._life.done() and self.status.state != "unloaded"
        if not is_alive and not self._limit.is_reached:
            if when_unfit is not None:
                self._load = replace(self._load, config=replace(self._load.config, when_unfit=when_unfit))
            self._begin_loading()
            self._ending, self._life = self._life, asyncio.create_task(self._live(after=self._life))

    def unload(self) -> None:
        """Let the worker go until somebody asks again; one that is at work stays. Ending goes on after this."""
        if self.status.state == "ready" and self._life is not None and not self.is_busy:
            self.status = EngineStatus(state="unloaded")
            self._life.cancel()

    async def ready(self) -> Ready:
        """Wait for the model, starting a worker if none lives. Raises the error that loading ended with."""
        self.start()
        while self.status.state == "loading":
            await self._settled.wait()
        if self.status.ready is None:
            assert self.status.error is not None, "a load that has ended badly has an error"
            raise self.status.error.with_traceback(None)
        return self.status.ready

    @asynccontextmanager
    async def answer(self, *requests: Request) -> AsyncIterator[AsyncIterator[AnswerEvent]]:
        """Run `requests` and give their events as they come, a Finished last of each.

        Leaving early aborts them. Raises what made one of them fail.
        """
        await self.ready()
        events: asyncio.Queue[AnswerEvent | UserError] = asyncio.Queue()
        for request in requests:
            self._answers[request.request_id] = events
            self._send(Submit(request))
        try:
            yield _until_finished(events, len(requests))
        finally:
            for request in requests:
                if self._answers.pop(request.request_id, None) is not None:
                    self._send(Abort(request.request_id))

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        """Return the tokens of `text`; special tokens written in it count as such with `parse_special`."""
        tokens: tuple[int, ...] = await self._call(Tokenize(uuid4().hex, text, add_special, parse_special))
        return tokens

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, which must be ids of the vocabulary."""
        text: str = await self._call(Detokenize(uuid4().hex, tuple(tokens)))
        return text

    async def observe(self) -> Observed | None:
        """Return what the engine has done and holds; None when there is none just now."""
        if self.status.state != "ready":
            return None
        try:
            async with asyncio.timeout(_OBSERVE_TIMEOUT_S):
                observed: Observed = await self._call(Observe(uuid4().hex))
        except (EngineError, TimeoutError):  # it died meanwhile, or the system has stopped it
            return None
        return observed

    async def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> Embedded:
        """Return the vectors of `inputs`, texts or token ids. Raises RequestError for a model that only ranks."""
        embedded: Embedded = await self._call(Embed(uuid4().hex, tuple(inputs)))
        return embedded

    async def rank(self, query: str, documents: Sequence[str]) -> Ranked:
        """Return how well `documents` answer `query`. Raises RequestError for a model that cannot rank."""
        ranked: Ranked = await self._call(Rank(uuid4().hex, query, tuple(documents)))
        return ranked

    async def stop(self) -> None:
        """End the worker; running answers fail."""
        if self._life is not None:
            if self.status.state != "unloaded":  # else it ends already
                self._life.cancel()
            await asyncio.wait({self._life, *([self._ending] if self._ending else [])})
        self._fail_running(EngineError("The model was unloaded.", "Send the request again."))

    async def _call(self, frame: Tokenize | Detokenize | Embed | Rank | Observe) -> Any:
        await self.ready()
        result = self._calls[frame.call_id] = asyncio.get_running_loop().create_future()
        self._send(frame)
        try:
            return await result
        finally:
            self._calls.pop(frame.call_id, None)
            if result.cancelled():
                self._send(Abort(frame.call_id))

    def _send(self, frame: Frame) -> None:
        self._on_work()
        if self._worker is not None:
            self._worker.send(frame)

    def _begin_loading(self) -> None:
        self._settled.clear()
        self.status = EngineStatus()

    async def _live(self, after: asyncio.Task[None] | None) -> None:
        """Keep a worker alive, `after` the one before it has ended: two would need the memory of two."""
        if after is not None:
            await asyncio.wait({after})
        while await self._live_once():
            self._begin_loading()

    async def _live_once(self) -> bool:
        """Run one worker to its end; return whether another should follow at once."""
        try:
            error = await self._run_worker()
        except EngineError as refused:
            error = refused
        if not isinstance(self.status.error, UnfitError):  # nothing failed: somebody is to be asked
            self._limit.record_failure()
        self._fail_running(error)
        was_ready = self.status.ready is not None
        self._settle_failed(self.status.error or error)
        return was_ready and not self._limit.is_reached

    async def _run_worker(self) -> UserError:
        worker = self._worker = await WorkerProcess.start(self._command)
        grace_s = _GRACE_AFTER_DEATH_S
        try:
            worker.send(self._load)
            async with aclosing(worker.frames()) as frames:
                async for frame in frames:
                    self._take(frame)
                    if self.status.error is not None:
                        return self.status.error
        except asyncio.CancelledError:
            grace_s = _GRACE_AT_STOP_S
            raise
        finally:
            self._worker = None
            death = await worker.end(grace_s)
        return death

    def _settle_failed(self, error: UserError) -> None:
        if self._limit.is_reached:
            cause = f"The engine failed {self._limit.max_failures} times within a minute. {error.cause}"
            error = EngineError(cause, "Try a smaller --ctx or another model; a new attempt is possible in a minute.")
        self.status = replace(self.status, state="failed", ready=None, error=error)
        self._settled.set()

    def _fail_running(self, error: UserError) -> None:
        answers, self._answers = self._answers, {}
        for events in answers.values():
            events.put_nowait(error)
        for result in self._calls.values():
            if not result.done():
                result.set_exception(error)

    def _take(self, frame: Frame) -> None:
        match frame:
            case Output():
                self._tell(frame.request_id, frame)
            case Finished():
                self._finish(frame)
            case Failed():
                self._take_failure(frame)
            case Tokenized():
                self._resolve(frame.call_id, frame.tokens)
            case Detokenized():
                self._resolve(frame.call_id, frame.text)
            case Embedded() | Ranked() | Observed():
                self._resolve(frame.call_id, frame)
            case LoadProgress() | Notice() | Planned() | Ready():
                self._take_news(frame)
            case _:
                raise EngineError(f"The engine process sent a {type(frame).__name__} frame.", "Report this.")

    def _take_news(self, frame: LoadProgress | Notice | Planned | Ready) -> None:
        match frame:
            case LoadProgress():
                self.status = replace(self.status, progress=frame.fraction)
            case Notice():
                self.status = replace(self.status, notices=(*self.status.notices, frame.text))
            case Planned():
                self.status = replace(self.status, plan=frame.plan)
            case Ready():
                self.status = replace(self.status, state="ready", progress=1.0, ready=frame)
                self._settled.set()

    def _finish(self, frame: Finished) -> None:
        if frame.reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._limit.record_success()
        self._tell(frame.request_id, frame)
        self._answers.pop(frame.request_id, None)

    def _take_failure(self, frame: Failed) -> None:
        error = rebuild(frame.kind, frame.cause, frame.remedy, frame.details)
        if not frame.request_id:
            self.status = replace(self.status, error=error)
        self._tell(frame.request_id, error)
        self._answers.pop(frame.request_id, None)
        result = self._calls.get(frame.request_id)
        if result is not None and not result.done():
            result.set_exception(error)

    def _tell(self, request_id: str, event: AnswerEvent | UserError) -> None:
        # An answer that was aborted may still say a word; nobody listens.
        events = self._answers.get(request_id)
        if events is not None:
            events.put_nowait(event)

    def _resolve(self, call_id: str, value: object) -> None:
        result = self._calls.get(call_id)
        if result is not None and not result.done():
            result.set_result(value)


async def _until_finished(
    events: asyncio.Queue[AnswerEvent | UserError], n_answers: int
) -> AsyncGenerator[AnswerEvent, None]:
    while n_answers:
        event = await events.get()
        if isinstance(event, UserError):
            raise event.with_traceback(None)
        n_answers -= isinstance(event, Finished)
        yield event
