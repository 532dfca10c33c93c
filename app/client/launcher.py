"""How a face gets a service: one that runs already, one of its own that goes with the face, or an engine elsewhere.

Owns finding, starting and ending the service's process. Knows nothing of what is asked of it.
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

from app.client import ModelStatus, RemoteEngine, ServiceClient, error_of
from app.client.remote_engine import address
from app.keys import own_key
from app.library.local.resolve import portable
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
    """Give a client of the service at `settings.url`, starting one when none answers there.

    A service of our own begins to load `model` (or the settings' model) at once and ends with this context, or with
    this process however that ends, unless the client told it to stay; one that was found is left as it is, and stays
    as long as this context where another face told it to stay for its jobs. Raises ServiceError when none can be
    started, and the service's own error when it refuses the settings; a model that is missing or refused is an error
    of `load_model`.
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
    """Give a client of what `settings` want to chat with: an engine elsewhere, else a service; see there for both."""
    return connect(settings.connect, settings.api_key) if settings.connect else open_service(settings)


@asynccontextmanager
async def connect(url: str, api_key: str) -> AsyncIterator[ServiceClient | RemoteEngine]:
    """Give a client of what answers at `url`: another localllm, or any OpenAI-compatible engine.

    Raises UsageError for no address, ServiceError when nothing of the kind is there, RequestError where the key is
    refused.
    """
    base_url = address(url)
    if base_url is None:
        raise UsageError(f"{url!r} is no address of an engine.", "Give one such as http://192.168.1.7:11500.")
    async with RemoteEngine(base_url, api_key) as engine:
        await engine.status()  # tells what is wrong with it in words
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
    """Load `model` (empty: the service's default), tell `on_status` how far it is, and return when it is ready.

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
    """True when a localllm service answers there and takes our key."""
    async with ServiceClient(url, api_key) as client:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                await client.status()
        except (UserError, TimeoutError, ValueError, KeyError, TypeError):
            return False
        return True


@asynccontextmanager
async def _present(client: ServiceClient) -> AsyncIterator[None]:
    """Watch the jobs of a service for as long as this lasts: one that stays for them does not go meanwhile."""

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
    said = _parsed(line)
    if "error" in said:
        raise error_of(said["error"])
    if "url" not in said:
        raise ServiceError("The service ended before it was ready.", f"See {log}.")
    return str(said["url"])


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _variables(settings: Settings) -> dict[str, str]:
    """Return every setting as the child reads it; unlike arguments, they are not shown to other users by `ps`."""
    return {environment_variable(name): format_setting(value) for name, value in asdict(settings).items()}


def _open_log(cache_dir: Path) -> BinaryIO:
    """Open the service's log for appending; one that has grown past 1 MiB begins anew."""
    path = cache_dir / "service.log"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        is_large = path.exists() and path.stat().st_size > _LOG_BYTES_KEPT
        return path.open("wb" if is_large else "ab")
    except OSError as error:
        cause = f"Cannot write {path}: {error.strerror}."
        raise ServiceError(cause, "Set LOCALLLM_CACHE_DIR to a folder of yours.") from error
