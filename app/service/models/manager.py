"""The models that the service holds: found by name, each with an engine, which the names of one file share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.common.event_log import log_event
from app.engine.messages import EngineConfig, UnfitPolicy
from app.library.local.model_files import ModelRef
from app.library.local.projectors import general_choice
from app.library.local.resolve import UnknownModelError
from app.protocol.errors import RequestError
from app.service.generation.template_caps import TemplateProbe
from app.service.models.model_file import (
    NOTHING_ATTACHED,
    Attachments,
    FileFacts,
    ModelCatalog,
    ModelFile,
    Purpose,
    Senses,
    is_current,
    is_for,
    is_placeholder,
    own_attachments,
    read_model_file,
    with_current_recipe,
)
from app.service.models.served_model import RecentAnswers, ServedModel, TemplateRenderer
from app.service.pool.background import IdleTuning
from app.service.pool.engine_client import EngineClient
from app.service.pool.engine_pool import CopyWanted, EnginePool, keep_alive_s
from app.service.pool.memory import MachineMemory, Memory
from app.service.pool.worker_process import StartWorker
from app.settings.settings import Settings

_MAX_LOGGED_NAMES = 100
_BEFORE_REQUEST_ID = re.compile(r"\A[a-z]+[-_]")  # in the ids of responses: chatcmpl-, msg_, resp_


class ModelManager:
    """Holds one engine per file, in a worker that `start_worker` starts; `renderer` renders chat templates.

    A model is loaded by its first use, and evicts others where `memory` (this machine's by default) is too small for
    all. Nothing is tuned while `is_occupied` says that the machine is busy with other work; `on_copy_wanted` is as in
    `EnginePool`. Raises UsageError for settings that make no sense.
    """

    def __init__(
        self,
        settings: Settings,
        start_worker: StartWorker,
        renderer: TemplateRenderer,
        memory: Memory | None = None,
        is_occupied: Callable[[], bool] = lambda: False,
        on_copy_wanted: CopyWanted = lambda _path, _file_type: None,
    ) -> None:
        self.settings = settings
        self.catalog = ModelCatalog(settings, lambda: [model.ref for model in self.opened])
        self._renderer = renderer
        self._template_probe = TemplateProbe()
        self.answers = RecentAnswers()
        self._models: dict[str, ServedModel] = {}
        self._opening = asyncio.Lock()
        self._logged_names: set[str] = set()  # placeholders, each of which is logged once
        self._tuning = IdleTuning(lambda: is_occupied() or self._pool.is_busy)
        self._pool = EnginePool(settings, start_worker, memory or MachineMemory(settings), self._tuning, on_copy_wanted)
        self._keep_alive_s = keep_alive_s(settings)

    @property
    def opened(self) -> tuple[ServedModel, ...]:
        """The models that have an engine, loaded or not, the default first."""
        return tuple(self._models.values())

    @property
    def engines(self) -> dict[str, EngineClient]:
        """Each engine once, under the first of its names."""
        first = {model.shared: model for model in reversed(self.opened)}
        return {model.ref.id: model.engine for model in reversed(first.values())}

    def end_thought(self, response_id: str) -> bool:
        """End the reasoning in a running response of any dialect, by its id; return whether there is such a response.
        Its answer begins with the next step. What has no reasoning, or has ended it, goes on as it is."""
        request_id = _BEFORE_REQUEST_ID.sub("", response_id)
        found = [engine.end_thought(request_id) for engine in self.engines.values()]  # in each: no `any` of a generator
        return any(found)

    def sharing(self, model: ServedModel) -> tuple[ServedModel, ...]:
        return tuple(other for other in self.opened if other.shared is model.shared and other.ref != model.ref)

    @property
    def default(self) -> ServedModel:
        """The model that answers requests which name none."""
        return next(iter(self._models.values()))

    def add(
        self,
        ref: ModelRef,
        file: ModelFile,
        attached: Attachments = NOTHING_ATTACHED,
        when_unfit: UnfitPolicy | None = None,
    ) -> ServedModel:
        """Give the model at `ref` an engine, which its first use loads. The first model added is the default."""
        # Numbered when another file has that id already.
        free_ids = (ref.id, *(f"{ref.id}-{number}" for number in range(2, len(self._models) + 3)))
        ref = replace(ref, id=next(name for name in free_ids if name not in self._models))
        for what in file.sampling.ignored:
            log_event("service", f"{ref.id}: a sampling option is left out: {what}.")
        shared = self._pool.engine_for(ref.path, file, attached, when_unfit)
        model = self._models[ref.id] = ServedModel(
            ref,
            file,
            shared,
            shared.add_name(ref, self._keep_alive_s),
            self._renderer,
            adapters=tuple(name for _, name in attached.lora),
            can_prefill_ahead=self.settings.prefill_ahead,
            template_probe=self._template_probe,
            answers=self.answers,
        )
        return model

    async def load(self, name: str, when_unfit: UnfitPolicy | None = None) -> ServedModel:
        """Begin to load the model `name` (or path), "" for the default. Raises UnknownModelError, and ModelFileError
        for an invalid file."""
        model = await self._known_or_opened(name, when_unfit)
        model.load(when_unfit)
        return model

    async def reload(
        self, name: str, change: Callable[[EngineConfig], EngineConfig], *, until_unloaded: bool = False
    ) -> ServedModel:
        """Begin to load the model `name` with a changed config, in place of the present one, for good or until it is
        unloaded. Raises as `load`, and RequestError where that would end the answers of another name of the file."""
        model = await self._known_or_opened(name)
        if others := [other.ref.id for other in self.sharing(model) if other.keep_alive.is_used]:
            cause = f"{', '.join(others)} is busy on the same engine as {model.ref.id}."
            raise RequestError(cause, "Stop its answers, or wait for them.")
        model.reload(change, until_unloaded=until_unloaded)
        return model

    async def evicted_for(self, name: str, n_ctx: int = 0) -> tuple[str, ...] | None:
        """Return the ids of the models that would be unloaded to load the model `name` (or path) with a context of
        `n_ctx` tokens, 0 for the usual one; None where it would not run even alone. Raises as `load`."""
        known = self._known(name)
        ref = known.ref if known else await self.catalog.resolve(name)
        file, attached = await asyncio.to_thread(_read, ref, general_choice(self.settings.projector))
        before = self.engines.items()
        leaving = await self._pool.evicted_for(ref.path, file, attached, n_ctx)
        ids = {id(engine): name for name, engine in (*before, *self.engines.items())}  # some come and go meanwhile
        return None if leaving is None else tuple(ids[id(engine)] for engine in leaving)

    async def named(self, name: str) -> ServedModel:
        """Return the model that clients call `name` (no path), not loaded yet; an empty name is the default.
        Raises UnknownModelError that lists the models."""
        return await self._current(await self.find(name))

    async def answering(self, name: str, purpose: Purpose = "text") -> ServedModel:
        """Return the model that answers a request for `name`: that one, or the one that is meant by a placeholder.
        Raises UnknownModelError as `named` does."""
        if purpose in ("sounds", "speech") and not name and (meant := await self._meant(purpose)) is not None:
            return meant  # few defaults hear or speak
        try:
            return await self.named(name)
        except UnknownModelError:
            meant = await self._meant(purpose) if self.settings.any_name and is_placeholder(name) else None
            if meant is None:
                raise
        if name not in self._logged_names:
            self._logged_names = {name, *list(self._logged_names)[:_MAX_LOGGED_NAMES]}
            log_event("service", f"{name!r} is not a local model: {meant.ref.id} answers.")
        return meant

    async def find(self, name: str) -> ModelRef:
        known = self._known(name)
        return known.ref if known else await self.catalog.find(name)

    def serving(self, ref: ModelRef) -> ServedModel | None:
        return next((model for model in self.opened if _files(model.ref) == _files(ref)), None)

    def senses(self, ref: ModelRef, facts: FileFacts) -> Senses:
        model = self.serving(ref)
        return facts.senses if model is None else model.senses

    async def release(self, ref: ModelRef) -> None:
        """Forget the model of `ref`, because its file goes. Raises RequestError for one that is needed."""
        model = self.serving(ref)
        if model is None:
            return
        if model is self.default:
            raise RequestError(f"{ref.id} is the model that this service was started with.", "Start it with another.")
        if model.is_busy:
            raise RequestError(f"{ref.id} is busy.", "Wait until its answers have ended.")
        await self._forget(model)

    async def render_template(self, template: str, messages: Sequence[dict[str, Any]]) -> str:
        """Return `template` filled with `messages`, without special tokens. Raises RequestError where that fails."""
        return await self._renderer.render(template, messages, bos_token="", eos_token="", tools=None)

    def interrupt_tuning(self) -> None:
        self._tuning.interrupt()

    async def warm_up(self) -> None:
        """Start the template process, so that the first request does not wait for it."""
        await self._renderer.render("", [])

    async def close(self) -> None:
        await self._tuning.close()
        await self._pool.close()
        await self._renderer.close()

    async def _meant(self, purpose: Purpose) -> ServedModel | None:
        """Return the model for `purpose` that a request means which names none of this machine: the default, or else
        the only one in the library that serves it; None for several. What others have loaded does not count: a client
        that works goes on working, with the same model."""
        if is_for(purpose, self.default.file.task, self.default.senses):
            return await self._current(self.default.ref)
        serving_it = await self.catalog.installed_for(purpose)
        return await self._current(serving_it[0]) if len(serving_it) == 1 else None

    def _known(self, name: str) -> ServedModel | None:
        return self._models.get(name) if name else self.default

    async def _known_or_opened(self, name: str, when_unfit: UnfitPolicy | None = None) -> ServedModel:
        known = self._known(name)
        return await self._current(known.ref if known else await self.catalog.resolve(name), when_unfit)

    async def _current(self, ref: ModelRef, when_unfit: UnfitPolicy | None = None) -> ServedModel:
        """Return the model at `ref` with its present recipe, opened unless it is known, and again if its files or its
        projector have been removed, added or replaced. The files of a loaded model are not checked, and the default is
        always kept."""
        model = self.serving(ref)
        if model is None:
            return await self._open(ref, when_unfit)
        is_kept = model is self.default or model.keep_alive.is_holding
        if is_kept or await asyncio.to_thread(is_current, model.ref, model.file):
            file = await asyncio.to_thread(with_current_recipe, model.ref, model.file)
            if file is not model.file:
                model = self._models[model.ref.id] = replace(model, file=file)
            return model
        if self._models.get(model.ref.id) is model and not model.is_busy:
            await self._forget(model)
        has_moved = model.ref.manifest or not await asyncio.to_thread(model.ref.path.exists)
        return await self._open(await self.catalog.resolve(model.ref.id) if has_moved else ref, when_unfit)

    async def _forget(self, model: ServedModel) -> None:
        del self._models[model.ref.id]
        await self._pool.remove_name(model.shared, model.ref)

    async def _open(self, ref: ModelRef, when_unfit: UnfitPolicy | None = None) -> ServedModel:
        async with self._opening:
            if same := self.serving(ref):
                return same
            file, attached = await asyncio.to_thread(_read, ref, general_choice(self.settings.projector))
            linked = self._models.get(ref.id)  # a model of another program that was imported under its name
            is_same = linked is not None and linked.file.identity == file.identity
            return linked if linked and is_same else self.add(ref, file, attached, when_unfit)


def _read(ref: ModelRef, projector: str) -> tuple[ModelFile, Attachments]:
    return read_model_file(ref.path, projector, ref.manifest), own_attachments(ref)


def _files(ref: ModelRef) -> tuple[Path, Path | None]:
    return ref.path, ref.manifest
