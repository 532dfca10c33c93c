"""The process of the service: starting it, and what it says once it is ready.

Imports neither HTTP nor what a chat needs, so that a command can start the service first and import the rest while it
starts: the imports of a command, of the service and of its engine take half a second of processor time each.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from app.common.event_log import LOG_NAME
from app.common.service_identity import ServiceIdentity
from app.options.option import format_value
from app.settings.settings import Settings, environment_variable
from quantizer.figures import format_number
from quantizer.system.errors import UserError
from quantizer.system.faults import reported_faults
from quantizer.system.files import Lock, open_private, private_folder, try_lock, unnamed_file
from quantizer.system.memory_limit import ProcessBytes, check_memory_limit, out_of_memory
from quantizer.system.process import OwnedProcess, StderrTail, python_command

START_TIMEOUT_S = 60.0  # a cold disk may take long over Python's imports
FINISH_TIMEOUT_S = 75  # the service lets answers in flight finish for 60 s
_COMMAND = python_command("app.cli.main", "serve", "--owned", "--keeps")
_CONNECT_TIMEOUT_S = 0.5
_LOG_BYTES_KEPT, _LOG_BYTES_READ = 1 << 20, 16 << 10


@dataclass(slots=True)
class StartedService:
    """A service that was started and may not be ready yet; it ends with this process, unless that is released. `lock`
    keeps others from starting one meanwhile."""

    process: OwnedProcess
    log: BinaryIO
    n_logged_bytes: int
    lock: Lock | None = None

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Let go of the log and the lock at the end, when the service responds or has failed."""
        try:
            yield
        finally:
            self.log.close()
            if self.lock is not None:
                self.lock.release()

    async def greeting(self) -> dict[str, Any]:
        """Return what the service prints once it is ready (`Announcement`). Raises the error for which it is not."""
        from app.protocol.errors import ServiceError

        try:
            line = await self.process.read_line(START_TIMEOUT_S)
        except TimeoutError:
            raise ServiceError(
                f"The service did not start within {format_number(START_TIMEOUT_S)} s.", _see(self.log)
            ) from None
        greeting: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            greeting = json.loads(line)
        if isinstance(greeting, dict) and "error" in greeting:
            from app.client.connection import error_of

            raise error_of(greeting["error"])
        if isinstance(greeting, dict) and "url" in greeting:
            return greeting
        raise _early_end(self.log, self.n_logged_bytes)


def service_settings(settings: Settings, *, keeps: bool) -> Settings:
    """Return the settings of a service for a command; with `keeps` it stays for the next one as long as they say."""
    from app.library.local.resolve import portable

    kept_for = settings.keep_service if keeps and settings.port else "0"  # on any port nobody would find it
    return replace(settings, model=portable(settings.model), keep_service=kept_for)


def possible_ports(settings: Settings, identity: ServiceIdentity) -> tuple[int, ...]:
    """Return where the service may be: at the settings' port or at the recorded one."""
    recorded = identity.recorded_port()
    return (settings.port, recorded) if recorded else (settings.port,)


def starter_lock_path(settings: Settings) -> Path:
    return settings.cache_dir / f"service-{settings.port}.lock"


def begin_service(settings: Settings) -> StartedService | None:
    """Start a service that stays for the next command, where certainly none can be found: nothing listens at its ports,
    and nobody else is starting one. Else None: finding one is the launcher's. Raises as `start_service`."""
    if settings.connect or not settings.port:
        return None
    host = urlsplit(settings.url).hostname or ""
    for port in possible_ports(settings, ServiceIdentity(settings)):
        try:
            socket.create_connection((host, port), _CONNECT_TIMEOUT_S).close()
        except ConnectionRefusedError:
            continue
        except OSError:
            return None
        return None
    check_memory_limit("service", ProcessBytes.SERVICE)
    try:
        private_folder(settings.cache_dir)
        lock = try_lock(starter_lock_path(settings))
    except OSError:
        return None
    if lock is None:
        return None
    try:
        started = start_service(service_settings(settings, keeps=True))
    except BaseException:
        lock.release()
        raise
    started.lock = lock
    return started


def start_service(settings: Settings) -> StartedService:
    """Start a service with `settings`. Raises EngineError where the system cannot."""
    log = _open_log(settings.cache_dir)
    try:
        n_logged_bytes = log.seek(0, os.SEEK_END)
        # As environment variables, which `ps` does not show to other users.
        variables = {environment_variable(name): format_value(value) for name, value in asdict(settings).items()}
        with reported_faults("command"):
            return StartedService(OwnedProcess(_COMMAND, variables, log), log, n_logged_bytes)
    except BaseException:
        log.close()
        raise


def _early_end(log: BinaryIO, n_logged_bytes: int) -> UserError:
    """Return the error for a service that ended before it was ready, with what it last logged."""
    from app.protocol.errors import ServiceError

    lines: tuple[str, ...] = ()
    with contextlib.suppress(OSError):
        log.seek(max(n_logged_bytes, log.seek(0, os.SEEK_END) - _LOG_BYTES_READ))
        lines = StderrTail(log.read()).lines
    last = f"; its last output: {lines[-1]}".rstrip(".") if lines else ""
    ended = ServiceError(f"The service ended before it was ready{last}.", _see(log))
    return out_of_memory("service", lines) or ended


def _open_log(cache_dir: Path) -> BinaryIO:
    """Open the service's log for appending and reading; one larger than 1 MiB is truncated. Where it cannot be written
    it is a file without a name: a cache is no reason not to start, and its last lines are reported all the same."""
    path = cache_dir / LOG_NAME
    with contextlib.suppress(OSError):
        private_folder(cache_dir)
        if path.exists() and path.stat().st_size > _LOG_BYTES_KEPT:
            path.write_bytes(b"")
        return open_private(path)  # the app appends to it too
    return unnamed_file()


def _see(log: BinaryIO) -> str:
    """Return where more is said than an error quotes."""
    path = str(log.name)  # the number of a file without a name
    return f"See {path}." if path.endswith(LOG_NAME) else "Run `localllm doctor`: its log cannot be written."
