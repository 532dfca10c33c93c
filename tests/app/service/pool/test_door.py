from __future__ import annotations

import asyncio

from app.service.pool.door import Door, Watcher


async def test_an_open_door_counts_who_is_inside_and_tells_of_the_work() -> None:
    door, told = Door(), []
    door.watch(Watcher(lambda: told.append("work"), lambda: told.append("rest"), lambda: told.append("gone")))
    await door.enter()
    await door.enter()
    assert (door.n_inside, told) == (2, ["work", "work"])
    door.leave()
    assert (door.n_inside, told) == (1, ["work", "work"]), "rest is told by the engine, which may be loading"


async def test_whoever_comes_to_a_closed_door_waits_and_those_inside_stay() -> None:
    door = Door()
    await door.enter()
    door.close()
    late = asyncio.create_task(door.enter())
    await asyncio.sleep(0)
    assert (door.is_open, door.n_inside, late.done()) == (False, 1, False)
    door.reopen()
    await late
    assert (door.is_open, door.n_inside) == (True, 2)


async def test_one_that_gives_up_outside_was_never_inside() -> None:
    door = Door()
    door.close()
    late = asyncio.create_task(door.enter())
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.wait({late})
    door.reopen()
    await asyncio.sleep(0)
    assert door.n_inside == 0


def test_rest_is_when_an_engine_was_used_last() -> None:
    door = Door()
    begun_s = door.last_used_s
    door.tell_work()
    assert door.last_used_s == begun_s
    door.tell_rest()
    assert door.last_used_s >= begun_s
