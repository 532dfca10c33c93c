"""A service of a simulated world, which may be killed at any moment; the next one then begins in the same folder."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

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
from quantizer.system.errors import UserError
from tests.app.service.pool.memory_fake import FakeMemory
from tests.battery.world.lives import Life

if TYPE_CHECKING:
    from tests.battery.world.world import World

__all__ = ["Service"]

_MOST_LIVES = 100


class Service:
    """The service at `port`. `life` is the process that runs or ran last, `models` and `jobs` are its own."""

    models: ModelManager
    jobs: JobManager

    def __init__(self, world: World, settings: Settings, memory: FakeMemory) -> None:
        self.life: Life
        self.port = settings.port
        self.is_listening = False
        self._n_begun = 0
        self._world, self._settings, self._memory = world, settings, memory
        self._begin()

    async def listening(self) -> None:
        """Wait until requests are accepted."""
        while not self.is_listening:  # noqa: ASYNC110 - it may begin several times until then
            await asyncio.sleep(0.01)

    def kill(self) -> None:
        self.life.die()

    async def end(self) -> None:
        """End as by a signal that asks for it: all that runs is ended in order."""
        await self.listening()
        self._is_ending.set()
        await asyncio.wait({self._serving})

    def _begin(self) -> None:
        world = self._world
        self._n_begun += 1
        if self._n_begun > _MOST_LIVES:
            world.processes.errors.append(f"a service began {_MOST_LIVES} times")
            world.processes.loop.stop()
            return
        self.life = world.processes.new_life(f"the service at {self.port}")
        if world.clock.chance.random() < world.dies_at_operation:
            self.life.dies_at = world.clock.chance.randrange(1, world.clock.chance.choice((30, 300)))
        self.life.on_end.append(self._on_end)
        self._is_ending = asyncio.Event()
        self._serving = self.life.task(self._serve(self.life))

    def _on_end(self) -> None:
        self.is_listening = False
        if not self._is_ending.is_set():
            self._world.happened["service died"] += 1
            self._world.processes.loop.call_later(self._world.clock.delay_s(1.0), self._begin)

    async def _serve(self, life: Life) -> None:
        try:
            await self._run(life)
        except UserError as error:
            if not self._world.disk.n_failed:
                self._world.fault(f"the service does not start: {error}")
        except Exception as error:
            self._world.fault(f"the service ended by {error!r}\n{traceback.format_exc(limit=-8)}")
        life.end()

    async def _run(self, life: Life) -> None:
        settings, name = self._settings, self._world.models[0]
        async with WorkerStarter(worker_command(settings), None) as start_worker:
            self.models = models = ModelManager(
                settings, start_worker, TemplateProcess(), self._memory, lambda: jobs.is_computing
            )
            self.jobs = jobs = JobManager(settings, models.interrupt_tuning)
            path = settings.models_dir / "me" / name / f"{name}.gguf"
            models.add(ModelRef(name, path), read_model_file(path)).load()
            app = create_app(models, jobs, ShutdownPolicy(is_owned=False), GuardPolicy())
            async with _running(app):
                self._world.network.listen(self.port, app, life)
                self.is_listening = True
                await self._is_ending.wait()
                self._world.network.stop(self.port)


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
