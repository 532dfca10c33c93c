"""Do services keep their promises in every order of events? Whole worlds on one simulated clock, from one seed each.

Run: `uv run python -m tests.battery.world [--worlds 200] [--seed 1] [--power]`. A world is one service or two over one
folder, each with its pool, models, jobs and routes over the fake engine in its real worker, and people: clients of five
dialects that hang up, chats that are stopped, apps, stored responses, jobs and batches. Engines, apps and services are
killed, the disk is full or fails for a while, in some worlds the power fails. Time, delays, the order of threads,
pieces of pipes, kills and faults are drawn from the seed: the same seed is the same world, event for event (`--trace`
prints its end, for comparing). The invariants are those of the battery: a request ends once and with its own answer or
an error with a cause, what was acknowledged is there once, also for the next service, models never hold more memory
than there is, nobody waits for ever, and at the end everything is unloaded and nothing is left. Exits with 1 where one
is broken, with the seeds.

A kill is that of a process: what it had written stays, and what Python still buffered is lost. A failure of the power
ends all processes, and leaves what was synced and some of the rest: `power` says what is simulated of that.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio.to_thread

from app.settings.settings import Settings
from tests.app.service.pool.memory_fake import FakeMemory
from tests.battery.tally import finish
from tests.battery.world.clock import Clock, living_by
from tests.battery.world.disk import Disk
from tests.battery.world.loop import StuckError
from tests.battery.world.people import disk_faults, people
from tests.battery.world.power import Power
from tests.battery.world.processes import Processes
from tests.battery.world.service import Service
from tests.battery.world.threads import KilledError, pause
from tests.battery.world.world import Client, World
from tests.quantizer.gguf_files import tiny_llama

__all__ = ["Ended", "simulate"]

_ABORTED_WITHIN_S = 5.0  # a read-ahead has ended by then as well
_END_AFTER_S = 3_600.0  # without people: all timers of models are over
_KEEP_ALIVE = "20s"
_MOST_CLOSINGS = 100
_PORT = 11500
_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_SHARE_OF_POWER_FAILURES = 0.25
_HASH_SEED = "0"  # sets of strings have one order in every process


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a world: its faults, what happened how often, and a digest of when everything ended."""

    faults: tuple[str, ...]
    happened: Counter[str]
    simulated_s: float
    digest: str


def simulate(seed: int, model_file: Path, folder: Path, *, power_fails: bool = False) -> Ended:
    """Run the world of `seed` to its end, in the empty `folder`; `power_fails` in some worlds, or surely."""
    gc.disable()  # a generator that nobody closed ends when it is collected: not at a moment that differs
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # killed processes end in any way
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            ended = _simulate(seed, model_file, folder, power_fails=power_fails)
            gc.collect()
            gc.freeze()  # what is left stays: to look through it again took a third of each world
            return ended
    finally:
        gc.enable()
        sys.unraisablehook = hook


def _simulate(seed: int, model_file: Path, folder: Path, *, power_fails: bool) -> Ended:
    clock = Clock(seed)
    chance = clock.chance
    names = tuple("abc"[: chance.randrange(1, 4)])
    sizes = {name: chance.choice((4, 10, 10)) for name in names}
    for name in names:
        place = folder / "data" / "models" / "me" / name
        place.mkdir(parents=True)
        shutil.copy(model_file, place / f"{name}.gguf")
    settings = Settings(
        engine="fake",
        data_dir=folder / "data",
        cache_dir=folder / "cache",
        model=names[0],
        keep_alive=_KEEP_ALIVE,
        parallel=chance.choice((1, 2, 4)),
        prefill_ahead=chance.random() < 0.7,
    )
    total_bytes = max(10, chance.choice((10, 14, 20)))
    processes = Processes(
        clock,
        lambda path: sizes[Path(path).stem],
        step_s=chance.choice((0.0, 0.002, 0.02)),
        load_s=chance.choice((0.0, 0.3, 3.0)),
    )
    loop = processes.loop
    clock.sleep = partial(_sleep, clock)
    unhandled: list[str] = []

    def handle(_: object, context: dict[str, Any]) -> None:
        if not isinstance(error := context.get("exception"), KilledError):
            unhandled.append(f"{context['message']}: {error!r}")

    loop.set_exception_handler(handle)
    # apart: worlds whose power does not fail are as they were
    fate = random.Random(f"power {seed}")
    fails_after_s = _power_failures(fate, surely=power_fails)
    world = World(
        clock,
        processes,
        Disk(folder, clock, processes.lives, Power(folder, fate) if fails_after_s else None),
        settings,
        names,
        chance.random() < 0.5,
        chance.choice((0.0, 0.0, 0.4)),
    )
    with (
        living_by(clock),
        world.disk.in_place(),
        patch.object(os, "killpg", processes.kill_group),
        patch.object(anyio.to_thread, "run_sync", _run_in_thread),
    ):
        try:
            loop.run_until_complete(_live(world, FakeMemory(total_bytes, sizes), fails_after_s))
        except (StuckError, RuntimeError) as stuck:  # RuntimeError: a service that never starts stops the loop
            world.fault(str(stuck))
        world.faults += [*unhandled, *world.network.faults, *processes.errors]
        world.faults += [error for life in processes.lives.values() for error in life.errors]
        world.happened["operation of the disk failed"] += world.disk.n_failed
        if processes.most_bytes > total_bytes:
            world.fault(f"models held {processes.most_bytes} of {total_bytes} bytes at once")
        told = json.dumps([world.faults, sorted(world.happened.items()), clock.now_s, chance.random()])
        faults = tuple(world.faults)
        _bury(world)
    return Ended(faults, world.happened, clock.now_s, hashlib.sha256(told.encode()).hexdigest()[:16])


async def _run_in_thread(work: Callable[..., Any], *args: Any, **_options: Any) -> Any:
    """Take the place of anyio's function, which has threads of its own."""
    return await asyncio.get_running_loop().run_in_executor(None, partial(work, *args))


def _sleep(clock: Clock, delay_s: float) -> None:
    """Wait as `time.sleep` does: others run meanwhile, unless it is the loop that waits."""
    if not pause(delay_s):
        clock.now_s += delay_s


def _bury(world: World) -> None:
    """Close what killed processes have left in the memory of this one; nothing that they still do counts."""
    loop = world.processes.loop
    loop.set_exception_handler(lambda _loop, _context: None)
    asyncio.set_event_loop(loop)  # a `finally` may ask for it
    for task in [task for life in world.processes.lives.values() for task in life.unfinished]:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        for _ in range(_MOST_CLOSINGS):
            try:
                task.get_coro().close()
                break
            except BaseException:  # it waits once more in a `finally`
                continue
    loop.close()
    asyncio.set_event_loop(None)


def _power_failures(fate: random.Random, *, surely: bool) -> list[float]:
    """Return the seconds until the power fails, and from then until it does again; mostly none."""
    n_failures = fate.choice((1, 1, 2)) if fate.random() < _SHARE_OF_POWER_FAILURES or surely else 0
    return [fate.choice((0.3, 2.0, 8.0)) * fate.uniform(0.1, 2.0) for _ in range(n_failures)]


async def _lose_power(world: World, after_s: list[float]) -> None:
    for delay_s in after_s:
        await asyncio.sleep(delay_s)
        world.lose_power()
        world.happened["power failed"] += 1


async def _live(world: World, memory: FakeMemory, power_fails_after_s: list[float]) -> None:
    """Run the services with their people, and look what is left when they have gone."""
    chance = world.clock.chance
    n_services = 2 if chance.random() < 0.25 else 1
    ports = range(_PORT, _PORT + n_services)
    world.services += [Service(world, replace(world.settings, port=port), memory) for port in ports]
    for service in world.services:
        await service.listening()
    world.disk.faults = disk_faults(world)
    async with asyncio.TaskGroup() as group:
        for person in [*people(world), *([_lose_power(world, power_fails_after_s)] if power_fails_after_s else [])]:
            group.create_task(person)
    world.disk.faults, world.dies_at_operation = [], 0.0
    for service in world.services:
        service.life.dies_at = None
        if chance.random() < 0.5:  # what is kept is kept for the next one as well
            service.kill()
    for service in world.services:
        await service.listening()
        async with Client(world, service) as client:
            for check in world.checks:
                await check(client)
            for path in ("/v1/files", "/v1/batches"):  # which tidy up
                await client.asked("GET", path)
    await asyncio.sleep(_ABORTED_WITHIN_S)
    for service in world.services:
        await _check_engines(world, service)
    await asyncio.sleep(_END_AFTER_S)
    for service in world.services:
        _check_rest(world, service)
        await service.end()
    await asyncio.sleep(60.0)
    _check_left(world)


def _check_left(world: World) -> None:
    """Check that no task and no process outlives its service, and no file its writer."""
    for path in world.settings.data_dir.rglob(".*.tmp"):
        world.fault(f"left by a process that has ended: {path.relative_to(world.settings.data_dir)}")
    dead = {task for life in world.processes.lives.values() for task in life.unfinished}
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and task not in dead]
    if others:
        world.fault(f"left at the end: {others[0]!r:.300}")
    if alive := [each.command for each in world.processes.running.values() if not each.is_over]:
        world.fault(f"processes are left: {alive}")


async def _check_engines(world: World, service: Service) -> None:
    """Check that nothing is computed a while after everybody has gone."""
    for name, engine in service.models.engines.items():
        metrics = await engine.metrics()
        if metrics is not None and (metrics.occupancy.n_running or metrics.occupancy.n_waiting):
            world.fault(f"the engine of {name} computes for nobody: {metrics.running}")


def _check_rest(world: World, service: Service) -> None:
    """Check that nothing is held when nobody has asked for an hour."""
    for name, engine in service.models.engines.items():
        if engine.n_users or engine.n_running or engine.status.state not in ("unloaded", "failed"):
            has = f"{engine.n_users} users, {engine.n_running} answers, is {engine.status.state}"
            kept = [model.keep_alive.expires_s for model in service.models.opened if model.engine is engine]
            if engine.n_users or engine.n_running or None not in kept:  # "-1" keeps it
                world.fault(f"the engine of {name} still has {has}")
    if not service.jobs.is_idle:
        world.fault("jobs run still")
    if world.network.n_open:
        world.fault(f"{world.network.n_open} requests are still open")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first world")
    parser.add_argument("--stop", action="store_true", help="at the first world with a fault")
    parser.add_argument("--power", action="store_true", help="let the power fail in every world")
    parser.add_argument("--trace", action="store_true", help="print the end of each world")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != _HASH_SEED:
        os.environ["PYTHONHASHSEED"] = _HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.battery.world", *sys.argv[1:]])
    begun_s, happened, failed, simulated_s = time.monotonic(), Counter[str](), 0, 0.0
    n_worlds = 0
    # Ctrl-C prints what was tried
    with suppress(KeyboardInterrupt), tempfile.TemporaryDirectory() as root:
        model_file = tiny_llama(Path(root) / "tiny.gguf", lambda writer: writer.add_chat_template(_TEMPLATE))
        for seed in range(options.seed, options.seed + options.worlds):
            with tempfile.TemporaryDirectory(dir=root) as folder:
                ended = simulate(seed, model_file, Path(folder), power_fails=options.power)
            n_worlds += 1
            happened += ended.happened
            simulated_s += ended.simulated_s
            failed += bool(ended.faults)
            for fault in ended.faults:
                print(f"seed {seed}: {fault}", flush=True)
            if options.trace:
                print(f"seed {seed}: {ended.digest} at {ended.simulated_s:.6f} s")
            if options.stop and failed:
                break
    print(", ".join(f"{what}: {count:,}" for what, count in sorted(happened.items())))
    print(f"{n_worlds:,} worlds of {simulated_s:,.0f} s in {time.monotonic() - begun_s:.0f} s")
    finish(n_worlds, failed, options.seed)
