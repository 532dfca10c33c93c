"""The start of the service: the process of its default model's engine first, then all that the service itself needs.

The two need half a second of processor time each for their imports, and an answer needs both. So nothing is imported
here but what starts a process, and the rest follows when that process runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from app.common.event_log import log_event
from app.settings.settings import Settings
from quantizer.system.errors import EngineError, UsageError
from quantizer.system.memory_limit import ProcessBytes, use_one_arena
from quantizer.system.process import ChildProcess, python_command, system_root

if TYPE_CHECKING:
    from app.protocol.errors import UnfitError

ENGINE_PROCESS = "engine process"
_BUFFER_BYTES = 65536
# Arguments of the worker. The fake engine needs no native code; its answers are random letters.
_ENGINES: Mapping[str, tuple[str, ...]] = {
    "llama": (),
    "fake": ("--fake", "--fake-step-ms", "5"),
    "fake-unfit": ("--fake", "--fake-unfit"),
}


@dataclass(frozen=True, slots=True)
class Announcement:
    """Where the service accepts requests, on other programs' ports (`also`) too, and its default model. `secret` is of
    a service whose identity could not be stored: only who started it can recognise it."""

    url: str
    model: str
    also: tuple[int, ...]
    secret: str = ""


Announce: TypeAlias = Callable[[Announcement], None]


@dataclass(frozen=True, slots=True)
class OperatorPrompt:
    """The terminal of the user: `show` prints a notice, `confirm` asks whether to load a model that does not fit."""

    show: Callable[[str], None]
    confirm: Callable[[UnfitError], bool]


def serve(settings: Settings, announce: Announce, operator: OperatorPrompt | None = None) -> None:
    """Serve until a signal or, without an `operator`, until stdin closes (and the last job ends, if that is requested);
    then finish running answers for up to 60 s.

    `announce(url, model_id, ports)` is called when requests are accepted, on other programs' `ports` too. Raises before
    loading: ServiceError for a port in use, UsageError for invalid settings, ModelFileError for a missing or invalid
    model (an owner gets that error when it loads the model). Raises UnfitError where the operator does not confirm.
    """
    use_one_arena(gives_back=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(settings, announce, operator))


async def _serve(settings: Settings, announce: Announce, operator: OperatorPrompt | None) -> None:
    command = worker_command(settings)
    first: ChildProcess | None = None
    with contextlib.suppress(EngineError):  # it is started once more when the model loads, and reported then
        first = await start_worker_process(command)
    from app.service.pool.worker_process import WorkerStarter
    from app.service.server import run_server

    async with WorkerStarter(command, first) as start_worker:
        await run_server(settings, start_worker, announce, operator)


def worker_command(settings: Settings) -> list[str]:
    """Return the command line of an engine worker. Raises UsageError for an engine that does not exist."""
    if settings.engine not in _ENGINES:
        raise UsageError(f"There is no engine {settings.engine!r}.", f"Known: {', '.join(_ENGINES)}.")
    return python_command("app.engine.worker", *_ENGINES[settings.engine])


async def start_worker_process(command: Sequence[str]) -> ChildProcess:
    """Start an engine's process, which waits for its first message. Raises EngineError where the system cannot."""
    return await ChildProcess.start(
        command,
        ENGINE_PROCESS,
        {"GGML_NO_BACKTRACE": "1"},
        folder=system_root(),  # see `run_server`; it is sent absolute paths only
        on_stderr=partial(log_event, "worker"),
        max_line_bytes=_BUFFER_BYTES,
        takes=ProcessBytes.ENGINE,
    )
