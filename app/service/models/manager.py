"""The models that the service holds: found by name, gated, each with an engine, which names of one file share.

Owns which models are known and which one answers when a request names none. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.engine.protocol.messages import EngineConfig, UnfitPolicy
from app.engine.request import Request
from app.library.local.model_files import ModelRef, identity_of
from app.service.generation.prompt import NO_VARIABLES, Prompt, TemplateRenderer, make_prompt
from app.service.models.attachments import NOTHING_ATTACHED, Attachments
from app.service.models.model_catalog import ModelCatalog, with_served_id
from app.service.models.model_file import ModelFile, read_model_file
from app.service.models.served_model import ServedModel
from app.service.pool.engine_client import EngineClient
from app.service.pool.engine_pool import EnginePool
from app.service.pool.engine_settings import keep_alive_s
from app.service.pool.idle_tuning import IdleTuning
from app.service.pool.memory import MachineMemory, Memory
from app.service.tools.tool import NO_TOOLS, ToolOptions
from app.settings.settings import Settings
from quantizer.errors import RequestError

__all__ = ["ModelManager"]


class ModelManager:
    """Holds one engine per file that was asked for. `command` runs a worker; `renderer` fills chat templates.

    A model is loaded by its first use, and makes others leave where `memory` (of this machine by default) has no room
    for all. While `is_occupied` says that others keep the machine busy nothing is measured.
    """

    def __init__(
        self,
        settings: Settings,
        command: Sequence[str],
        renderer: TemplateRenderer,
        memory: Memory | None = None,
        is_occupied: Callable[[], bool] = lambda: False,
    ) -> None:
        """Raises UsageError for settings that make no sense."""
        self._settings = settings
        self._renderer = renderer
        self._models: dict[str, ServedModel] = {}
        self._opening = asyncio.Lock()
        self._is_occupied = is_occupied
        self._catalog = ModelCatalog(settings, lambda: [model.ref for model in self.loaded])
        self._tuning = IdleTuning(self._is_busy)
        self._runners = EnginePool(settings, command, memory or MachineMemory(settings), self._tuning)
        self._keep_alive_s = keep_alive_s(settings)

    @property
    def settings(self) -> Settings:
        """What the service was started with."""
        return self._settings

    @property
    def loaded(self) -> tuple[ServedModel, ...]:
        """The models that have an engine, the default first; those that were unloaded again are among them."""
        return tuple(self._models.values())

    @property
    def engines(self) -> dict[str, EngineClient]:
        """Each engine once, under the first of its names."""
        first = {model.runner: model for model in reversed(self.loaded)}
        return {model.ref.id: model.engine for model in reversed(first.values())}

    def sharing(self, model: ServedModel) -> tuple[ServedModel, ...]:
        """Return the other models that have the engine of `model`."""
        return tuple(other for other in self.loaded if other.runner is model.runner and other.ref != model.ref)

    @property
    def default(self) -> ServedModel:
        """The model that answers requests which name none."""
        return next(iter(self._models.values()))

    @property
    def catalog(self) -> ModelCatalog:
        """Every model that a request may name, with its facts."""
        return self._catalog

    def add(
        self,
        ref: ModelRef,
        file: ModelFile,
        attached: Attachments = NOTHING_ATTACHED,
        when_unfit: UnfitPolicy | None = None,
    ) -> ServedModel:
        """Give the model at `ref` an engine, which loads it when it is used. The first one added is the default.

        `when_unfit` None is what the settings say.
        """
        ref = replace(ref, id=self._free_id(with_served_id(ref).id))
        runner = self._runners.of(ref.path, file, attached, when_unfit)
        hold = runner.take_in(ref.path, self._keep_alive_s)
        adapters = tuple(name for _, name in attached.lora)
        model = self._models[ref.id] = ServedModel(ref, file, runner, hold, adapters)
        return model

    def begin(self, model: ServedModel, when_unfit: UnfitPolicy | None = None) -> None:
        """Load `model` though nobody asks it for anything: a person wants it, so no clock lets it go."""
        model.begin(when_unfit)

    async def load(self, name: str, when_unfit: UnfitPolicy | None = None) -> ServedModel:
        """Begin to load what `name` (a path too) means, without waiting for it. An empty name is the default.

        Raises UnknownModelError, and ModelFileError for a file that the gate does not let through.
        """
        model = await self._known_still(name) or await self._open(await self._catalog.resolve(name), when_unfit)
        self.begin(model, when_unfit)
        return model

    async def reload(self, name: str, change: Callable[[EngineConfig], EngineConfig]) -> ServedModel:
        """Begin to load what `name` means under a changed config, in place of how it is loaded.

        Raises as `load`, and RequestError where that would end what another name of the file answers.
        """
        model = await self._known_still(name) or await self._open(await self._catalog.resolve(name))
        if others := [other.ref.id for other in self.sharing(model) if other.keep_alive.is_used]:
            cause = f"{', '.join(others)} is at work, by the same engine as {model.ref.id}."
            raise RequestError(cause, "Stop its answers, or wait for them.")
        model.reload(change)
        return model

    async def named(self, name: str) -> ServedModel:
        """Return the model that a client calls `name`, which its use loads; an empty name is the default.

        Only names are taken, no paths. Raises UnknownModelError that lists what is here.
        """
        return await self._known_still(name) or await self._open(await self.find(name))

    async def find(self, name: str) -> ModelRef:
        """Return what `named` would load. Raises UnknownModelError that lists what is here."""
        known = self._known(name)
        return known.ref if known else await self._catalog.find(name)

    def serving(self, ref: ModelRef) -> ServedModel | None:
        """Return the model of `ref` with its engine, None where it has none."""
        return next((model for model in self.loaded if model.ref.path == ref.path), None)

    async def release(self, ref: ModelRef) -> None:
        """Let go of the model of `ref` for good, as its file goes. Raises RequestError for one that is needed."""
        model = self.serving(ref)
        if model is None:
            return
        if model is self.default:
            raise RequestError(f"{ref.id} is the model that this service was started with.", "Start it with another.")
        if model.is_busy:
            raise RequestError(f"{ref.id} is at work.", "Wait until its answers have ended.")
        await self._forget(model)

    async def prompt(
        self,
        model: ServedModel,
        messages: Sequence[dict[str, Any]],
        offer: ToolOptions = NO_TOOLS,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> Prompt:
        """Return `messages`, after those of its recipe, in the form that `model` was trained on.

        Raises RequestError when it has none.
        """
        if not model.file.chat_template:
            raise RequestError(f"{model.ref.id} has no chat template.", "Use /v1/completions with it.")
        return await make_prompt(self._renderer, model.file, model.file.recipe.begin(messages), offer, variables)

    async def fill(self, template: str, messages: Sequence[dict[str, Any]]) -> str:
        """Return `template`, whatever model it is for, filled with `messages`. Raises RequestError where it cannot."""
        return await self._renderer.render(template, messages, bos_token="", eos_token="", tools=None)

    def anticipate(
        self,
        model: ServedModel,
        request: Request,
        said: Sequence[dict[str, Any]],
        offer: ToolOptions,
        variables: Mapping[str, Any],
    ) -> None:
        """Let `model` compute ahead what follows `said`, which ends with its answer to `request`, where that is set."""

        async def prompt_after(text: str) -> Prompt:
            return await self.prompt(model, [*said, {"role": "user", "content": text}], offer, variables)

        if self._settings.anticipate:
            model.runner.prefill_ahead.begin(request, prompt_after)

    def interrupt_tuning(self) -> None:
        """End at once what is measured while nothing else goes on."""
        self._tuning.interrupt()

    async def warm_up(self) -> None:
        """Start what chat will need, so that the first question does not wait for it."""
        await self._renderer.render("", [])

    async def close(self) -> None:
        """End every engine and the renderer."""
        await self._tuning.close()
        await self._runners.close()
        await self._renderer.close()

    def _is_busy(self) -> bool:
        return self._is_occupied() or self._runners.are_busy

    def _known(self, name: str) -> ServedModel | None:
        return self._models.get(name) if name else self.default

    async def _known_still(self, name: str) -> ServedModel | None:
        """Return the model known as `name`, unless its file has gone meanwhile, or another one has come to its place.

        While it is loaded nobody looks; and what the service was started with it keeps.
        """
        model = self._known(name)
        if model is None or model is self.default or model.keep_alive.is_holding:
            return model
        if await asyncio.to_thread(identity_of, model.ref.path) == model.file.identity:
            return model
        if self._models.get(model.ref.id) is model and not model.is_busy:
            await self._forget(model)
        return None

    async def _forget(self, model: ServedModel) -> None:
        del self._models[model.ref.id]
        await self._runners.leave(model.runner, model.ref.path)

    async def _open(self, ref: ModelRef, when_unfit: UnfitPolicy | None = None) -> ServedModel:
        async with self._opening:
            if same := self.serving(ref):
                return same
            file = await asyncio.to_thread(read_model_file, ref.path)
            return self.add(ref, file, when_unfit=when_unfit)

    def _free_id(self, wanted: str) -> str:
        """Return `wanted`, numbered when another file has that id already."""
        names = (wanted, *(f"{wanted}-{number}" for number in range(2, len(self._models) + 3)))
        return next(name for name in names if name not in self._models)
