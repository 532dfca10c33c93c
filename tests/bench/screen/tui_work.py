"""How late the terminal app's event loop is at worst while the machine works for it: a model is loaded, a long prompt
computed, an answer comes, a model is fetched, a model is quantized.

    uv run python tests/bench/screen/tui_work.py [MODEL.gguf]

The real service and engine on a model of 0.6 B random weights, or MODEL; the app without a terminal at 120×40, a clock
in its loop. Every 50 ms a person types, moves or looks elsewhere, so that there is something to draw. The hub is a
process of its own. Late by more than 200 ms is a gap that is seen: ends with 1 then.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from textual.events import Paste
from textual.pilot import Pilot

from app.chat.repository import SqliteChatRepository
from app.client.service_client import ServiceClient
from app.connection import ServiceConnection, local_service
from app.settings.settings import Settings
from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.quantize import execute
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.bench.models.make_model import plan_random_model
from tui.app import LocalllmApp

LIMIT_MS = 200.0
_TICK_S = 0.005
_PATIENCE_S = 120.0
_ANSWER_S = 8.0
_PROMPT = "memory bandwidth decides how fast an answer comes, " * 160


@dataclass
class Clock:
    """How late the loop was at worst, by what went on."""

    worst_ms: dict[str, float] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    doing: str = ""

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            due_s = time.perf_counter() + _TICK_S
            await asyncio.sleep(_TICK_S)
            if self.doing:
                late_ms = 1000 * (time.perf_counter() - due_s)
                self.worst_ms[self.doing] = max(self.worst_ms.get(self.doing, 0.0), late_ms)

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Note what is late in this time."""
        self.doing, began_s = what, time.perf_counter()
        yield
        self.took_s[what], self.doing = time.perf_counter() - began_s, ""


@asynccontextmanager
async def sitting(
    model: Path, folder: Path, clock: Clock
) -> AsyncIterator[tuple[LocalllmApp, Pilot[None], ServiceConnection]]:
    """Have the app with its service and the clock in one loop."""
    settings = Settings(port=0, model=str(model), data_dir=folder / "data", cache_dir=folder / "cache")
    backend = local_service(settings)
    async with (
        SqliteChatRepository(settings.data_dir) as repository,
        ServiceConnection(backend, settings.model) as connection,
    ):
        ticking = asyncio.create_task(clock.run())
        app = LocalllmApp(connection, repository, settings=settings)
        async with app.run_test(size=(120, 40)) as pilot:
            yield app, pilot, connection
        ticking.cancel()


async def until(pilot: Pilot[None], holds: Callable[[], bool], keys: tuple[str, ...] = ("a", "backspace")) -> None:
    """Press keys in turn until `holds`."""
    deadline_s = time.perf_counter() + _PATIENCE_S
    n_pressed = 0
    while not holds():
        if time.perf_counter() > deadline_s:
            raise SystemExit(f"What was waited for never came:\n{text_of(pilot.app)}")
        await pilot.press(keys[n_pressed % len(keys)])
        n_pressed += 1
        await asyncio.sleep(0.05)


async def chat(app: LocalllmApp, pilot: Pilot[None], clock: Clock) -> None:
    """Load, send a long prompt, look around while the answer comes, stop it."""
    with clock.during("load"):
        await until(pilot, lambda: "ready" in text_of(app))
    await pilot.press("f1", "escape")
    app.post_message(Paste(_PROMPT))
    await until(pilot, lambda: "pasted 1" in text_of(app))
    await pilot.press("w", "h", "y")
    with clock.during("prefill"):
        await pilot.press("enter")
        await until(pilot, lambda: "answering" in text_of(app))
    with clock.during("answer"):
        ends_s = time.perf_counter() + _ANSWER_S
        await until(pilot, lambda: time.perf_counter() > ends_s, ("pageup", "a", "pagedown", "b"))
    await pilot.press("escape")


async def work(app: LocalllmApp, pilot: Pilot[None], clock: Clock, service: ServiceClient, model: Path) -> None:
    """Fetch a model and quantize one, each watched on the screen of jobs and from the chat."""
    await pilot.press("f8")
    jobs = {
        "download": ("pull", {"reference": "org/large"}),
        "quantize": ("quantize", {"source": str(model), "file_type": "Q4_K_M"}),
    }
    for name, (kind, arguments) in jobs.items():
        with clock.during(name):
            job = await service.start_job(kind, arguments)
            ended = asyncio.create_task(_end_of(service, job.id))
            await until(pilot, ended.done, ("down", "up", "f5", "f8"))
        if ended.result() != "done":
            raise SystemExit(f"{name}: {await service.job_log(job.id)}")


async def _end_of(service: ServiceClient, job_id: str) -> str:
    return [seen async for seen in service.watch_job(job_id)][-1].state


def text_of(app: LocalllmApp) -> str:
    """Return what is on the screen."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


@contextmanager
def hub(model: Path) -> Iterator[str]:
    """Have a hub with `model` as org/large in a process of its own; its address."""
    command = [sys.executable, __file__, "--hub", str(model)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()
        process.stdin.close()


def be_hub(model: Path) -> None:
    """Serve until nobody holds our standard input any more."""
    with HubServer(HubRepo.of("org/large", {"large-Q8_0.gguf": model})) as server:
        print(server.url, flush=True)
        sys.stdin.read()


async def measure(model: Path, folder: Path) -> Clock:
    """Return what was late in all of it."""
    clock = Clock()
    with hub(model) as url:
        os.environ |= {"HF_ENDPOINT": url, "HF_HOME": str(folder / "hf"), "HF_TOKEN": ""}
        async with sitting(model, folder, clock) as (app, pilot, connection):
            await chat(app, pilot, clock)
            await work(app, pilot, clock, await connection.service(), model)
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a Q8_0 that can be quantized again")
    parser.add_argument("--hub", type=Path, help="be the hub (used by itself)")
    options = parser.parse_args()
    if options.hub:
        be_hub(options.hub)
        return
    with TemporaryDirectory() as folder:
        model = options.model or Path(folder) / "random-Q8_0.gguf"
        if not options.model:
            execute(plan_random_model("qwen3-0.6b", file_type_named("Q8_0"), model), 2, False, lambda _event: None)
        clock = asyncio.run(measure(model.resolve(), Path(folder)))
    for what, worst_ms in clock.worst_ms.items():
        print(f"{what:<10} {clock.took_s[what]:7.1f} s   late at worst {worst_ms:6.0f} ms (limit {LIMIT_MS:.0f})")
    sys.exit(any(worst_ms > LIMIT_MS for worst_ms in clock.worst_ms.values()))


if __name__ == "__main__":
    main()
