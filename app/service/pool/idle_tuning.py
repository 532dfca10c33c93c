"""Measures the settings of models that were never measured here, while no engine has anything to do.

A child process measures, so that a fault of native code costs no answer; it is killed as soon as any engine gets work,
and what it had found by then is kept. Owns that child. Knows nothing of settings or of how models are served.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence

from quantizer.process import child_environment, detached_process_options

__all__ = ["IdleTuning"]

QUIET_S = 5.0  # without work before the measuring begins


class IdleTuning:
    """Runs one command a model in turn, each to its end. `is_busy` tells whether an engine loads or answers now."""

    def __init__(self, is_busy: Callable[[], bool], quiet_s: float = QUIET_S) -> None:
        self._is_busy = is_busy
        self._quiet_s = quiet_s
        self._commands: list[Sequence[str]] = []
        self._child: Process | None = None
        self._rested = asyncio.Event()  # set when work comes, so that a quiet time begins anew
        self._life: asyncio.Task[None] | None = None

    def add(self, command: Sequence[str]) -> None:
        """Run `command` when it is quiet; its standard input stays open until it must end."""
        self._commands.append(command)
        if self._life is None or self._life.done():
            self._life = asyncio.create_task(self._live())

    def interrupt(self) -> None:
        """Make way at once, for an engine gets work now."""
        self._rested.set()
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()

    async def close(self) -> None:
        """End whatever is measured."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait({self._life})

    async def _live(self) -> None:
        while self._commands:
            await self._quiet()
            if await self._run(self._commands[0]):
                self._commands.pop(0)

    async def _quiet(self) -> None:
        """Wait until nothing has come for a while and nothing is under way."""
        while True:
            self._rested.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._quiet_s):
                    await self._rested.wait()
            if not self._rested.is_set() and not self._is_busy():
                return

    async def _run(self, command: Sequence[str]) -> bool:
        """Return whether the command came to its end, well or badly, rather than being disturbed."""
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=DEVNULL,
                env=child_environment(),
                **detached_process_options(),
            )
        except OSError:
            return True  # no process to be had: `localllm tune` remains
        self._child = child
        try:
            if self._rested.is_set():  # work came while the child was started
                child.kill()
            await child.wait()
        finally:
            self._child = None
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        return not self._rested.is_set()
