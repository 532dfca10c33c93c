"""The engine of one model, as the service uses it: loaded on first use, restarted when its worker dies, unloaded.

Owns the worker process, its status and the requests that wait for it. Independent of HTTP, of chat templates, of model
names and of other engines.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from app.common.event_log import log_event
from app.engine.messages import (
    Abort,
    BackendFacts,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    EndThought,
    EngineConfig,
    EngineMetrics,
    Failed,
    Finished,
    ForgetConversations,
    Forgotten,
    GetMetrics,
    Load,
    LoadProgress,
    Notice,
    Output,
    Planned,
    Ready,
    Rerank,
    Reranked,
    Speak,
    Spoken,
    Tokenize,
    Tokenized,
    UnfitPolicy,
    WorkerMessage,
)
from app.engine.request import FinishReason, MediaInput, Request
from app.protocol.errors import UnfitError
from app.protocol.library import ModelState
from app.protocol.plan import Plan
from app.protocol.status import LoadedSetting
from app.service.pool.worker_process import (
    AnswerEvent,
    PendingRequests,
    SpeechEvent,
    StartWorker,
    WorkerProcess,
    until_finished,
)
from quantizer.system.errors import EngineError, UserError
from quantizer.system.faults import system_fault

_GRACE_AFTER_DEATH_S = 0.3  # running answers wait for it, and they learn of the death within a second
_GRACE_AT_STOP_S = 6.0  # a worker saves its state for 3 s at most, and writes it
_METRICS_TIMEOUT_S = 1.0
_TOLD_SHARE = 0.02  # of the weights, after which the time of the others can be told


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """The state of an engine. Its weights are read for about `load_left_s` more, None where nobody knows. `plan` is
    what loading follows. `facts` and `settings` are those of the loaded model; `error` is set when `state` is "failed".
    An "unloaded" engine loads its model with the next use."""

    state: ModelState = "loading"
    progress: float = 0.0
    load_left_s: float | None = None
    notices: tuple[str, ...] = ()
    plan: Plan | None = None
    facts: BackendFacts | None = None
    settings: tuple[LoadedSetting, ...] = ()
    error: UserError | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The planner's advice for a model that is partly or wholly misplaced: the cost, and what helps most."""
        if self.plan is None or not self.plan.is_unfit:
            return ()
        helps = tuple(f"What would help: {remedy.what}." for remedy in self.plan.remedies[:1])
        return (*self.plan.warnings[:1], *helps)


@dataclass(frozen=True, slots=True)
class LoadPace:
    """The pace at which weights are read, from when it was first known how many are."""

    first: float
    begun_s: float

    def left_s(self, fraction: float, now_s: float) -> float | None:
        """Return the seconds that the rest takes, None after too little to tell."""
        done = fraction - self.first
        return (now_s - self.begun_s) / done * (1 - fraction) if done >= _TOLD_SHARE else None


class CrashLimit:
    """Counts failures: `max_failures` within `window_s` seconds, with no finished answer between, are too many."""

    def __init__(
        self, max_failures: int = 3, window_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_failures = max_failures
        self.window_s = window_s
        self._clock = clock
        self._failures_s: deque[float] = deque(maxlen=max_failures)

    def record_failure(self) -> None:
        self._failures_s.append(self._clock())

    def record_success(self) -> None:
        self._failures_s.clear()

    @property
    def is_reached(self) -> bool:
        return len(self._failures_s) == self.max_failures and self._clock() - self._failures_s[0] < self.window_s

    def explained(self, error: UserError) -> UserError:
        """Return `error`, the last failure, with the reason why nothing is retried where the limit is reached."""
        if not self.is_reached:
            return error
        cause = f"The engine failed {self.max_failures} times within a minute. {error.cause}"
        return EngineError(cause, "Try a smaller --ctx or another model; a new attempt is possible in a minute.")


class EngineOwner:
    """Callbacks from an engine to its owner; this default admits every load."""

    async def admit(self, engine: EngineClient) -> None:
        """Wait until `engine` may load. Raises the UserError for which it may not."""

    async def load_notices(self, engine: EngineClient) -> tuple[str, ...]:  # noqa: ARG002
        """Return what a person should know of the model that `engine` loads now."""
        return ()

    def on_work(self) -> None:
        """The engine begins to load, or a use begins."""

    def on_idle(self) -> None:
        """Loading has ended, or the last use."""

    def on_worker_ended(self) -> None:
        """The worker has ended, in whatever way, and its memory is free; requests may wait for the next one."""

    def on_unloaded(self) -> None:
        """The model is unloaded until the next use."""

    def on_eviction(self) -> None:
        """The model is to be unloaded, for another one or for other settings."""


class EngineClient:
    """The engine of the model at `model_path`, in a worker that `start_worker` starts. Each use loads the model, once
    `owner` admits it. A worker that dies fails what was running; it is restarted at once if it had been ready, with the
    next use otherwise. After 3 failures within a minute the state stays "failed" until the minute is over."""

    def __init__(
        self,
        model_path: Path,
        config: EngineConfig,
        start_worker: StartWorker,
        owner: EngineOwner | None = None,
        limit: CrashLimit | None = None,
    ) -> None:
        self.status = EngineStatus(state="unloaded")
        self.model_path = model_path
        self.config = config
        self.n_users = 0
        self.last_used_s = time.monotonic()
        self.ready_since_s = 0.0  # by the same clock
        self.last_facts: BackendFacts | None = None  # of the last loading, also while the model is unloaded
        self.settled = asyncio.Event()  # the current loading, or the last one, has succeeded or failed
        self._start_worker = start_worker
        self._limit = limit or CrashLimit()
        self._owner = owner or EngineOwner()
        self._n_closings = 0
        self._accepts_uses = asyncio.Event()
        self._accepts_uses.set()
        self._pending = PendingRequests()
        self._worker: WorkerProcess | None = None
        self._task: asyncio.Task[None] | None = None  # keeps a worker alive
        self._ending: set[asyncio.Task[None]] = set()  # cancelled tasks whose worker may still be saving
        self._is_wanted = False  # without a use that waits for it
        self._is_admitted = False
        self._is_stopped = False
        self._config_when_unloaded: EngineConfig | None = None  # of a change that does not outlast the loaded model
        self._load_pace: LoadPace | None = None

    # State

    @property
    def is_busy(self) -> bool:
        return self.status.state == "loading" or self.n_users > 0

    @property
    def is_available(self) -> bool:
        return self.status.state == "ready" and self._accepts_uses.is_set()

    @property
    def holds_memory(self) -> bool:
        """Whether a worker runs, or is about to."""
        return self._is_admitted

    @property
    def worker_pid(self) -> int | None:
        return self._worker.pid if self._worker else None

    @property
    def has_temporary_config(self) -> bool:
        """Whether the config is another one once the model is unloaded."""
        return self._config_when_unloaded is not None

    @property
    def n_running(self) -> int:
        return self._pending.n_answers

    @property
    def is_answering(self) -> bool:
        """Whether somebody waits for an answer: what reads ahead and batches do not count."""
        return self._pending.is_awaited_by_somebody

    def running_request(self, request_id: str) -> Request | None:
        return self._pending.request(request_id)

    # Loading and unloading

    def start(self, when_unfit: UnfitPolicy | None = None) -> None:
        """Begin to load, whether or not a use waits for it; `when_unfit` holds from then on. Does nothing while a
        worker runs, or after too many failures."""
        self._is_wanted = True
        self._start(when_unfit)

    def reload(self, change: Callable[[EngineConfig], EngineConfig], *, until_unloaded: bool = False) -> None:
        """Load the model again with a changed config, once its worker has ended; running requests fail. With
        `until_unloaded` the config is the present one again once the model is unloaded. A stopped engine stays so."""
        if self._is_stopped:
            return
        self._config_when_unloaded = (self._config_when_unloaded or self.config) if until_unloaded else None
        self.config = change(self.config)
        self._is_wanted = True
        self._end_task()
        self._pending.fail_all(EngineError("The model is reloading with new settings.", "Send the request again."))
        self.settled.set()  # uses that wait for the old loading now wait for the new one
        self._begin_task()

    def unload(self) -> bool:
        """Begin to unload until the next use; return False, doing nothing, for an engine that is busy or not ready."""
        if self.status.state != "ready" or self.is_busy:
            return False
        self._unload()
        return True

    async def stop(self) -> None:
        """End the worker for good; running and later requests fail."""
        self._is_stopped = True
        self._end_task()
        await self.ended()
        error = EngineError("The model was unloaded.", "Send the request again.")
        self._pending.fail_all(error)
        self._fail_loading(error)

    async def ended(self) -> None:
        """Wait until every ending worker is gone, and its memory free."""
        if self._ending:
            await asyncio.wait(self._ending)

    async def ready(self) -> BackendFacts:
        async with self.in_use() as facts:
            return facts

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[BackendFacts]:
        """Give the facts of the loaded model, which stays loaded inside the context. Raises the error of loading."""
        while True:
            await self._accepts_uses.wait()
            self.n_users += 1
            self._owner.on_work()
            try:
                self._start()
                while self.status.state == "loading":
                    await self.settled.wait()
                if self.status.facts is not None:
                    yield self.status.facts
                    return
                if self.status.error is not None:
                    raise self.status.error.with_traceback(None)
            finally:
                self.n_users -= 1
                if self.is_busy and not (self.n_users or self._is_admitted or self._is_wanted):
                    self._unload()  # it still waits for memory, and nobody waits for it any more
                self._notify_if_idle()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Block new uses inside the context, because the model is to be unloaded; uses that have begun go on."""
        with self._uses_blocked():
            self._owner.on_eviction()
            yield

    @contextmanager
    def _uses_blocked(self) -> Iterator[None]:
        self._n_closings += 1
        self._accepts_uses.clear()
        try:
            yield
        finally:
            self._n_closings -= 1
            if not self._n_closings:  # another one may be unloading it too
                self._accepts_uses.set()

    # Requests

    @asynccontextmanager
    async def answer(self, *requests: Request) -> AsyncIterator[AsyncIterator[AnswerEvent]]:
        """Run `requests` and give their events as they come, each request ending with a Finished. Leaving the context
        early aborts them. Raises the error of the first request that fails."""
        async with self.in_use():
            if self._worker is not None and not self._pending.n_answers:
                self._worker.forget_output()  # warnings of loading or of former requests explain nothing
            events = self._pending.expect_answers(requests)
            for request in requests:
                self._send(request)
            try:
                yield until_finished(events, len(requests))
            finally:
                for request in requests:
                    if self._pending.is_awaited(request.request_id):
                        self._pending.forget(request.request_id)
                        self._send(Abort(request.request_id))

    @asynccontextmanager
    async def speak(self, message: Speak) -> AsyncIterator[AsyncIterator[SpeechEvent]]:
        """Let the model say the sentences of `message` and give them as they come, with a Finished at the end. Leaving
        the context early aborts that. Raises RequestError for a model that does not speak."""
        async with self.in_use():
            events = self._pending.expect_speech(message.request_id)
            self._send(message)
            try:
                yield until_finished(events, 1)
            finally:
                if self._pending.is_awaited(message.request_id):
                    self._pending.forget(message.request_id)
                    self._send(Abort(message.request_id))

    def end_thought(self, request_id: str) -> bool:
        """End the reasoning of the running answers to a request at their next step; return whether there are any."""
        running = self._pending.variants_of(request_id)
        for each in running:
            self._send(EndThought(each))
        return bool(running)

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, media: tuple[MediaInput, ...] = ()
    ) -> tuple[int, ...]:
        """Return the tokens of `text`, negative ones for `media`; `parse_special` counts special tokens as such."""
        message = Tokenize(uuid4().hex, text, add_special, parse_special, media=media)
        return cast("Tokenized", await self._call(message)).tokens

    async def pieces(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[tuple[int, bytes], ...]:
        message = Tokenize(uuid4().hex, text, add_special, parse_special, with_pieces=True)
        tokenized: Tokenized = await self._call(message)
        return tuple(zip(tokenized.tokens, tokenized.pieces, strict=True))

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return cast("Detokenized", await self._call(Detokenize(uuid4().hex, tuple(tokens)))).text

    async def embed(self, inputs: Sequence[str | tuple[int, ...]], *, cuts: bool = False) -> Embedded:
        """Return the vectors of `inputs`. Raises RequestError for a model that only reranks, and without `cuts`
        ContextOverflowError for an input that is longer than the context."""
        return cast("Embedded", await self._call(Embed(uuid4().hex, tuple(inputs), cuts)))

    async def rerank(self, query: str, documents: Sequence[str]) -> Reranked:
        return cast("Reranked", await self._call(Rerank(uuid4().hex, query, tuple(documents))))

    async def forget(self, conversations: Sequence[str]) -> None:
        """Drop what a loaded engine has cached and saved of `conversations`. This does not count as a use."""
        # An engine that is just unloading may save some of it afterwards: the app removes that at its next start.
        if self.status.state == "ready":
            with suppress(EngineError):  # it has died meanwhile, with what was cached
                await self._result(ForgetConversations(uuid4().hex, tuple(conversations)))

    async def metrics(self) -> EngineMetrics | None:
        """Return counters and occupancy, None for an engine that is not ready. This does not count as a use."""
        if self.status.state != "ready":
            return None
        try:
            async with asyncio.timeout(_METRICS_TIMEOUT_S):
                return cast("EngineMetrics", await self._result(GetMetrics(uuid4().hex)))
        except (EngineError, TimeoutError):  # it has died meanwhile, or the system has stopped it
            return None

    async def _call(self, message: Tokenize | Detokenize | Embed | Rerank) -> Any:
        async with self.in_use():
            return await self._result(message)

    async def _result(self, message: Tokenize | Detokenize | Embed | Rerank | GetMetrics | ForgetConversations) -> Any:
        result = self._pending.expect_result(message.call_id)
        self._send(message)
        try:
            return await result
        finally:
            self._pending.forget(message.call_id)
            if result.cancelled():
                self._send(Abort(message.call_id))

    def _send(self, message: WorkerMessage) -> None:
        if self._worker is not None:  # else its death has failed the request
            self._worker.send(message)

    # The task that keeps a worker alive

    def _start(self, when_unfit: UnfitPolicy | None = None) -> None:
        is_alive = self._task is not None and not self._task.done()
        if not is_alive and not self._limit.is_reached and not self._is_stopped:
            self.config = replace(self.config, when_unfit=when_unfit or self.config.when_unfit)
            self._begin_task()

    def _begin_task(self) -> None:
        self._begin_loading()
        self._task = asyncio.create_task(self._keep_running(frozenset(self._ending)))

    def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()  # the worker goes on saving for a moment
            self._ending.add(self._task)
            self._task.add_done_callback(self._ending.discard)
            self._task = None

    def _begin_loading(self) -> None:
        self.settled = asyncio.Event()
        self.status, self._load_pace = EngineStatus(), None
        self._log("begins to load")
        self._owner.on_work()

    def _unload(self) -> None:
        self.status = EngineStatus(state="unloaded")
        self.config, self._config_when_unloaded = self._config_when_unloaded or self.config, None
        self._log("is unloaded")
        self._is_wanted = False
        self.settled.set()
        self._end_task()
        self._owner.on_unloaded()

    def _fail_loading(self, error: UserError) -> None:
        self.status = replace(self.status, state="failed", facts=None, error=self._limit.explained(error))
        if not self._is_stopped:
            self._log(f"failed: {error}")
        self.settled.set()
        self._notify_if_idle()

    def _log(self, event: str) -> None:
        log_event("service", f"{self.model_path.name} {event}.".replace("..", "."))

    def _notify_if_idle(self) -> None:
        if not self.is_busy:
            self.last_used_s = time.monotonic()
            self._owner.on_idle()

    async def _keep_running(self, ending: frozenset[asyncio.Task[None]]) -> None:
        """Run a worker once those that are `ending` are gone: two at once would need the memory of two."""
        if ending:
            await asyncio.wait(ending)
        try:
            while await self._run_once():
                self._begin_loading()
        except Exception as error:  # a bug, or a thread that the system refuses: nobody may wait for ever
            fault = system_fault("service", error)
            failure = fault or EngineError("Loading failed for a bug of localllm.", "Its log has the details.")
            self._pending.fail_all(failure)
            self._fail_loading(failure)
            if fault is None:
                report = {"message": f"Loading {self.model_path.name} failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(report)

    async def _run_once(self) -> bool:
        """Run one worker to its end; return whether to start another at once."""
        try:
            await self._owner.admit(self)
        except UserError as refusal:
            self._fail_loading(refusal)
            return False
        self._is_admitted = True
        try:
            error = await self._run_worker()
        except EngineError as failure:
            error = failure
        finally:
            self._is_admitted = False
            self._owner.on_worker_ended()
        if not isinstance(self.status.error, UnfitError):  # that is a question to the user, not a failure
            self._limit.record_failure()
        self._pending.fail_all(error)
        was_ready = self.status.facts is not None
        self._fail_loading(self.status.error or error)
        return was_ready and not self._limit.is_reached

    async def _run_worker(self) -> UserError:
        """Run one worker and return the error it ended with. Raises EngineError where none can be started. Cancelled,
        it gives the worker time to save its state, if it has loaded."""
        worker = self._worker = await self._start_worker()
        grace_s, has_loaded = _GRACE_AFTER_DEATH_S, False
        until_ended: AbstractContextManager[None] = self._uses_blocked()  # else they would fail with it
        try:
            worker.send(Load(str(self.model_path), self.config))
            notices = await self._owner.load_notices(self)
            self.status = replace(self.status, notices=(*self.status.notices, *notices))
            async with aclosing(worker.messages()) as messages:
                async for message in messages:
                    self._handle(message)
                    has_loaded = has_loaded or isinstance(message, Ready)
                    if self.status.error is not None:
                        return self.status.error
        except asyncio.CancelledError:
            grace_s, until_ended = _GRACE_AT_STOP_S if has_loaded else 0.0, nullcontext()  # they wait for the next one
            raise
        finally:
            self._worker = None
            with until_ended:
                death = await worker.end(grace_s)
        return death

    def _handle(self, message: WorkerMessage) -> None:
        match message:
            case LoadProgress():
                pace = self._load_pace = self._load_pace or LoadPace(message.fraction, time.monotonic())
                left_s = pace.left_s(message.fraction, time.monotonic())
                self.status = replace(self.status, progress=message.fraction, load_left_s=left_s)
            case Notice():
                self.status = replace(self.status, notices=(*self.status.notices, message.text))
            case Planned():
                self.status = replace(self.status, plan=message.plan)
            case Ready():
                facts, settings = message.facts, message.settings
                self.status = replace(self.status, state="ready", progress=1.0, facts=facts, settings=settings)
                self.ready_since_s, self.last_facts = time.monotonic(), facts
                self.settled.set()
                self._log(f"is loaded, with {message.facts.n_ctx} tokens of context")
                self._notify_if_idle()
            case Failed():
                error = message.error.error()
                if message.request_id:
                    self._pending.fail(message.request_id, error)
                else:
                    self.status = replace(self.status, error=error)
            case Output() | Spoken() | Finished():
                if isinstance(message, Finished) and message.reason in (FinishReason.STOP, FinishReason.LENGTH):
                    self._limit.record_success()
                self._pending.add_event(message.request_id, message)
            case Tokenized() | Detokenized() | Embedded() | Reranked() | Forgotten() | EngineMetrics():
                self._pending.resolve(message.call_id, message)
            case _:
                raise EngineError(f"The engine process sent a {type(message).__name__} message.", "Report this.")
