"""Running an agent: its private folder, its variables, its terminal, and what its requests used.

Owns the process. The agent shares our terminal and its Ctrl-C is its own; it gets a key that ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from app.client.service_client import ServiceClient
from app.launch.agents import FOLDER, KEY
from app.launch.plan import LaunchPlan
from app.protocol.errors import RequestError, ServiceError
from app.protocol.metering import MeteredUsage
from quantizer.system.errors import UsageError, UserError
from quantizer.system.files import explained, open_private

_PREFIX = "localllm-launch-"
_SIGNAL_BASE = 128  # of the exit status of a process that a signal ended, as shells have it
_SHIM_SUFFIXES = (".cmd", ".bat")
_SPECIAL_TO_CMD = frozenset('"%&|<>^!\r\n')
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FORWARDED = ("SIGTERM", "SIGHUP")
_OF_THE_TERMINAL = ("SIGINT", "SIGQUIT")


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """How an agent ended: its exit status, the seconds it ran, and what its requests used (None: it is not known)."""

    status: int
    took_s: float
    usage: MeteredUsage | None


async def run_launch(
    client: ServiceClient, plan: LaunchPlan, inherited: Mapping[str, str] = os.environ
) -> LaunchResult:
    """Run the agent of `plan` to its end with a key of its own, in our terminal.

    Raises ServiceError where the service gives no key, UserError for an agent that cannot be started.
    """
    check_shim(plan.command)
    async with aclosing(client.metered_key()) as keys:
        key = await anext(keys)
        started_s = time.monotonic()
        with _run_folder(plan.files) as folder:
            command = [argument.replace(FOLDER, folder) for argument in plan.command]
            status = await _run(command, environment_of(plan, key.secret, folder, inherited))
        took_s = time.monotonic() - started_s
        usage: MeteredUsage | None = None
        with contextlib.suppress(ServiceError, RequestError):  # it has ended or was started again: nobody counted
            usage = await client.metered_usage(key.id)
    return LaunchResult(status, took_s, usage)


def environment_of(plan: LaunchPlan, secret: str, folder: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the agent's whole environment; a proxy of the user's is not asked for this machine."""
    kept = {name: value for name, value in inherited.items() if name not in plan.removed}
    own = {name: value.replace(KEY, secret).replace(FOLDER, folder) for name, value in plan.environment.items()}
    if any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in kept):
        for name in ("NO_PROXY", "no_proxy"):
            own[name] = ",".join(filter(None, (kept.get(name), *_LOOPBACK)))
    return {**kept, **own}


def check_shim(command: Sequence[str]) -> None:
    """Raise UsageError for arguments that a batch file, as npm installs on Windows, would take for something else."""
    path, *arguments = command
    if not path.lower().endswith(_SHIM_SUFFIXES):
        return
    if spoilt := next((each for each in arguments if _SPECIAL_TO_CMD & set(each)), None):
        cause = f"{Path(path).name} is a batch file, to which Windows cannot pass {spoilt!r} unchanged."
        raise UsageError(
            cause, "Leave out quotes, line breaks and the characters % & | < > ^ !, or type it to the agent."
        )


@contextmanager
def _run_folder(files: Mapping[str, str]) -> Iterator[str]:
    """Give a folder that only this user can read, with `files`; it is removed afterwards."""
    what, remedy = "The folder for this run cannot be made", "Free some space, or set TMPDIR."
    with explained(what, remedy):
        temporary = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    with temporary as folder:
        with explained(what, remedy):
            for name, text in files.items():
                with open_private(Path(folder, name), is_new=True) as file:
                    file.write(text.encode())
        yield folder


async def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run `command` in our terminal and return its exit status, 128 and more for one that a signal ended."""
    running: list[asyncio.subprocess.Process] = []
    with _terminal_modes_restored(), _signals_left_to(running):
        try:
            process = await asyncio.create_subprocess_exec(*command, env=dict(environment))
        except OSError as error:
            cause = f"{Path(command[0]).name} cannot be started: {error.strerror or error}."
            raise UserError(cause, "Run it once without localllm to see what it lacks.") from error
        running.append(process)
        status = await process.wait()
    return status if status >= 0 else _SIGNAL_BASE - status


@contextmanager
def _signals_left_to(running: Sequence[asyncio.subprocess.Process]) -> Iterator[None]:
    """Pass on what ends programs, and ignore what the terminal sends to both of us: the agent decides what it means.

    Entered before it starts: it does not inherit handlers, as it would inherit SIG_IGN.
    """

    def forward(number: int, _frame: FrameType | None) -> None:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def ignore(_number: int, _frame: FrameType | None) -> None:
        pass

    handlers: dict[str, Callable[[int, FrameType | None], None]] = dict.fromkeys(_OF_THE_TERMINAL, ignore)
    if sys.platform != "win32":
        handlers |= dict.fromkeys(_FORWARDED, forward)
    numbers = {getattr(signal, name): handler for name, handler in handlers.items() if hasattr(signal, name)}
    former = {number: signal.signal(number, handler) for number, handler in numbers.items()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def _terminal_modes_restored() -> Iterator[None]:
    """Restore the modes of the terminal afterwards: an agent that was killed leaves it raw."""
    if sys.platform == "win32" or sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    modes = termios.tcgetattr(terminal)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error, OSError):  # it is gone
            if os.tcgetpgrp(terminal) == os.getpgrp():  # a process in the background would be stopped
                termios.tcsetattr(terminal, termios.TCSADRAIN, modes)
