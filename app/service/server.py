"""The service as a process: sockets, signals, the process or the user that owns it, the end.

A service that a user interface started ends with that process, its other clients, or its last job (`ShutdownPolicy`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from app import __version__
from app.common.event_log import MAX_LOG_BYTES, keep_within, log_event, log_to, logging_libraries
from app.common.service_identity import ServiceIdentity
from app.engine.chat_template.template_process import TemplateProcess
from app.engine.messages import UnfitPolicy
from app.library.local.model_files import ModelRef
from app.library.local.projectors import general_choice
from app.library.local.resolve import resolve
from app.protocol.errors import ServiceError, UnfitError
from app.service.http.connections import ConnectionLimits, LimitedConnection
from app.service.http.guard import policy_of
from app.service.jobs.manager import JobManager
from app.service.models.manager import ModelManager
from app.service.models.model_file import NOTHING_ATTACHED, Attachments, ModelFile, read_attachments, read_model_file
from app.service.pool.engine_client import EngineClient
from app.service.pool.worker_process import StartWorker
from app.service.shutdown_policy import ShutdownPolicy
from app.service.starting import Announce, Announcement, OperatorPrompt
from app.service.threads import run_in_thread
from app.settings.parsing import parse_duration, projector_file
from app.settings.private_files import keep_private, mark_in_use
from app.settings.settings import GUIDE, Settings, load_settings
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import UserError
from quantizer.system.process import system_root

CLIENTS_PORTS: Mapping[int, str] = {
    11434: "Ollama",
    1234: "LM Studio",
    41343: "LM Studio's SDK",  # the first of those that it tries where it is given no address
    8080: "llama.cpp",
    9931: "llama.cpp",  # its default port to come: ggml-org/llama.cpp#26508
    8012: "llama.vim",
}
FINISH_TIMEOUT_S = 60
_BACKLOG = 128
_MAX_HEADER_BYTES = 64 << 10
_MAX_MESSAGE_BYTES = 16 << 20  # of a websocket, as much as of a request's body
_PONG_TIMEOUT_S = 60.0  # a client may compute for a while between two messages
_KEEP_ALIVE_S = 75  # longer than clients do: a server must not close a connection under a new request


async def run_server(
    settings: Settings, start_worker: StartWorker, announce: Announce, operator: OperatorPrompt | None
) -> None:
    """Serve as `app.service.starting.serve` says."""
    settings = _independent_of_folder(settings)
    policy = policy_of(settings)
    with ExitStack() as stack:
        stack.enter_context(logging_libraries(sys.stderr if operator is not None else None))
        listener = stack.enter_context(listen(settings.host, settings.port, or_any=operator is None))
        others = listen_for_clients(settings.host, stack) if settings.also else {}
        ref, file, attached = _default_model(settings, is_owned=operator is None)
        port = listener.getsockname()[1]
        url = replace(settings, port=port).url
        identity = ServiceIdentity.create(settings)

        if operator is None:
            os.chdir(system_root())  # a service that stays must not keep a disk from being removed
            log_to(sys.stderr, max_bytes=MAX_LOG_BYTES)  # which is the log file of who started this service
            log_event("service", f"{url}, localllm {__version__}, process {os.getpid()}")
        stack.enter_context(mark_in_use(settings))
        # Other commands look where the settings say, which do not have the flag of a `serve --port 8000`.
        wanted_ports = {settings.port} if operator is None else {settings.port, load_settings().port}
        for wanted_port in wanted_ports:
            found_by = ServiceIdentity(replace(settings, port=wanted_port))
            if unrecorded := stack.enter_context(found_by.recording(port)):  # its owner sees that too, and tells it
                log_event("service", unrecorded)
        if operator is not None and identity.secret:
            operator.show(
                f"service.key can be kept neither in {settings.data_dir} nor in {settings.cache_dir}: other commands "
                "will not find this service, and start their own."
            )
        for sentence in keep_private(settings):
            if operator is None:
                log_event("service", sentence)
            else:
                operator.show(sentence)

        keep_s = parse_duration(settings.keep_service)
        shutdown_policy = ShutdownPolicy(is_owned=operator is None, keep_s=keep_s)
        models = ModelManager(
            settings,
            start_worker,
            TemplateProcess(),
            is_occupied=lambda: jobs.is_computing,
            on_copy_wanted=lambda path, file_type: jobs.start_copy(path, file_type),
        )
        here = replace(settings, port=port)  # which a batch asks
        jobs: JobManager = JobManager(here, models.interrupt_tuning, shutdown_policy.end_if_due)
        shutdown_policy.is_idle = lambda: jobs.is_idle
        model = models.add(ref, file, attached)
        if operator is not None:
            model.keep_alive.set_usual_limit(None)  # `localllm serve` was started for it
        model.load()

        def application() -> ASGIApp:
            gc.disable()  # what is made here stays: collections that walk through it took a tenth of the start
            try:
                from app.service.application import create_app

                log = partial(_log, max_bytes=MAX_LOG_BYTES if operator is None else 0) if settings.access_log else None
                return create_app(models, jobs, shutdown_policy, policy, log, identity)
            finally:
                gc.enable()

        app = await asyncio.to_thread(application)  # the worker loads meanwhile
        limits = ConnectionLimits()
        asyncio.get_running_loop().set_exception_handler(partial(on_loop_error, limits))
        server = _Server(
            _config(app, limits),
            lambda: announce(Announcement(url, model.ref.id, tuple(others), identity.secret.hex())),
            jobs.close_subscriptions,
            shutdown_policy.close,
        )
        shutdown_policy.end = server.end
        sockets = [listener, *others.values()]
        with _no_reraised_signal():
            if operator is None:
                _watch_stdin(shutdown_policy, asyncio.get_running_loop())
                await server.serve(sockets=sockets)
            else:
                await _serve_while_loading(server, sockets, model.engine, operator)


def _independent_of_folder(settings: Settings) -> Settings:
    """Return `settings` that mean the same in another working folder; the files of the default model are read before
    the service leaves its own."""
    projector = str(projector_file(settings.projector) or settings.projector)
    folders = settings.data_dir.absolute(), settings.cache_dir.absolute()
    return replace(settings, projector=projector, data_dir=folders[0], cache_dir=folders[1])


def _default_model(settings: Settings, *, is_owned: bool) -> tuple[ModelRef, ModelFile, Attachments]:
    """Return the model of requests that name none: the one of the settings. Raises ModelFileError. A service with an
    owner falls back to the guide: the owner gets the error when it loads its model by name, and everything else
    works."""
    try:
        ref = resolve(settings.model, settings)
        return ref, read_model_file(ref.path, settings.projector, ref.manifest), read_attachments(settings, ref)
    except ModelFileError:
        if not is_owned or settings.model == GUIDE:
            raise
        ref = resolve(GUIDE, settings)
        return ref, read_model_file(ref.path, general_choice(settings.projector)), NOTHING_ATTACHED


async def _serve_while_loading(
    server: _Server, sockets: list[socket.socket], engine: EngineClient, operator: OperatorPrompt
) -> None:
    """Serve, and report on loading meanwhile. Raises UnfitError where the operator does not confirm."""
    loading = asyncio.create_task(report_loading(engine, operator))

    def end_refused(done: asyncio.Task[None]) -> None:
        server.should_exit |= not done.cancelled() and done.exception() is not None

    loading.add_done_callback(end_refused)
    server.on_ending.append(loading.cancel)  # nothing is reported after that
    await server.serve(sockets=sockets)
    if loading.done() and not loading.cancelled() and (refusal := loading.exception()):
        raise refusal


async def report_loading(engine: EngineClient, operator: OperatorPrompt) -> None:
    """Wait for the model and show notices and errors. Raises UnfitError where the user does not confirm."""
    try:
        await engine.ready()
    except UnfitError as error:

        async def ask(unfit: UnfitError = error) -> bool:
            return operator.confirm(unfit)

        if not await run_in_thread(ask):  # in a thread, which the end of the service may leave waiting for its answer
            raise
        engine.start(UnfitPolicy.LOAD)
        return await report_loading(engine, operator)
    except UserError as error:
        operator.show(str(error))  # requests fail with it too
    for notice in engine.status.notices:
        operator.show(notice)
    return None


class _Server(uvicorn.Server):
    """Calls `on_listening` once requests are accepted, and each of `on_ending` when none are any more."""

    def __init__(
        self, config: uvicorn.Config, on_listening: Callable[[], None], *on_ending: Callable[[], object]
    ) -> None:
        super().__init__(config)
        self.on_ending = list(on_ending)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for callback in self.on_ending:
            callback()
        await super().shutdown(sockets)

    def end(self) -> None:
        """Accept no more requests, and end when the running ones are answered."""
        self.should_exit = True


def on_loop_error(limits: ConnectionLimits, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Make room for new connections where the system opens no more: asyncio reports that a hundred times a second."""
    error = context.get("exception")
    if isinstance(error, OSError) and "accept" in context.get("message", "").lower():
        limits.on_accept_error(error)
    else:
        loop.default_exception_handler(context)


def _log(line: str, max_bytes: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr is closed
        print(line, file=sys.stderr, flush=True)
        if max_bytes:
            keep_within(sys.stderr.fileno(), max_bytes)


def _config(app: ASGIApp, limits: ConnectionLimits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=partial(LimitedConnection, limits),  # type: ignore[arg-type]  # it is only called
        backlog=_BACKLOG,  # as many are accepted before any of them is counted
        ws="auto",  # the library `websockets`; without it a websocket is answered as an ordinary request
        ws_max_size=_MAX_MESSAGE_BYTES,
        ws_ping_timeout=_PONG_TIMEOUT_S,
        ws_per_message_deflate=False,  # on one machine it costs more than it saves
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=FINISH_TIMEOUT_S,
    )


def _watch_stdin(shutdown_policy: ShutdownPolicy, loop: asyncio.AbstractEventLoop) -> None:
    """Inform `shutdown_policy` when stdin closes: then the process that started this one is gone."""

    def wait() -> None:
        with contextlib.suppress(OSError, ValueError):
            while os.read(0, 4096):  # not through sys.stdin: its lock would hang the interpreter's end
                pass
        with contextlib.suppress(RuntimeError):  # the loop has ended first
            loop.call_soon_threadsafe(shutdown_policy.lose_owner)

    threading.Thread(target=wait, name="owner-watch", daemon=True).start()


@contextlib.contextmanager
def _no_reraised_signal() -> Iterator[None]:
    """Ignore the SIGTERM that uvicorn raises once more after it stopped for one, which would look like a failure."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def listen(host: str, port: int, *, or_any: bool = False) -> socket.socket:
    """Return a socket that listens on `host` and `port` (0: any free one). With `or_any` a port in use is replaced by a
    free one. Raises ServiceError with a remedy."""
    try:
        return _listen(host, port)
    except (OSError, OverflowError) as error:
        if or_any and _is_in_use(error):
            return listen(host, 0)
        raise _cannot_listen(host, port, error) from error


def listen_for_clients(host: str, stack: ExitStack) -> dict[int, socket.socket]:
    """Listen on those of the clients' ports that are free, until `stack` ends."""
    listeners = {}
    for port in CLIENTS_PORTS:
        try:
            listeners[port] = stack.enter_context(_listen(host, port))
        except OSError as error:
            if not _is_in_use(error):
                raise _cannot_listen(host, port, error) from error
    return listeners


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named: else a client's delayed ACK holds each part for 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
