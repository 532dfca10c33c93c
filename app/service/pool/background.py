"""Work that yields to requests: prefilling the next turn of a conversation, and measuring settings of new models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeAlias
from uuid import uuid4

from app.common.common_prefix import common_prefix
from app.engine.messages import Finished
from app.engine.quoted import Spans
from app.engine.request import READ_AHEAD_PRIORITY, FinishReason, Request, SamplingParams, Usage
from app.engine.tuning.tune_results import DISTURBED
from app.protocol.errors import ContextOverflowError
from app.service.pool.engine_client import EngineClient
from offload.devices.host import CpuTimes, is_quiet, others_share, read_cpu_times
from quantizer.system.errors import EngineError, UserError
from quantizer.system.process import ChildProcess

IDLE_S = 5.0  # without work before measuring begins
PAUSE_S = 0.25  # after an answer: a program that continues by itself asks sooner
ANY_TWO_WORDS = ("A", "B")  # every next message begins with the common prefix of two prompts

# Returns the text of the prompt after a next message of the user.
PromptAfter: TypeAlias = Callable[[str], Awaitable[str]]


class PrefillAhead:
    """Prefills for one engine, for the most recent conversation only. After an answer, what its next turn is sure to
    start with: a chat template adds more than the answer, what ends it, the answer without its reasoning, tokenized
    again, and the head of the next message. Before a question, what a client knows of it."""

    def __init__(self, engine: EngineClient, quiet_s: float = PAUSE_S) -> None:
        self._engine = engine
        self._quiet_s = quiet_s
        self._task: asyncio.Task[None] | asyncio.Task[Usage | None] | None = None

    def begin(self, request: Request, prompt_after: PromptAfter) -> None:
        """Prefill soon what follows the answer to `request`, unless the engine runs other answers then."""
        self.cancel()
        self._task = asyncio.create_task(self._run(request, prompt_after))

    def cancel(self) -> None:
        """Leave the engine to requests at once; what was computed so far stays in its cache."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def read(self, request: Request) -> Usage | None:
        """Compute the prompt of `request`, which reads ahead, in place of what was prefilled until now. Return its
        usage, None where `cancel` ended it first, the engine answers, or the prompt has no room."""
        self.cancel()
        task = self._task = asyncio.create_task(self._fill(request))
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        return None if task.cancelled() else task.result()

    async def _run(self, request: Request, prompt_after: PromptAfter) -> None:
        await asyncio.sleep(self._quiet_s)
        with contextlib.suppress(UserError):  # the next request meets the same error
            prefix = common_prefix(*[await prompt_after(word) for word in ANY_TWO_WORDS])
            if prefix:
                await self._fill(prefill_request(request, prefix))

    async def _fill(self, request: Request) -> Usage | None:
        # Nothing is awaited in between: a use of an engine that was unloaded would load it.
        if not self._engine.is_available or self._engine.is_answering:
            return None
        with contextlib.suppress(ContextOverflowError):  # the question makes room, or says so
            async with self._engine.answer(request) as events:
                async for event in events:
                    if isinstance(event, Finished) and event.reason is FinishReason.LENGTH:
                        return event.usage
        return None


def prefill_request(request: Request, text: str, quoted: Spans = ()) -> Request:
    """Return the request that only computes the prompt `text` as `request` would; parts of it are `quoted`."""
    return replace(
        request,
        request_id=uuid4().hex,
        prompt=text,
        sampling=SamplingParams(),
        max_tokens=0,
        priority=READ_AHEAD_PRIORITY,
        n_logprobs=None,
        visible_tags=(),
        branches=(),
        quoted=quoted,
        media=tuple(item for item in request.media if item.marker in text),
    )


class IdleTuning:
    """Runs commands that measure models, one after another; `is_busy` is whether an engine loads or answers now.

    A child process measures, so that a fault of native code costs no answer; it is killed as soon as an engine gets
    work, and keeps what it found until then. It waits while other programs compute, by what `read_times` reads: beside
    them the wrong setting may win. One that was disturbed by them runs again.
    """

    def __init__(
        self, is_busy: Callable[[], bool], quiet_s: float = IDLE_S, read_times: Callable[[], CpuTimes] = read_cpu_times
    ) -> None:
        self._is_busy = is_busy
        self._quiet_s = quiet_s
        self._read_times = read_times
        self._commands: list[Sequence[str]] = []
        self._child: ChildProcess | None = None
        self._interrupted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, command: Sequence[str]) -> None:
        """Run `command` when the service is idle; its stdin stays open until it must end."""
        self._commands.append(command)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run_all())

    def interrupt(self) -> None:
        """Kill the running command, which starts again later: an engine gets work now."""
        self._interrupted.set()
        if self._child is not None:
            self._child.kill()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run_all(self) -> None:
        while self._commands:
            self._interrupted.clear()
            before = self._read_times()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._quiet_s):
                    await self._interrupted.wait()
            is_idle = not self._interrupted.is_set() and not self._is_busy()
            if is_idle and is_quiet(others_share(before, self._read_times())) and await self._run(self._commands[0]):
                self._commands.pop(0)

    async def _run(self, command: Sequence[str]) -> bool:
        """Return whether `command` ended for good, well or badly, instead of being interrupted or disturbed."""
        try:
            child = self._child = await ChildProcess.start(command, "tuning process")
        except EngineError:
            return True  # the system has no process to spare; `localllm tune` remains
        try:
            if self._interrupted.is_set():  # during the start
                child.kill()
            async for _ in child.lines():
                pass
            status = await child.wait()
        finally:
            self._child = None
            await child.end(0)
        return not self._interrupted.is_set() and status != DISTURBED
