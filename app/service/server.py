"""The service as a process: its port, its signals, its owner, its end.

Owns the listening socket and the life of the HTTP server. Knows nothing of routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.engine.template_process import TemplateProcess
from app.library.resolve import resolve
from app.service.attachments import read_attachments
from app.service.guard import GuardPolicy, policy_of
from app.service.model_file import read_model_file
from app.service.models import ModelManager, worker_command
from app.service.person import Person, settle
from app.service.supervisor import Supervisor
from app.settings import Settings
from quantizer.errors import ServiceError

__all__ = ["listen", "serve"]

FINISH_TIMEOUT_S = 60
HEADER_TIMEOUT_S = 15.0
_MAX_HEADER_BYTES = 64 << 10
_KEEP_ALIVE_S = 75  # longer than clients keep a connection: whoever closes first must not be the one that is asked
_BACKLOG = 128


def listen(host: str, port: int, *, or_any: bool = False) -> socket.socket:
    """Return a socket that listens on `host` and `port` (0: any free one).

    A port in use is replaced by a free one with `or_any`. Raises ServiceError with a way out.
    """
    try:
        return _listen(host, port)
    except (OSError, OverflowError) as error:
        if or_any and _is_in_use(error):
            return listen(host, 0)
        raise _cannot_listen(host, port, error) from error


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform == "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def serve(settings: Settings, announce: Callable[[str, str], None], person: Person | None = None) -> None:
    """Serve until a signal comes or, without a `person`, until stdin ends; then finish answers in flight for 60 s.

    `announce(url, model_id)` is called when requests are taken. Raises ServiceError when the port is in use, UsageError
    for settings that make no sense, ModelFileError when the model is not there or is refused; all before any loading.
    UnfitError where the person does not agree to the model's plan.
    """
    policy = policy_of(settings)
    command = worker_command(settings)
    with listen(settings.host, settings.port, or_any=person is None) as listener:
        ref = resolve(settings.model, settings)
        file = read_model_file(ref.path)
        attached = read_attachments(settings, ref.path)
        url = replace(settings, port=listener.getsockname()[1]).url

        async def run() -> None:
            models = ModelManager(settings, command, TemplateProcess())
            model = models.add(ref, file, attached)
            # FastAPI takes a second to import; the worker starts and loads meanwhile.
            app = await asyncio.to_thread(_application, models, policy)
            server = _Server(_config(app), lambda: announce(url, model.ref.id))
            if person is None:
                _end_with_stdin(server, asyncio.get_running_loop())
                await server.serve(sockets=[listener])
            else:
                await _serve_beside(server, listener, model.engine, person)

        _without_reraised_signals(lambda: asyncio.run(run()))


async def _serve_beside(server: _Server, listener: socket.socket, engine: Supervisor, person: Person) -> None:
    """Serve while the model loads, and settle with `person` what comes of that."""
    loading = asyncio.create_task(settle(engine, person))

    def end_refused(done: asyncio.Task[None]) -> None:
        server.should_exit |= not done.cancelled() and done.exception() is not None

    loading.add_done_callback(end_refused)
    await server.serve(sockets=[listener])
    if not loading.done():
        loading.cancel()
    elif refusal := loading.exception():
        raise refusal


class _Server(uvicorn.Server):
    """Calls `on_listening` once requests are taken."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()


class _ImpatientProtocol(H11Protocol):
    """HTTP/1.1 that gives a request line and its headers 15 s to come: uvicorn waits forever."""

    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_timer()

    def _watch_headers(self) -> None:
        """Time the next request's headers from their first byte on, and those of the first from the connection on."""
        is_waiting = self.cycle is None or (self.cycle.response_complete and self.timeout_keep_alive_task is None)
        if not is_waiting:
            self._cancel_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.abort)

    def _cancel_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


def _application(models: ModelManager, policy: GuardPolicy) -> ASGIApp:
    from app.service.application import create_app

    return create_app(models, policy)


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_ImpatientProtocol,
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=FINISH_TIMEOUT_S,
    )


def _end_with_stdin(server: uvicorn.Server, loop: asyncio.AbstractEventLoop) -> None:
    """End `server` when stdin does: then the process that started this one is gone, however it went."""

    def stop() -> None:
        server.should_exit = True

    def wait() -> None:
        with contextlib.suppress(OSError, ValueError):
            while os.read(0, 4096):  # not through sys.stdin: its lock would hang the interpreter's end
                pass
        with contextlib.suppress(RuntimeError):  # the loop has ended first
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=wait, name="owner-watch", daemon=True).start()


def _without_reraised_signals(run: Callable[[], None]) -> None:
    """Run `run`; uvicorn raises the signal that stopped it once more, which would look like a failure."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        run()
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_in_use(error: OSError | OverflowError) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


def _cannot_listen(host: str, port: int, error: OSError | OverflowError) -> ServiceError:
    if _is_in_use(error):
        return ServiceError(
            f"Port {port} on {host} is in use, by another localllm or another program.",
            "Give another --port, or stop what uses it.",
        )
    reason = getattr(error, "strerror", None) or str(error)
    return ServiceError(f"Cannot listen on {host}, port {port}: {reason}.", "Give another --host or --port.")
