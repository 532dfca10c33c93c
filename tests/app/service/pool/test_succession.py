from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.service.pool.succession import Live, Succession


class Lives:
    """Lives that go on until they are told to end, take their time for that, and note both."""

    def __init__(self) -> None:
        self.course: list[str] = []
        self.may_be_over = asyncio.Event()

    def __call__(self, name: str) -> Live:
        async def live() -> None:
            self.course.append(f"{name} begins")
            try:
                await asyncio.Event().wait()
            finally:
                async with asyncio.timeout(5):  # so that a test that fails ends
                    await self.may_be_over.wait()
                self.course.append(f"{name} is over")

        return live


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_so():  # noqa: ASYNC110 - what tasks do tells nobody
            await asyncio.sleep(0)


async def test_a_life_begins_when_the_one_before_is_over() -> None:
    lives, succession = Lives(), Succession()
    assert not succession.is_alive
    succession.begin(lives("first"))
    await _until(lambda: lives.course == ["first begins"])
    succession.end()
    succession.begin(lives("second"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert lives.course == ["first begins"], "it is still ending"
    lives.may_be_over.set()
    await _until(lambda: lives.course == ["first begins", "first is over", "second begins"])
    succession.end()
    await succession.ended(with_last=True)
    assert not succession.is_alive


async def test_one_that_is_ended_while_it_waits_lets_nobody_in_before_the_first_is_over() -> None:
    lives, succession = Lives(), Succession()
    succession.begin(lives("first"))
    await _until(lambda: lives.course == ["first begins"])
    succession.end()
    succession.begin(lives("withdrawn"))
    await asyncio.sleep(0)
    succession.end()
    succession.begin(lives("third"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert lives.course == ["first begins"], "two would be there at once"
    waiting = asyncio.create_task(succession.ended(with_last=False))
    await asyncio.sleep(0)
    assert not waiting.done()
    lives.may_be_over.set()
    await waiting
    await _until(lambda: lives.course == ["first begins", "first is over", "third begins"])
    succession.end()
    await succession.ended(with_last=True)


async def test_where_nobody_lived_nobody_is_waited_for() -> None:
    succession = Succession()
    succession.end()
    await succession.ended(with_last=True)
