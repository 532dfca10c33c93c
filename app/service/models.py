"""The models that the service holds: found by name, gated, each with an engine of its own.

Owns which models are loaded and which one answers when a request names none. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.engine.frames import EngineConfig, WhenUnfit
from app.engine.request import Request
from app.library.model_ref import ModelRef
from app.processes import python_module
from app.service.admission import Admission
from app.service.anticipation import Anticipation
from app.service.attachments import NOTHING_ATTACHED, Attachments
from app.service.door import Watcher
from app.service.engine_settings import engine_config, keep_alive_s
from app.service.idle_tuning import IdleTuning
from app.service.keep_alive import KeepAlive
from app.service.memory import MachineMemory, Memory
from app.service.model_file import ModelFile, read_model_file
from app.service.prompt import NO_VARIABLES, Prompt, Renderer, make_prompt
from app.service.served_model import ServedModel
from app.service.shelf import Shelf, as_served
from app.service.supervisor import Supervisor
from app.service.tools.offer import NO_TOOLS, Offer
from app.settings import Settings
from quantizer.errors import RequestError

__all__ = ["ModelManager"]


class ModelManager:
    """Holds one engine per model that was asked for. `command` runs a worker; `renderer` fills chat templates.

    A model is loaded by its first use, and makes others leave where `memory` (of this machine by default) has no room
    for all. While `is_occupied` says that others keep the machine busy nothing is measured.
    """

    def __init__(
        self,
        settings: Settings,
        command: Sequence[str],
        renderer: Renderer,
        memory: Memory | None = None,
        is_occupied: Callable[[], bool] = lambda: False,
    ) -> None:
        """Raises UsageError for settings that make no sense."""
        self._settings = settings
        self._command = tuple(command)
        self._renderer = renderer
        self._models: dict[str, ServedModel] = {}
        self._opening = asyncio.Lock()
        self._is_occupied = is_occupied
        self._shelf = Shelf(settings, lambda: [model.ref for model in self.loaded])
        self._tuning = IdleTuning(self._is_busy)
        self._admission = Admission(memory or MachineMemory(settings), lambda: self.loaded)
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
    def default(self) -> ServedModel:
        """The model that answers requests which name none."""
        return next(iter(self._models.values()))

    @property
    def shelf(self) -> Shelf:
        """Every model that a request may name, with its facts."""
        return self._shelf

    def add(
        self,
        ref: ModelRef,
        file: ModelFile,
        attached: Attachments = NOTHING_ATTACHED,
        when_unfit: WhenUnfit | None = None,
    ) -> ServedModel:
        """Give the model at `ref` an engine, which loads it when it is used. The first one added is the default.

        `when_unfit` None is what the settings say.
        """
        ref = replace(ref, id=self._free_id(as_served(ref).id))
        config = engine_config(self._settings, attached, when_unfit)
        engine = Supervisor(ref.path, config, self._command, admit=self._admission.admit)
        engine.door.watch(self._admission.watcher())
        engine.door.watch(Watcher(work=self._tuning.disturb))
        keep_alive = KeepAlive(engine, self._keep_alive_s)
        adapters = tuple(name for _, name in attached.lora)
        model = self._models[ref.id] = ServedModel(ref, file, engine, Anticipation(engine), keep_alive, adapters)
        if self._settings.idle_tune and self._settings.engine == "llama":
            threads = str(self._settings.threads)
            self._tuning.add(python_module("app.engine.tune_process", str(ref.path), threads, "--idle"))
        return model

    def begin(self, model: ServedModel, when_unfit: WhenUnfit | None = None) -> None:
        """Load `model` though nobody asks it for anything: a person wants it, so no clock lets it go."""
        model.keep_alive.keep(None)
        model.engine.start(when_unfit)

    async def load(self, name: str, when_unfit: WhenUnfit | None = None) -> ServedModel:
        """Begin to load what `name` (a path too) means, without waiting for it. An empty name is the default.

        Raises UnknownModelError, and ModelFileError for a file that the gate does not let through.
        """
        model = self._known(name) or await self._open(await self._shelf.resolve(name), when_unfit)
        self.begin(model, when_unfit)
        return model

    async def reload(self, name: str, change: Callable[[EngineConfig], EngineConfig]) -> ServedModel:
        """Begin to load what `name` means under a changed config, in place of how it is loaded. Raises as `load`."""
        model = self._known(name) or await self._open(await self._shelf.resolve(name))
        model.engine.reload(change)
        return model

    async def named(self, name: str) -> ServedModel:
        """Return the model that a client calls `name`, which its use loads; an empty name is the default.

        Only names are taken, no paths. Raises UnknownModelError that lists what is here.
        """
        return self._known(name) or await self._open(await self.find(name))

    async def find(self, name: str) -> ModelRef:
        """Return what `named` would load. Raises UnknownModelError that lists what is here."""
        known = self._known(name)
        return known.ref if known else await self._shelf.find(name)

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
        if model.engine.is_busy:
            raise RequestError(f"{ref.id} is at work.", "Wait until its answers have ended.")
        del self._models[model.ref.id]
        model.anticipation.give_way()
        model.keep_alive.pause()
        await model.engine.stop()

    async def prompt(
        self,
        model: ServedModel,
        messages: Sequence[dict[str, Any]],
        offer: Offer = NO_TOOLS,
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
        offer: Offer,
        variables: Mapping[str, Any],
    ) -> None:
        """Let `model` compute ahead what follows `said`, which ends with its answer to `request`, where that is set."""

        async def prompt_after(text: str) -> Prompt:
            return await self.prompt(model, [*said, {"role": "user", "content": text}], offer, variables)

        if self._settings.anticipate:
            model.anticipation.begin(request, prompt_after)

    def make_way(self) -> None:
        """End at once what is measured while nothing else goes on."""
        self._tuning.disturb()

    async def warm_up(self) -> None:
        """Start what chat will need, so that the first question does not wait for it."""
        await self._renderer.render("", [])

    async def close(self) -> None:
        """End every engine and the renderer."""
        await self._tuning.close()
        for model in self.loaded:
            model.give_way()
            model.keep_alive.keep(None)
            model.keep_alive.pause()
        await asyncio.gather(*(model.engine.stop() for model in self.loaded))
        await self._renderer.close()

    def _is_busy(self) -> bool:
        return self._is_occupied() or any(model.engine.is_busy for model in self.loaded)

    def _known(self, name: str) -> ServedModel | None:
        return self._models.get(name) if name else self.default

    async def _open(self, ref: ModelRef, when_unfit: WhenUnfit | None = None) -> ServedModel:
        async with self._opening:
            if same := self.serving(ref):
                return same
            file = await asyncio.to_thread(read_model_file, ref.path)
            return self.add(ref, file, when_unfit=when_unfit)

    def _free_id(self, wanted: str) -> str:
        """Return `wanted`, numbered when another file has that id already."""
        names = (wanted, *(f"{wanted}-{number}" for number in range(2, len(self._models) + 3)))
        return next(name for name in names if name not in self._models)
