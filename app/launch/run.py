"""Finding an agent and running it: its command and version, its private folder, its variables, and what it used.

The agent shares our terminal and its Ctrl-C is its own; it gets a key that ends with it. Versions are read from files
next to the command: nothing is run for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType

from app.client.service_client import ServiceClient
from app.launch.agents import FOLDER, KEY, Agent
from app.launch.plan import LaunchPlan
from app.protocol.errors import RequestError, ServiceError
from app.protocol.status import MeteredUsage
from quantizer.system.errors import UsageError, UserError
from quantizer.system.files import explained, open_private, read_regular
from quantizer.system.temporary_folder import temporary_folder

_N_PARENTS = 6  # from a command to the folder of its package


class MissingAgentError(UserError):
    """An agent that is not on PATH."""

    def __init__(self, agent: Agent) -> None:
        how = agent.install if agent.install.startswith("see ") else f"install it with `{agent.install}`"
        super().__init__(
            f"{agent.title} is not installed: there is no {agent.commands[0]} on PATH.", f"To use it, {how}."
        )


@dataclass(frozen=True, slots=True)
class Installed:
    """The path of an agent's command, with the suffix that Windows needs; `version` is empty where it is unknown."""

    path: str
    version: str


def find_agent(agent: Agent) -> Installed | None:
    """Return where `agent` is installed, None where it is not."""
    path = next(filter(None, map(shutil.which, agent.commands)), None)
    if path is None:
        return None
    registry, _, name = agent.package.partition(":")
    read_version = {"npm": _npm_version, "pypi": _python_version}.get(registry)
    try:
        return Installed(path, read_version(name, Path(path)) if read_version else "")
    except (OSError, ValueError, RecursionError):
        return Installed(path, "")


def _npm_version(name: str, command: Path) -> str:
    """Return the version in package.json: above the file that a link leads to, or beside a shim of Windows."""
    above = [folder / "package.json" for folder in islice(command.resolve().parents, _N_PARENTS)]
    for path in (*above, command.parent / "node_modules" / name / "package.json"):
        if path.is_file():
            data = json.loads(read_regular(path))
            if isinstance(data, dict) and data.get("name") == name:
                return _plain(data.get("version"))
    return ""


def _python_version(name: str, command: Path) -> str:
    """Return the version in the name of the package's metadata, in the environment of the command."""
    environment, wheel = command.resolve().parent.parent, name.replace("-", "_")
    for pattern in (f"lib/python*/site-packages/{wheel}-*.dist-info", f"Lib/site-packages/{wheel}-*.dist-info"):
        for folder in environment.glob(pattern):
            return _plain(folder.name.removeprefix(f"{wheel}-").removesuffix(".dist-info"))
    return ""


def _plain(version: object) -> str:
    """Return a version that can be printed, "" for anything else."""
    return version if isinstance(version, str) and re.fullmatch(r"[\w.+!-]{1,40}", version) else ""


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
    """Run the agent of `plan` to its end with a key of its own, in our terminal. Raises ServiceError where the service
    gives no key, UserError for an agent that cannot be started."""
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
    with temporary_folder("launch") as folder:
        with explained("The folder for this run cannot be made", "Free some space, or set TMPDIR."):
            for name, text in files.items():
                with open_private(folder / name, is_new=True) as file:
                    file.write(text.encode())
        yield str(folder)


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
    Entered before it starts: it does not inherit handlers, as it would inherit SIG_IGN."""

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
