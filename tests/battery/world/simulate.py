"""Does the service keep its promises in every order of events? Whole worlds on one simulated clock, from one seed each.

Run: `uv run python -m tests.battery.world [--worlds 200] [--seed 1]`. A world is the service with its pool,
models, jobs and routes, over the fake engine in its real worker, and people: clients of five dialects that hang up,
chats that are stopped, jobs that are cancelled, engines that are killed. Time, delays, pieces of pipes and kills are
drawn from the seed: the same seed is the same world, event for event (`--trace` prints its end, for comparing). The
invariants are those of the battery: a request ends once and with its own answer or an error with a cause, no job that
was acknowledged is lost, models never hold more memory than there is, nobody waits for ever, and at the end everything
is unloaded and nothing is left. Exits with 1 where one is broken, with the seeds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Message

from app.engine.chat_template.template_process import TemplateProcess
from app.library.local.model_files import ModelRef
from app.service.application import create_app
from app.service.http.guard import GuardPolicy
from app.service.jobs.manager import JobManager
from app.service.models.manager import ModelManager
from app.service.models.model_file import read_model_file
from app.service.pool.worker_process import WorkerStarter
from app.service.shutdown_policy import ShutdownPolicy
from app.service.starting import worker_command
from app.settings.settings import Settings
from tests.app.service.pool.memory_fake import FakeMemory
from tests.battery.tally import finish
from tests.battery.world.clock import Clock, StuckError, living_by
from tests.battery.world.network import Network
from tests.battery.world.people import World, people
from tests.battery.world.processes import Processes
from tests.quantizer.gguf_files import tiny_llama

__all__ = ["Ended", "simulate"]

_ABORTED_WITHIN_S = 5.0  # a read-ahead has ended by then as well
_END_AFTER_S = 3_600.0  # without people: all timers of models are over
_KEEP_ALIVE = "20s"
_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_HASH_SEED = "0"  # sets of strings have one order in every process


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a world: its faults, what happened how often, and a digest of when everything ended."""

    faults: tuple[str, ...]
    happened: Counter[str]
    simulated_s: float
    digest: str


def simulate(seed: int, model_file: Path, folder: Path) -> Ended:
    """Run the world of `seed` to its end, in the empty `folder`."""
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
    unhandled: list[str] = []
    loop.set_exception_handler(
        lambda _, context: unhandled.append(f"{context['message']}: {context.get('exception')!r}")
    )
    network = Network(clock)
    world = World(clock, processes, network, names)
    os.killpg = processes.kill_group
    gc.collect()
    gc.disable()  # a generator that nobody closed ends when it is collected: not at a moment that differs
    with living_by(clock):
        try:
            loop.run_until_complete(_live(world, settings, FakeMemory(total_bytes, sizes)))
        except StuckError as stuck:
            world.fault(str(stuck))
        finally:
            gc.enable()
            gc.collect()
    world.faults += [*unhandled, *network.faults, *processes.errors]
    if processes.most_bytes > total_bytes:
        world.fault(f"models held {processes.most_bytes} of {total_bytes} bytes at once")
    told = json.dumps([world.faults, sorted(world.happened.items()), clock.now_s, chance.random()])
    if not world.faults:
        loop.close()
    return Ended(tuple(world.faults), world.happened, clock.now_s, hashlib.sha256(told.encode()).hexdigest()[:16])


async def _live(world: World, settings: Settings, memory: FakeMemory) -> None:
    """Run the service with its people, and look what is left when they have gone."""
    async with WorkerStarter(worker_command(settings), None) as start_worker:
        models = ModelManager(settings, start_worker, TemplateProcess(), memory, lambda: jobs.is_computing)
        jobs = JobManager(settings, models.interrupt_tuning)
        path = settings.models_dir / "me" / world.models[0] / f"{world.models[0]}.gguf"
        models.add(ModelRef(world.models[0], path), read_model_file(path)).load()
        app = create_app(models, jobs, ShutdownPolicy(is_owned=False), GuardPolicy())
        world.network.app = app
        async with _running(app):
            async with asyncio.TaskGroup() as group:
                for person in people(world):
                    group.create_task(person)
            await asyncio.sleep(_ABORTED_WITHIN_S)
            for name, engine in models.engines.items():
                metrics = await engine.metrics()
                if metrics is not None and (metrics.occupancy.n_running or metrics.occupancy.n_waiting):
                    world.fault(f"the engine of {name} computes for nobody: {metrics.running}")
            await asyncio.sleep(_END_AFTER_S)
            _check_rest(world, models, jobs)
    # What ends with the loop is not left: it looks a last time.
    await asyncio.sleep(60.0)
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if others:
        world.fault(f"left at the end: {others[0]!r:.300}")
    if alive := [each.command for each in world.processes.running.values() if not each.is_over]:
        world.fault(f"processes are left: {alive}")


@asynccontextmanager
async def _running(app: ASGIApp) -> AsyncIterator[None]:
    """Run the application's lifespan around the context, as a server does."""
    received: asyncio.Queue[Message] = asyncio.Queue()
    sent: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    serving = asyncio.create_task(app(scope, received.get, sent.put))  # type: ignore[arg-type]
    received.put_nowait({"type": "lifespan.startup"})
    await sent.get()
    try:
        yield
    finally:
        received.put_nowait({"type": "lifespan.shutdown"})
        await serving


def _check_rest(world: World, models: ModelManager, jobs: JobManager) -> None:
    """Check that nothing is held when nobody has asked for an hour."""
    for name, engine in models.engines.items():
        if engine.n_users or engine.n_running or engine.status.state not in ("unloaded", "failed"):
            has = f"{engine.n_users} users, {engine.n_running} answers, is {engine.status.state}"
            kept = [model.keep_alive.expires_s for model in models.opened if model.engine is engine]
            if engine.n_users or engine.n_running or None not in kept:  # "-1" keeps it
                world.fault(f"the engine of {name} still has {has}")
    if not jobs.is_idle:
        world.fault("jobs run still")
    if world.network.n_open:
        world.fault(f"{world.network.n_open} requests are still open")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first world")
    parser.add_argument("--stop", action="store_true", help="at the first world with a fault")
    parser.add_argument("--trace", action="store_true", help="print the end of each world")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != _HASH_SEED:
        os.environ["PYTHONHASHSEED"] = _HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.battery.world", *sys.argv[1:]])
    begun_s, happened, failed, simulated_s = time.monotonic(), Counter[str](), 0, 0.0
    with tempfile.TemporaryDirectory() as root:
        model_file = tiny_llama(Path(root) / "tiny.gguf", lambda writer: writer.add_chat_template(_TEMPLATE))
        for seed in range(options.seed, options.seed + options.worlds):
            with tempfile.TemporaryDirectory(dir=root) as folder:
                ended = simulate(seed, model_file, Path(folder))
            happened += ended.happened
            simulated_s += ended.simulated_s
            failed += bool(ended.faults)
            for fault in ended.faults:
                print(f"seed {seed}: {fault}")
            if options.trace:
                print(f"seed {seed}: {ended.digest} at {ended.simulated_s:.6f} s")
            if options.stop and failed:
                break
    print(", ".join(f"{what}: {count:,}" for what, count in sorted(happened.items())))
    print(f"{options.worlds:,} worlds of {simulated_s:,.0f} s in {time.monotonic() - begun_s:.0f} s")
    finish(options.worlds, failed, options.seed)
