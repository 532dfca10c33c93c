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
from pathlib import Path
from typing import Any, BinaryIO

from app.client.connection import error_of
from app.client.remote_engine import RemoteEngine, parse_address
from app.client.service_client import ServiceClient
from app.keys import own_key
from app.library.local.resolve import portable
from app.protocol.status import ModelStatus
from app.settings.settings import Settings, environment_variable, format_setting
from quantizer.errors import EngineError, ServiceError, UnfitError, UsageError, UserError
from quantizer.process import OwnedProcess, python_command

__all__ = ["connect", "load_model", "open_engine", "open_service"]

_COMMAND = python_command("app.cli.main", "serve", "--owned")
_START_TIMEOUT_S = 60.0  # a cold disk may take long over Python's imports
_FINISH_TIMEOUT_S = 75.0  # the service lets answers in flight finish for 60 s
_PROBE_TIMEOUT_S = 2.0
_POLL_INTERVAL_S = 0.1
_LOG_BYTES_KEPT = 1 << 20


@asynccontextmanager
async def open_service(settings: Settings, model: str | None = None) -> AsyncIterator[ServiceClient]:
    """Return a client of the service at `settings.url`, starting one where none responds.

    A service of our own starts to load `model` (or the settings' model) at once and ends with this context, or with
    this process however that ends, unless the client called `stay_until_jobs_end`. A service that already runs is left
    running, and does not end during this context. Raises ServiceError when none can be started, and the service's own
    error for invalid settings; an invalid model is an error of `load_model`.
    """
    wanted = replace(settings, model=portable(model or settings.model))
    if await _answers(settings.url, own_key(settings)):
        async with ServiceClient(settings.url, own_key(settings)) as client, _present(client):
            yield client
        return
    with _open_log(settings.cache_dir) as log:
        process = await OwnedProcess.start(_COMMAND, _variables(wanted), log)
    is_staying = False
    try:
        url = await _ready_url(process, Path(log.name))
        async with ServiceClient(url, own_key(settings)) as client:
            try:
                yield client
            finally:
                is_staying = client.is_staying
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
    """Return a client of the server at `url`: another localllm, or any OpenAI-compatible engine.

    Raises UsageError for an invalid address, ServiceError where no such server responds, RequestError for a wrong key.
    """
    base_url = parse_address(url)
    if base_url is None:
        raise UsageError(f"{url!r} is not an address.", "Give one such as http://192.168.1.7:11500.")
    async with RemoteEngine(base_url, api_key) as engine:
        await engine.status()  # raises what is wrong with it
        if not await _answers(base_url, api_key):
            yield engine
            return
    async with ServiceClient(base_url, api_key) as client:
        yield client


async def load_model(
    client: ServiceClient | RemoteEngine,
    model: str,
    on_status: Callable[[ModelStatus], None] | None = None,
    *,
    when_unfit: str = "",
    confirm_load: Callable[[UnfitError], bool] = lambda _: False,
) -> ModelStatus:
    """Load `model` (empty: the service's default), report progress to `on_status`, and return when it is ready.

    `confirm_load` decides about a model that is loaded only with a yes; see `ServiceClient.load` for `when_unfit`.
    Raises the error that made loading fail.
    """
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
        if status.state == "ready":
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


@asynccontextmanager
async def _present(client: ServiceClient) -> AsyncIterator[None]:
    """Watch the jobs of a service during this context: one that stays only for its jobs does not end meanwhile."""

    async def watch() -> None:
        with contextlib.suppress(UserError):
            async for _ in client.watch_jobs():
                pass

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def _ready_url(process: OwnedProcess, log: Path) -> str:
    try:
        line = await process.read_line(_START_TIMEOUT_S)
    except TimeoutError:
        raise ServiceError(f"The service did not start within {_START_TIMEOUT_S:g} s.", f"See {log}.") from None
    greeting = _parsed(line)
    if "error" in greeting:
        raise error_of(greeting["error"])
    if "url" not in greeting:
        raise ServiceError("The service ended before it was ready.", f"See {log}.")
    return str(greeting["url"])


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        greeting = json.loads(line)
    except ValueError:
        return {}
    return greeting if isinstance(greeting, dict) else {}


def _variables(settings: Settings) -> dict[str, str]:
    """Return every setting as an environment variable, which `ps` does not show to other users."""
    return {environment_variable(name): format_setting(value) for name, value in asdict(settings).items()}


def _open_log(cache_dir: Path) -> BinaryIO:
    """Open the service's log for appending; one larger than 1 MiB is truncated."""
    path = cache_dir / "service.log"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        is_large = path.exists() and path.stat().st_size > _LOG_BYTES_KEPT
        return path.open("wb" if is_large else "ab")
    except OSError as error:
        cause = f"Cannot write {path}: {error.strerror}."
        raise ServiceError(cause, "Set LOCALLLM_CACHE_DIR to a folder of yours.") from error
