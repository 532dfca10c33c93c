"""The launcher of the service: finds a running one, starts one that ends with its user, or connects to a remote engine.

Owns finding, starting and ending the service's process. Independent of what is requested of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from urllib.parse import urlsplit

from app import __version__
from app.client.own_service import OwnServiceTransport
from app.client.remote_engine import RemoteEngine, parse_address
from app.client.service_client import ServiceClient
from app.client.service_process import (
    FINISH_TIMEOUT_S,
    START_TIMEOUT_S,
    StartedService,
    possible_ports,
    service_settings,
    start_service,
    starter_lock_path,
)
from app.common.keys import own_key
from app.common.service_identity import ServiceIdentity
from app.library.local.resolve import portable
from app.protocol.errors import ForeignServiceError, ServiceError, UnfitError
from app.protocol.status import ModelStatus
from app.settings.parsing import parse_duration
from app.settings.settings import Settings, service_digest
from quantizer.system.errors import EngineError, UsageError, UserError
from quantizer.system.files import private_folder, try_lock
from quantizer.system.memory_limit import ProcessBytes, check_memory_limit
from quantizer.system.process import OwnedProcess, is_process_alive

_PROBE_TIMEOUT_S = 2.0
_POLL_INTERVAL_S = 0.1


@asynccontextmanager
async def open_service(
    settings: Settings, model: str | None = None, *, keeps: bool = False, begun: StartedService | None = None
) -> AsyncIterator[ServiceClient]:
    """Return a client of the service of this user and data folder, starting one where none runs: at `settings.url`, or
    on another port where somebody else has that one, which `client.notices` says.

    A service of our own starts to load `model` (or the settings' model) at once and ends with this context, or with
    this process however that ends, unless the client called `stay_until_jobs_end` or another one found the service and
    still uses it. With `keeps` it stays as long as the settings say, for the next command. A service that already runs
    is left running, and does not end during this context. `begun` is one that was started for these arguments already.
    Raises ServiceError when none can be started, and the service's own error for invalid settings; an invalid model is
    an error of `load_model`.
    """
    wanted = service_settings(replace(settings, model=model or settings.model), keeps=keeps)
    kept_for = wanted.keep_service
    found = await _find_or_start(wanted, begun)
    async with found.client as client:
        if found.process is None:
            async with _attending(client):
                yield client
            return
        is_kept = parse_duration(kept_for) != 0
        client.kept_for = kept_for if is_kept else ""
        is_staying = False
        try:
            try:
                yield client
            finally:
                is_staying = is_kept or client.is_staying or await _is_attended(client)
        finally:
            if is_staying:
                found.process.release()
            else:
                await found.process.end(FINISH_TIMEOUT_S)


def open_engine(
    settings: Settings, *, keeps: bool = False, begun: StartedService | None = None
) -> AbstractAsyncContextManager[ServiceClient | RemoteEngine]:
    """Return a client of the remote engine of `settings`, else of a service; see `connect` and `open_service`."""
    if settings.connect:
        return connect(settings.connect, settings.api_key)
    return open_service(settings, keeps=keeps, begun=begun)


@asynccontextmanager
async def running_service(settings: Settings) -> AsyncIterator[ServiceClient]:
    """Return a client of the running service of this user and data folder. Raises ServiceError where none runs, and
    what it answers instead of its status."""
    found = await _find(settings)
    if isinstance(found, ServiceError):
        raise found
    async with found as client:
        yield client


def service_of(settings: Settings) -> AbstractAsyncContextManager[ServiceClient]:
    """Return a client of the service that commands with `settings` use: the one to connect to, or the running one as
    `running_service`."""
    return ServiceClient(settings.connect, settings.api_key) if settings.connect else running_service(settings)


async def stop_services(settings: Settings, *, if_unused: bool = False) -> list[str]:
    """End the services of this user and data folder, of any version, and return their addresses once the running
    answers are complete and they have ended. With `if_unused` only those that nobody uses."""
    identity, stopped = ServiceIdentity(settings), list[str]()
    for port in possible_ports(settings, identity):
        async with _client(replace(settings, port=port), identity) as client:
            with contextlib.suppress(ServiceError, TimeoutError):  # none is there, or somebody else's
                async with asyncio.timeout(_PROBE_TIMEOUT_S if if_unused else None):  # an unused one answers at once
                    process = await client.stop(identity, if_unused=if_unused)
                if process:
                    await _wait_for_end(process)
                    stopped.append(client.base_url)
    return stopped


async def _wait_for_end(process: str) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FINISH_TIMEOUT_S):
            while is_process_alive(process):  # noqa: ASYNC110 - other processes send no events
                await asyncio.sleep(_POLL_INTERVAL_S)


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


@dataclass(frozen=True, slots=True)
class _Found:
    """A client, not yet entered, and the process of its service where this one started it."""

    client: ServiceClient
    process: OwnedProcess | None = None


async def _find(settings: Settings, *, ends_unfit: bool = False) -> ServiceClient | ServiceError:
    """Return a client, not yet entered, of the running service of this user and data folder; else why none is there.
    One of another version is none: an update must not be answered by what ran before it. With `ends_unfit` one that
    only stays for the next command, and has another version or other settings than this command, is ended."""
    identity = ServiceIdentity(settings)
    reasons: list[ServiceError] = []
    for port in possible_ports(settings, identity):
        client = _client(replace(settings, port=port), identity)
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                status = await client.status()
            is_same_version = status.version == __version__
            is_fit = is_same_version and status.settings_digest == service_digest(settings)
            is_due = ends_unfit and status.is_unused and not is_fit
            if is_due and (process := await client.stop(identity, if_unused=True)):
                await _wait_for_end(process)
                reasons.append(ServiceError(f"The service at {client.base_url} was ended."))
            elif is_same_version:
                return client
            else:
                cause, remedy = f"localllm {status.version} runs at {client.base_url}.", "Run `localllm stop` first."
                reasons.append(ForeignServiceError(cause, remedy))
        except TimeoutError:
            cause = f"What listens at {client.base_url} does not answer."
            reasons.append(ForeignServiceError(cause, "Stop it, or use another --port."))
        except ServiceError as error:
            reasons.append(error)
        except UserError as error:  # it has another API key
            reasons.append(ForeignServiceError(f"{client.base_url} refuses this command: {error.cause}", error.remedy))
        except BaseException:
            await client.__aexit__()
            raise
        await client.__aexit__()
    return reasons[0]


def _client(settings: Settings, identity: ServiceIdentity) -> ServiceClient:
    return ServiceClient(settings.url, own_key(settings), OwnServiceTransport(identity))


async def _find_or_start(settings: Settings, begun: StartedService | None) -> _Found:
    """Find the service, or start one, unless it is `begun`, and return once it responds. Of several processes that look
    for one at the same time, the first starts it. A service for any port (0) is always a new one."""
    if begun is not None:
        return await _greeted(settings, begun, None)
    if settings.port and isinstance(found := await _find(settings, ends_unfit=True), ServiceClient):
        return _Found(found)
    check_memory_limit("service", ProcessBytes.SERVICE)
    async with _sole_starter(settings):
        reason = await _find(settings, ends_unfit=True) if settings.port else None
        if isinstance(reason, ServiceClient):
            return _Found(reason)
        starting = asyncio.create_task(asyncio.to_thread(start_service, settings))
        try:
            started = await asyncio.shield(starting)
        except asyncio.CancelledError:  # the process is there all the same
            started = await starting
            with started.reported():
                await started.process.end(FINISH_TIMEOUT_S)
            raise
        return await _greeted(settings, started, reason)


async def _greeted(settings: Settings, started: StartedService, reason: ServiceError | None) -> _Found:
    """Return a `started` service once it responds; `reason` is why no other one would do."""
    try:
        with started.reported():
            greeting = await started.greeting()
        url, secret = str(greeting["url"]), bytes.fromhex(str(greeting.get("secret", "")))
        client = ServiceClient(url, own_key(settings), OwnServiceTransport(ServiceIdentity(settings, secret)))
    except BaseException:
        await started.process.end(FINISH_TIMEOUT_S)
        raise
    if settings.port and url != settings.url:
        cause = reason.cause if isinstance(reason, ForeignServiceError) else f"Port {settings.port} is in use."
        unrecorded = ServiceIdentity(settings).why_not_found(urlsplit(url).port or 0)
        client.notices = (f"{cause} Your own service runs at {url}.", *filter(None, (unrecorded,)))
    return _Found(client, started.process)


@asynccontextmanager
async def _sole_starter(settings: Settings) -> AsyncIterator[None]:
    """Wait while another process starts a service for the same port; not for one that takes any port."""
    if settings.port == 0:
        yield
        return
    await asyncio.to_thread(import_module, "filelock")
    path = starter_lock_path(settings)
    deadline_s = asyncio.get_running_loop().time() + START_TIMEOUT_S
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
