"""No client holds all places, and clients take turns."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.service.fair_places import FairPlaces


class Work:
    """Pieces of work of clients in `places`; each ends when it is told to."""

    def __init__(self, n_places: int) -> None:
        self.places = FairPlaces(n_places)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, *names: str) -> None:
        """Start pieces such as a1, the first of client a."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._do(name))
            await self._settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self._settle()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await self._settle()

    async def _do(self, name: str) -> None:
        async with self.places.place_of(name[0]):
            self.begun.append(name)
            await self._ends[name].wait()

    async def _settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_one_client_holds_all_places_but_one() -> None:
    work = Work(3)
    await work.start("a1", "a2", "a3", "b1")
    assert work.begun == ["a1", "a2", "b1"]
    await work.end("b1")
    assert work.begun == ["a1", "a2", "b1"]
    await work.end("a1")
    assert work.begun == ["a1", "a2", "b1", "a3"]


async def test_clients_take_turns_however_much_one_has_waiting() -> None:
    work = Work(2)
    await work.start("a1", "b1", "a2", "a3", "a4", "b2", "c1")
    assert work.begun == ["a1", "b1"]
    await work.end("a1", "b1", "c1", "a2", "b2")
    assert set(work.begun[:5]) == {"a1", "b1", "a2", "b2", "c1"}
    assert work.begun.index("c1") < work.begun.index("a3")


async def test_who_leaves_while_waiting_or_working_gives_its_place_back() -> None:
    work = Work(2)
    await work.start("a1", "b1", "a2", "c1")
    await work.cancel("a2")
    await work.cancel("a1")
    assert work.begun == ["a1", "b1", "c1"]
    await work.cancel("b1")
    await work.start("d1")
    assert work.begun[-1] == "d1"


async def test_a_place_that_is_granted_to_who_leaves_goes_to_the_next() -> None:
    places = FairPlaces(2)
    async with places.place_of("a"):
        async with places.place_of("b"):
            waiting = [asyncio.create_task(_held(places, name)) for name in ("c", "d")]
            await asyncio.sleep(0)
        waiting[0].cancel()  # granted, and not yet run
    assert await asyncio.gather(*waiting, return_exceptions=True) != []
    assert await _held(places, "e") == "e"


async def _held(places: FairPlaces, client: str) -> str:
    async with places.place_of(client):
        return client


@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(2, 4))
def test_everybody_gets_a_place_and_no_limit_is_passed(clients: list[str], n_places: int) -> None:
    held: Counter[str] = Counter()

    async def work(places: FairPlaces, client: str) -> None:
        async with places.place_of(client):
            held[client] += 1
            assert held[client] <= n_places - 1
            assert held.total() <= n_places
            await asyncio.sleep(0)
            held[client] -= 1

    async def everybody() -> None:
        places = FairPlaces(n_places)
        await asyncio.wait_for(asyncio.gather(*(work(places, client) for client in clients)), 30)

    asyncio.run(everybody())
    assert held.total() == 0
