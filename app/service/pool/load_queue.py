"""One model loads after another, in the order of the requests, each once there is memory for it.

Others are unloaded where needed: idle ones first, then busy ones, which leave after their last answer; of each the
least recently used first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from app.engine.messages import EngineConfig
from app.service.pool.engine_client import EngineClient
from app.service.pool.memory import LoadedModel, Memory, ModelDemand, machine_without
from offload.devices.machine import Machine
from quantizer.system.errors import UserError

_AS_GOOD = 0.97  # of the rate when alone: the same share below which a plan is called partial


class LoadQueue:
    """Admits engines to `memory`, which they share with the other `engines`.

    While an engine waits for models that are at work, new requests to those wait behind it. So two models that do not
    fit together take turns, however many requests there are.
    """

    def __init__(self, memory: Memory, engines: Callable[[], Iterable[EngineClient]]) -> None:
        self._memory = memory
        self._engines = engines
        self._turn = asyncio.Lock()
        self._previous = asyncio.Event()  # the previous engine has loaded, or failed to
        self._previous.set()
        self._became_idle = asyncio.Event()

    def on_idle(self) -> None:
        self._became_idle.set()

    async def admit(self, engine: EngineClient) -> None:
        """Wait until `engine` may load. Raises the planner's refusal if it would not run even alone."""
        async with self._turn:
            await self._previous.wait()  # what it takes is seen only when it is loaded
            while await self._make_room(engine):
                pass
            self._previous = engine.settled

    async def fits(self, engine: EngineClient, config: EngineConfig) -> bool:
        """Return whether `engine` would run with `config`, if it were unloaded first, and other idle ones with it."""
        engines = [other for other in self._engines() if other.holds_memory]
        loaded = [self._loaded(other) for other in engines]
        leaving = [model for model, other in zip(loaded, engines, strict=True) if other is engine or not other.is_busy]
        return await asyncio.to_thread(self._fits, engine, config, loaded, leaving)

    def _fits(
        self, engine: EngineClient, config: EngineConfig, loaded: list[LoadedModel], leaving: list[LoadedModel]
    ) -> bool:
        try:
            machine = machine_without(self._memory.machine(loaded), leaving)
            self._memory.check(engine.model_path, config, machine)
            return self._memory.demand(engine.model_path, config)(machine) > 0
        except UserError:  # it would be refused
            return False

    async def _make_room(self, engine: EngineClient) -> bool:
        """Evict other models as planned; return whether there were any: then the plan has to be made again."""
        others = [other for other in self._engines() if other is not engine]
        for other in others:
            await other.ended()
        others = [other for other in others if other.holds_memory]
        if not others and not self._memory.is_limited:
            return False  # the worker plans for itself
        loaded = [self._loaded(other) for other in others]
        leaving = await asyncio.to_thread(self._leaving, engine, loaded)
        of_model = {id(model): other for model, other in zip(loaded, others, strict=True)}
        evicted = [of_model[id(model)] for model in leaving]
        with ExitStack() as closed:
            for other in evicted:  # block new uses, wait for the running ones, and unload in order
                closed.enter_context(other.closed())
            while any(other.holds_memory and other.is_busy for other in evicted):
                self._became_idle.clear()
                await self._became_idle.wait()
            for other in evicted:
                other.unload()
                await other.ended()
        return bool(leaving)

    def _loaded(self, engine: EngineClient) -> LoadedModel:
        return LoadedModel(
            path=engine.model_path,
            worker_pid=engine.worker_pid,
            held_bytes=self._memory.held_bytes(engine.model_path, engine.status.plan),
            last_used_s=engine.last_used_s,
            is_busy=engine.is_busy,
        )

    def _leaving(self, engine: EngineClient, loaded: list[LoadedModel]) -> list[LoadedModel]:
        machine = self._memory.machine(loaded)
        leaving = plan_eviction(self._memory.demand(engine.model_path, engine.config), loaded, machine)
        if leaving is None:
            self._memory.check(engine.model_path, engine.config, machine_without(machine, loaded))
            return _by_use(loaded)  # the user has agreed to load it anyway: it gets all memory there is
        return leaving


def plan_eviction(demand: ModelDemand, loaded: Sequence[LoadedModel], machine: Machine) -> list[LoadedModel] | None:
    """Return which of `loaded` to unload for `demand`, on a `machine` as free as it is with all of them loaded.

    As many are unloaded as it takes to run as well as alone, idle ones first; None where it would not run even alone.
    """
    alone = demand(machine_without(machine, loaded))
    if alone <= 0:
        return None

    def suffices(leaving: list[LoadedModel]) -> bool:
        return demand(machine_without(machine, leaving)) >= _AS_GOOD * alone

    leaving: list[LoadedModel] = []
    candidates = _by_use(loaded)
    while not suffices(leaving) and candidates:
        leaving.append(candidates.pop(0))
    for model in reversed(leaving):  # the most recently used is the first to be spared
        others = [other for other in leaving if other is not model]
        if suffices(others):
            leaving = others
    return leaving


def _by_use(models: Iterable[LoadedModel]) -> list[LoadedModel]:
    """Return idle models before busy ones, the least recently used first."""
    return sorted(models, key=lambda model: (model.is_busy, model.last_used_s))
