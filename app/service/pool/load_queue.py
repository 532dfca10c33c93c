"""Whose turn it is to load: one model after another, in the order they were asked for, each once there is room.

Owns the turns. Which models go is decided in `room`, what they hold is told by `memory`. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Protocol

from app.service.pool.door import Watcher
from app.service.pool.engine_life import EngineLife
from app.service.pool.eviction import EvictionPlan, Resident, plan_eviction, without
from app.service.pool.memory import Holder, Memory

__all__ = ["LoadQueue", "Lodger"]


class Lodger(Protocol):
    """A model of the service, in memory or not."""

    @property
    def engine(self) -> EngineLife: ...

    def cancel_background(self) -> None:
        """End what nobody has asked for."""


class LoadQueue:
    """Admits engines to `memory`, in which `lodgers` are: those used least make room, none before it is at rest.

    While an engine waits for models that are at work, whoever asks those for something new waits behind it. So two
    models that do not fit together take turns, however many ask for them.
    """

    def __init__(self, memory: Memory, lodgers: Callable[[], Iterable[Lodger]]) -> None:
        self._memory = memory
        self._lodgers = lodgers
        self._turn = asyncio.Lock()
        self._before = asyncio.Event()
        self._before.set()
        self._has_rested = asyncio.Event()

    def watcher(self) -> Watcher:
        """Return what tells of an engine that may be unloaded from now on."""
        return Watcher(rest=self._has_rested.set)

    async def admit(self, engine: EngineLife) -> None:
        """Wait until `engine` may load. Raises the planner's refusal where it would not run even if it were alone."""
        async with self._turn:
            await self._before.wait()  # what the one before takes is seen only when it is loaded
            while await self._make_room(engine):
                pass
            self._before = engine.settled

    async def _make_room(self, engine: EngineLife) -> bool:
        """Unload who has to go, and return whether anybody had to: then it is to be seen what that has freed."""
        others = {str(number): lodger for number, lodger in enumerate(self._lodgers()) if lodger.engine is not engine}
        for other in others.values():
            await other.engine.ended()
        loaded = {name: other for name, other in others.items() if other.engine.holds_memory}
        if not loaded and not self._memory.is_limited:
            return False  # the worker plans for itself
        holders = tuple(self._holder(name, other.engine) for name, other in loaded.items())
        room = await asyncio.to_thread(self._plan, engine, holders)
        leaving = [loaded[name] for name in (*room.unload, *room.wait_for)]
        await self._unload(leaving)
        return bool(leaving)

    async def _unload(self, leaving: list[Lodger]) -> None:
        """Let nothing new begin in them, wait for what has begun, and unload them in order."""
        with ExitStack() as reopening:
            for lodger in leaving:
                lodger.engine.door.close()
                reopening.callback(lodger.engine.door.reopen)
                lodger.cancel_background()
            while any(lodger.engine.holds_memory and lodger.engine.is_busy for lodger in leaving):
                self._has_rested.clear()
                await self._has_rested.wait()
            for lodger in leaving:
                lodger.engine.unload()
                await lodger.engine.ended()

    def _holder(self, name: str, engine: EngineLife) -> Holder:
        plan = engine.status.plan
        resident = Resident(
            name=name,
            held_bytes=self._memory.held_bytes(engine.model_path, plan),
            last_used_s=engine.door.last_used_s,
            is_busy=engine.is_busy,
        )
        return Holder(resident, engine.worker_pid)

    def _plan(self, engine: EngineLife, holders: tuple[Holder, ...]) -> EvictionPlan:
        machine = self._memory.machine(holders)
        residents = [holder.resident for holder in holders]
        room = plan_eviction(self._memory.demand(engine.model_path, engine.config), residents, machine)
        if room.is_hopeless:
            self._memory.check(engine.model_path, engine.config, without(machine, residents))
            return EvictionPlan(  # somebody has agreed to load it all the same: it gets all there is
                unload=tuple(resident.name for resident in residents if not resident.is_busy),
                wait_for=tuple(resident.name for resident in residents if resident.is_busy),
            )
        return room
