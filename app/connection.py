"""The connection of a window to the service: opened in the background, reopened after a loss; whoever shows it watches
its state. Finds the model that a person types. Imports nothing heavy: a thread loads httpx and the launcher later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Literal, TypeGuard, cast

from app.chat.backend import ChatBackend, ConnectionState
from app.common.event_log import log_event
from app.protocol.errors import RequestError, ServiceError
from app.settings.settings import Settings
from quantizer.system.errors import EngineError, StorageError, UsageError, UserError

if TYPE_CHECKING:
    from app.client.service_client import ServiceClient
    from app.protocol.library import LocalModel
    from app.protocol.status import ModelStatus


_CHECK_S = 10.0
_OPEN: frozenset[str] = frozenset({"ready", "unloaded"})

Opener = Callable[[], AbstractAsyncContextManager[ChatBackend]]


def local_service(settings: Settings) -> Opener:
    """Return an opener for what `settings` name: a remote engine, the running service, or one started now and stopped
    with the app."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[ChatBackend]:
        await asyncio.to_thread(import_module, "app.client.launcher")
        from app.client.launcher import open_engine

        async with open_engine(settings) as client:
            yield client

    return opened


class ServiceConnection:
    """One service, one model. An async context manager: leaving it closes the client. `when_unfit` is the policy for a
    model that fits only partly; see `ServiceClient.load`. Every `check_s` seconds it looks whether the model is still
    loaded."""

    def __init__(self, opener: Opener, model: str, when_unfit: str = "", check_s: float = _CHECK_S) -> None:
        self.state = ConnectionState(model=model)
        self.default_model = model
        self._opener = opener
        self._requested_model = model
        self._when_unfit = when_unfit
        self._check_s = check_s
        self._backend: ChatBackend | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_settled = asyncio.Event()
        self._must_reload = asyncio.Event()
        self._change_callbacks: list[Callable[[], object]] = []
        self._disconnect_callbacks: list[Callable[[], None]] = []
        self._is_model_known = asyncio.Event()
        self._is_reached = asyncio.Event()  # the service is open, or it could not be opened

    async def __aenter__(self) -> ServiceConnection:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._close()

    def watch(self, callback: Callable[[], object]) -> None:
        """Call `callback` after every change of `state`."""
        self._change_callbacks.append(callback)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the connection to a ready service is lost; it is being reopened then."""
        self._disconnect_callbacks.append(callback)

    def connect(self) -> None:
        """Connect in the background, and load no model before `start` or `use_model`; does nothing once connected."""
        if self._task is None:
            self._begin()

    def start(self) -> None:
        """Connect and load the model in the background, or retry after a failure; does nothing while this is done or
        going on."""
        self._is_model_known.set()
        if self._task is None or self._task.done():
            self._begin()
        elif self.state.phase == "failed":
            self._reload()

    async def use_model(self, name: str) -> None:
        is_loading = self._is_reached.is_set() and self._is_model_known.is_set()
        self._requested_model = name
        self._is_model_known.set()
        self.state = replace(self.state, model=name)
        if self._task is None or self._task.done():
            self.start()
        elif is_loading:
            self._reload()
        else:
            self._set_state(self.state)

    def rename_model(self, formers: Collection[str], name: str) -> None:
        """Note that a model, which is not loaded, has another name than one of the `formers`."""
        self.default_model = name if self.default_model in formers else self.default_model
        if self._requested_model in formers or self.state.model in formers:
            self._requested_model = name
            self._set_state(replace(self.state, model=name))

    def is_using(self, name: str) -> bool:
        """Return whether `name` is the model in use, or the name that it was requested by."""
        return name in {self.state.model, self._requested_model}

    def accept_unfit(self) -> None:
        self._when_unfit = "load"

    async def service(self) -> ChatBackend:
        """Return the client once the service is reachable, whatever the state of the model. Raises what prevents it."""
        if self._task is None or self._task.done():
            self.start()
        await self._is_reached.wait()
        if self._backend is None:
            raise self.state.error or ServiceError("The service is not available.", "Try again.")
        return self._backend

    async def client(self) -> ChatBackend:
        """Return the client once the model is ready, connecting if needed: a service that is gone is opened again, and
        a model that was unloaded is loaded again. Raises the UserError that prevented it."""
        self.start()
        await self._is_settled.wait()
        if self.state.phase in _OPEN:
            await self._restore()
            await self._is_settled.wait()
        if self.state.error is not None:
            raise self.state.error
        if self._task is not None and self._task.done():
            self._task.result()
        assert self._backend is not None
        return self._backend

    async def _restore(self) -> None:
        """Open a lost service, and load an unloaded model, before a question fails or waits for it unseen."""
        backend = self._backend
        if backend is None or not is_localllm(backend):
            return  # another engine's models are always ready
        try:
            model = (await backend.status()).model(self.state.model)
        except ServiceError as lost:
            await self.report_failure(lost)
        else:
            if self.state.phase in _OPEN and (model is None or model.state != "ready"):
                self._reload()

    async def report_failure(self, error: UserError) -> None:
        """Handle an error of an answer or of a subscription: EngineError reloads the model, ServiceError reconnects. A
        service that was not ready is retried at the next question only. Other errors change nothing."""
        log_event("app", str(error))
        if self.state.phase in {"failed", "starting"}:
            return  # connecting failed and reported it, or the loss is known
        if isinstance(error, EngineError):
            self._reload()
        elif isinstance(error, ServiceError) and self.state.phase in _OPEN:
            self._begin()
            for callback in self._disconnect_callbacks:
                callback()
        elif isinstance(error, ServiceError):
            await self._close()
            self._set_state(replace(self.state, phase="failed", error=error))

    def _begin(self) -> None:
        before = self._task
        if before is not None:
            before.cancel()  # does nothing to one that has ended
        self._is_reached.clear()
        self._set_state(ConnectionState(phase="starting", model=self.state.model))
        self._task = asyncio.create_task(self._hold(before))
        self._task.add_done_callback(self._ended)

    def _reload(self) -> None:
        self._set_state(ConnectionState(phase="loading", model=self.state.model, n_ctx=self.state.n_ctx))
        self._must_reload.set()

    async def _hold(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        try:
            async with self._opener() as backend:
                self._backend = backend
                self._is_reached.set()
                await self._is_model_known.wait()
                self._must_reload.clear()
                while True:
                    await self._load_until_reload(backend)
                    self._must_reload.clear()
        except UserError as error:
            self._set_state(replace(self.state, phase="failed", error=error))
        finally:
            self._backend = None

    async def _load_until_reload(self, backend: ChatBackend) -> None:
        """Load the model, and return when it, or another one, must be reloaded."""
        from app.client.launcher import load_model

        client, model = cast("ServiceClient", backend), self._requested_model
        loading = asyncio.create_task(load_model(client, model, self._note, when_unfit=self._when_unfit))
        reloading = asyncio.create_task(self._must_reload.wait())
        try:
            await asyncio.wait({loading, reloading}, return_when=asyncio.FIRST_COMPLETED)
            if not reloading.done():
                try:
                    await loading
                except ServiceError:
                    raise  # the service is lost
                except UserError as error:  # a model that does not load keeps the connection open
                    self._set_state(replace(self.state, phase="failed", error=error))
                await self._watch_model(backend, reloading)
        finally:
            loading.cancel()
            reloading.cancel()
            await asyncio.gather(loading, reloading, return_exceptions=True)

    async def _watch_model(self, backend: ChatBackend, reloading: asyncio.Task[Literal[True]]) -> None:
        """Note until `reloading` is done when the service unloads the model, or loads it for another client."""
        while not (await asyncio.wait({reloading}, timeout=self._check_s))[0]:
            if self.state.phase in _OPEN and is_localllm(backend):
                with suppress(ServiceError):  # the next question, or the subscription to jobs, reports it
                    model = (await backend.status()).model(self.state.model)
                    if model is not None and model.state != self.state.phase and model.state in _OPEN:
                        self._note(model)

    def _note(self, model: ModelStatus) -> None:
        found = self._backend.notices if self._backend is not None and is_localllm(self._backend) else ()
        if model.state != "failed":  # a failure is raised and recorded by the caller
            self._set_state(ConnectionState.of_model(model, tuple(found)))

    def _set_state(self, state: ConnectionState) -> None:
        self.state = state
        if state.phase in {*_OPEN, "failed"}:
            self._is_settled.set()
        else:
            self._is_settled.clear()
        for watcher in self._change_callbacks:
            watcher()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is self._task:  # not one that another has taken the place of
            self._is_settled.set()
            self._is_reached.set()

    async def _close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()


def is_localllm(service: ChatBackend) -> TypeGuard[ServiceClient]:
    """Return whether `service` has models, plans and jobs; another engine only chats."""
    return hasattr(service, "library")


async def localllm_service(connection: ServiceConnection) -> ServiceClient:
    """Return the client for models, plans and jobs once the service is reachable. Raises what prevents it, and
    RequestError for another kind of engine, which only supports chat."""
    service = await connection.service()
    if not is_localllm(service):
        raise RequestError(
            "The connected engine only supports chat.", "Start localllm without --connect for models, plans and jobs."
        )
    return service


async def forget_chat(connection: ServiceConnection, settings: Settings, prompt_cache_key: str) -> None:
    """Delete what was computed of a deleted chat, by the service where it answers, and log what kept it from that."""
    from app.chat.repository import delete_prefixes  # a face has it already

    async def forget(keys: Sequence[str]) -> None:
        await (await localllm_service(connection)).forget_prefixes(keys)

    try:
        failure: UserError | None = await delete_prefixes(
            [prompt_cache_key], settings.cache_dir, forget, is_own_service=not settings.connect
        )
    except StorageError as error:
        failure = error
    if failure is not None:
        log_event("app", f"The prefixes of a deleted chat may be left: {failure}")


# Which model: what a person types after `/model`, a part of its name.


async def local_models(connection: ServiceConnection) -> tuple[LocalModel, ...]:
    """Return the models of this machine that can run, other programs' models too. Raises UserError."""
    service = await localllm_service(connection)
    listing = await service.library.models(external=True)
    return tuple(model for model in listing.models if not model.damaged)


async def resolve_model(connection: ServiceConnection, typed: str) -> str:
    """Return the service's id of the model called `typed`, which begins to load. Raises UserError."""
    service = await connection.service()
    if is_localllm(service):
        return await service.load(find_model(typed, await local_models(connection)).path)
    return await service.load(typed)


def find_model(typed: str, models: Sequence[LocalModel]) -> LocalModel:
    """Return the model called `typed` (its id, or the name of its file), else the only one whose names contain the
    words. Raises UsageError."""
    wanted = typed.casefold()
    names = {model.path: f"{model.id} {model.file_stem}".casefold() for model in models}
    exact = [model for model in models if wanted in (model.id.casefold(), model.path.casefold())]
    exact = exact[:1] or [model for model in models if wanted == model.file_stem.casefold()]
    found = exact or [model for model in models if all(word in names[model.path] for word in wanted.split())]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{typed} may be {', '.join(model.id for model in found)}.", "Type more of the name.")
    from difflib import get_close_matches  # only for a typing error

    ids = {model.id.casefold(): model.id for model in models}
    similar = get_close_matches(wanted, ids, n=1, cutoff=0.4)
    question = f" Did you mean {ids[similar[0]]}?" if similar else ""
    raise UsageError(f"There is no local model {typed}.{question}", "/model lists the local models.")


def model_lines(models: Sequence[LocalModel], current: str) -> list[str]:
    lines = [f"{'*' if current in (model.loaded_as, model.id) else ' '} {model.id}" for model in models]
    return lines or ["There is no local model: localllm pull downloads one."]
