"""The launcher of the service: finds a running one, starts one that ends with its user, or connects to a remote engine.

Owns finding, starting and ending the service's process. Independent of what is requested of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from app.client.connection import error_of
from app.client.remote_engine import RemoteEngine, parse_address
from app.client.service_client import ServiceClient
from app.common.event_log import LOG_NAME
from app.common.keys import own_key
from app.library.local.resolve import portable
from app.options.option import format_value
from app.protocol.errors import ServiceError, UnfitError
from app.protocol.status import ModelStatus
from app.settings.settings import Settings, environment_variable
from quantizer.system.errors import EngineError, UsageError, UserError
from quantizer.system.files import open_private, private_folder, try_lock
from quantizer.system.memory_limit import ProcessBytes, check_memory_limit, out_of_memory, reported_shortage
from quantizer.system.process import OwnedProcess, StderrTail, python_command

_COMMAND = python_command("app.cli.main", "serve", "--owned")
_START_TIMEOUT_S = 60.0  # a cold disk may take long over Python's imports
_FINISH_TIMEOUT_S = 75.0  # the service lets answers in flight finish for 60 s
_PROBE_TIMEOUT_S = 2.0
_POLL_INTERVAL_S = 0.1
_LOG_BYTES_KEPT, _LOG_BYTES_READ = 1 << 20, 16 << 10


@asynccontextmanager
async def open_service(settings: Settings, model: str | None = None) -> AsyncIterator[ServiceClient]:
    """Return a client of the service at `settings.url`, starting one where none responds.

    A service of our own starts to load `model` (or the settings' model) at once and ends with this context, or with
    this process however that ends, unless the client called `stay_until_jobs_end` or another one found the service and
    still uses it. A service that already runs is left running, and does not end during this context. Raises
    ServiceError when none can be started, and the service's own error for invalid settings; an invalid model is an
    error of `load_model`.
    """
    wanted = replace(settings, model=portable(model or settings.model))
    started = await _start_unless_running(wanted)
    if started is None:
        async with ServiceClient(settings.url, own_key(settings)) as client, _attending(client):
            yield client
        return
    process, url = started
    is_staying = False
    try:
        async with ServiceClient(url, own_key(settings)) as client:
            try:
                yield client
            finally:
                is_staying = client.is_staying or await _is_attended(client)
    finally:
        if is_staying:
            process.release()
        else:
            await process.end(_FINISH_TIMEOUT_S)


def open_engine(settings: Settings) -> AbstractAsyncContextManager[ServiceClient | RemoteEngine]:
    """Return a client of the remote engine of `settings`, else of a service; raises as `connect` or `open_service`."""
    return connect(settings.connect, settings.api_key) if settings.connect else open_service(settings)


@asynccontextmanager
async def connect(url: str, api_key: str) -> AsyncIterator[ServiceClient | RemoteEngine]:
    """Return a client of the server at `url`: another localllm, or any OpenAI-compatible engine. Raises UsageError for
    an invalid address, ServiceError where no such server responds, RequestError for a wrong key."""
    base_url = parse_address(url)
    if base_url is None:
        raise UsageError(f"{url!r} is not an address.", "Give one such as http://192.168.1.7:11500.")
    async with RemoteEngine(base_url, api_key) as engine:
        await engine.status()  # raises what is wrong with it
        if not await _answers(base_url, api_key):
            yield engine
            return
    async with ServiceClient(base_url, api_key) as client, _attending(client):
        yield client


async def load_model(
    client: ServiceClient | RemoteEngine,
    model: str,
    on_status: Callable[[ModelStatus], None] | None = None,
    *,
    when_unfit: str = "",
    confirm_load: Callable[[UnfitError], bool] = lambda _: False,
) -> ModelStatus:
    """Load `model` (empty: the service's default), report progress to `on_status`, and return when it was loaded.
    `confirm_load` decides about a model that is loaded only with a yes; see `ServiceClient.load` for `when_unfit`.
    Raises the error that made loading fail."""
    name = portable(model) if model else ""
    model_id = await client.load(name, when_unfit)
    while True:
        status = (await client.status()).model(model_id)
        if status is None:
            raise ServiceError(f"The service no longer has the model {model_id}.", "Try again.")
        if on_status is not None:
            on_status(status)
        if status.state == "failed":
            error = status.error.error() if status.error else EngineError(f"Loading {model_id} failed.", "Try again.")
            if not (isinstance(error, UnfitError) and confirm_load(error)):
                raise error
            await client.load(name, "load")
        if status.state in ("ready", "unloaded"):  # a loaded model may be unloaded again for another one
            return status
        await asyncio.sleep(_POLL_INTERVAL_S)


async def _answers(url: str, api_key: str) -> bool:
    """Return whether a localllm service responds there and accepts our key."""
    async with ServiceClient(url, api_key) as client:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                await client.status()
        except (UserError, TimeoutError, ValueError, KeyError, TypeError):
            return False
        return True


async def _start_unless_running(settings: Settings) -> tuple[OwnedProcess, str] | None:
    """Start a service and return it with its URL once it responds; None where one runs. Of several processes that look
    for one at the same time, the first starts it."""
    if await _answers(settings.url, own_key(settings)):
        return None
    check_memory_limit("service", ProcessBytes.SERVICE)
    async with _sole_starter(settings):
        if await _answers(settings.url, own_key(settings)):
            return None
        with _open_log(settings.cache_dir) as log:
            n_logged_bytes = log.tell()
            # As environment variables, which `ps` does not show to other users.
            variables = {environment_variable(name): format_value(value) for name, value in asdict(settings).items()}
            with reported_shortage("command"):
                process = await OwnedProcess.start(_COMMAND, variables, log)
        try:
            return process, await _ready_url(process, settings.cache_dir / LOG_NAME, n_logged_bytes)
        except BaseException:
            await process.end(_FINISH_TIMEOUT_S)
            raise


@asynccontextmanager
async def _sole_starter(settings: Settings) -> AsyncIterator[None]:
    """Wait while another process starts a service for the same port; not for one that takes any port."""
    if settings.port == 0:
        yield
        return
    await asyncio.to_thread(import_module, "filelock")
    path = settings.cache_dir / f"service-{settings.port}.lock"
    deadline_s = asyncio.get_running_loop().time() + _START_TIMEOUT_S
    lock = None
    with contextlib.suppress(OSError):  # a folder that cannot be written is reported with the log
        private_folder(settings.cache_dir)
        while (lock := try_lock(path)) is None and asyncio.get_running_loop().time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL_S)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


@asynccontextmanager
async def _attending(client: ServiceClient) -> AsyncIterator[None]:
    """Attend a service during this context: it does not end with the process that started it."""
    is_attended = asyncio.Event()

    async def attend() -> None:
        """Attend it again after it was lost: another process may have started the next one."""
        while True:
            try:
                async for _ in client.attend():
                    is_attended.set()
            except ServiceError:
                await asyncio.sleep(_POLL_INTERVAL_S)
            except UserError:  # it does not let us
                break
        is_attended.set()

    attending = asyncio.create_task(attend())
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                await is_attended.wait()
        yield
    finally:
        attending.cancel()
        await asyncio.wait({attending})


async def _is_attended(client: ServiceClient) -> bool:
    """Return whether other clients use our service, which then outlives us."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            return (await client.status()).n_attending > 0
    except (UserError, TimeoutError):
        return False


async def _ready_url(process: OwnedProcess, log: Path, n_logged_bytes: int) -> str:
    """Return the URL of a service once it is ready. Raises the error for which it is not; its log had so many bytes."""
    try:
        line = await process.read_line(_START_TIMEOUT_S)
    except TimeoutError:
        raise ServiceError(f"The service did not start within {_START_TIMEOUT_S:g} s.", f"See {log}.") from None
    greeting: Any = None
    with contextlib.suppress(ValueError):
        greeting = json.loads(line)
    if isinstance(greeting, dict) and "error" in greeting:
        raise error_of(greeting["error"])
    if isinstance(greeting, dict) and "url" in greeting:
        return str(greeting["url"])
    raise _early_end(log, n_logged_bytes)


def _early_end(log: Path, n_logged_bytes: int) -> UserError:
    """Return the error for a service that ended before it was ready, with what it last logged."""
    lines: tuple[str, ...] = ()
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(n_logged_bytes, log.stat().st_size - _LOG_BYTES_READ))
        lines = StderrTail(file.read()).lines
    last = f"; its last output: {lines[-1]}".rstrip(".") if lines else ""
    ended = ServiceError(f"The service ended before it was ready{last}.", f"See {log}.")
    return out_of_memory("service", lines) or ended


def _open_log(cache_dir: Path) -> BinaryIO:
    """Open the service's log for appending; one larger than 1 MiB is truncated."""
    path = cache_dir / LOG_NAME
    try:
        private_folder(cache_dir)
        if path.exists() and path.stat().st_size > _LOG_BYTES_KEPT:
            path.write_bytes(b"")
        return open_private(path)  # the app appends to it too
    except OSError as error:
        cause = f"Cannot write {path}: {error.strerror}."
        raise ServiceError(cause, "Set LOCALLLM_CACHE_DIR to a folder of yours.") from error
