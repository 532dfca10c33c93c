"""Measures the settings of models that were never measured on this machine, while no engine has work.

A child process measures, so that a fault of native code costs no answer; it is killed as soon as an engine gets work,
and keeps what it found until then. Owns that child. Independent of settings and of how models are served.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from quantizer.errors import EngineError
from quantizer.process import ChildProcess

__all__ = ["IdleTuning"]

QUIET_S = 5.0  # without work before measuring begins


class IdleTuning:
    """Runs commands one after another, each to its end. `is_busy` says whether an engine loads or answers now."""

    def __init__(self, is_busy: Callable[[], bool], quiet_s: float = QUIET_S) -> None:
        self._is_busy = is_busy
        self._quiet_s = quiet_s
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
        """Kill the running command, which starts anew later: an engine gets work now."""
        self._interrupted.set()
        if self._child is not None:
            self._child.kill()

    async def close(self) -> None:
        """End the running command and forget the others."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run_all(self) -> None:
        while self._commands:
            await self._wait_until_idle()
            if await self._run(self._commands[0]):
                self._commands.pop(0)

    async def _wait_until_idle(self) -> None:
        while True:
            self._interrupted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._quiet_s):
                    await self._interrupted.wait()
            if not self._interrupted.is_set() and not self._is_busy():
                return

    async def _run(self, command: Sequence[str]) -> bool:
        """Return whether `command` ended by itself, well or badly, instead of being interrupted."""
        try:
            child = self._child = await ChildProcess.start(command, "tuning process")
        except EngineError:
            return True  # the system has no process to spare; `localllm tune` remains
        try:
            if self._interrupted.is_set():  # during the start
                child.kill()
            async for _ in child.lines():
                pass
            await child.wait()
        finally:
            self._child = None
            await child.end(0)
        return not self._interrupted.is_set()
