"""A simulated world: its services, its disk, and what came of them. What a person finds wrong is a fault of the world;
an error with a cause is none."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import httpx

from app.settings.settings import Settings
from tests.battery.world.clock import Clock
from tests.battery.world.disk import Disk
from tests.battery.world.network import Network
from tests.battery.world.processes import Processes
from tests.battery.world.service import Service

__all__ = ["PATIENCE_S", "Client", "World"]

PATIENCE_S = 600.0  # of the simulated clock; whoever waits longer starves
_BUG = "has a bug"
_LETTERS = 'abcdefghijklmnop  .,\n"\\ß€🙂'
_AGAIN_AFTER_S = 0.3
_Result = TypeVar("_Result")


@dataclass(slots=True)
class World:
    """Services over one folder, the people who use them and what came of it: faults, and how often each thing happened.
    `kills_services` is whether anybody does, `dies_at_operation` how often one ends in what it does to the disk."""

    clock: Clock
    processes: Processes
    disk: Disk
    settings: Settings
    models: tuple[str, ...]
    kills_services: bool
    dies_at_operation: float
    services: list[Service] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    checks: list[Callable[[Client], Awaitable[None]]] = field(default_factory=list)
    n_texts: int = 0
    n_power_failures: int = 0

    @property
    def network(self) -> Network:
        return self.processes.network

    def lose_power(self) -> None:
        """End all processes at once, and leave on the disk what a failure of the power does."""
        self.n_power_failures += 1
        for life in list(self.processes.lives.values()):
            life.die()
        for process in list(self.processes.running.values()):
            process.die(-signal.SIGKILL)
        assert self.disk.power is not None
        self.happened["not on the disk when the power failed"] += self.disk.power.lose()

    def fault(self, what: str) -> None:
        self.faults.append(f"{self.clock.now_s:9.4f} s: {self._without_folder(what)}")

    def _without_folder(self, text: str) -> str:
        """Return a text as it is in every run: the folder of a world has another name each time."""
        return text.replace(str(self.settings.data_dir.parent), "")

    def text(self) -> str:
        chance = self.clock.chance
        return "".join(chance.choices(_LETTERS, k=chance.choice((1, 8, 40, 150)))).strip() or "x"

    def new_text(self) -> str:
        """Return a text that no other begins with or equals."""
        self.n_texts += 1
        return f"{self.n_texts}: {self.text()}"

    def client(self) -> Client:
        return Client(self, self.clock.chance.choice(self.services))

    def check_error(self, what: str, status: int, text: str, *, stores: bool = False) -> None:
        """Note an error, and whether it is one that must not be; that of a full disk may be of what `stores`."""
        self.happened[f"error {status} {_cause(self._without_folder(text))}"] += 1
        is_of_disk = stores and self.disk.n_failed and ("cannot be" in text or "disk" in text)
        if _BUG in text or status not in (400, 404, 409, 429, 500, 503):
            self.fault(f"{what}: {status} {text[:300]}")
        elif status == 500 and not is_of_disk and not any(words in text for words in _EXPECTED):
            self.fault(f"{what}: an error without its cause: {text[:300]}")


_EXPECTED = ("died", "engine", "unloaded", "reload")


def _cause(text: str) -> str:
    """Return the first words of the message in an error of any dialect."""
    found = re.search(r'"(?:message|error)": ?"([^"]{1,48})', text)
    return found.group(1) if found else text[:48]


class Client(httpx.AsyncClient):
    """A program that uses one of the services."""

    def __init__(self, world: World, service: Service) -> None:
        super().__init__(transport=world.network, base_url=f"http://127.0.0.1:{service.port}", timeout=None)
        self.service = service
        self._world = world

    @property
    def url(self) -> str:
        return str(self.base_url)

    async def answered(self, ask: Callable[[], Awaitable[_Result]], *, repeats: bool = True) -> _Result:
        """Return what `ask` does; if it `repeats`, asked again where the service ended or is not there yet."""
        world, service = self._world, self.service
        while True:
            life, was_there = service.life, service.is_listening
            try:
                return await ask()
            except httpx.TransportError as error:
                if was_there and not life.is_over:
                    world.fault(f"the connection is closed by a service that lives: {error!r}")
                world.happened["connection closed"] += 1
                if not repeats:
                    raise
                await asyncio.sleep(world.clock.delay_s(_AGAIN_AFTER_S) + 0.01)

    async def asked(self, method: str, path: str, body: object = None, **options: object) -> httpx.Response | None:
        """Return the reply to a request, None where there is none in time."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.answered(lambda: self.request(method, path, json=body, **options))  # type: ignore[arg-type]
        except TimeoutError:
            self._world.fault(f"{method} {path}: no end after {PATIENCE_S:g} s")
            return None
