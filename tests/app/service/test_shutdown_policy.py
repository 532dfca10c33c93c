from __future__ import annotations

import asyncio
from contextlib import aclosing

from app.service.shutdown_policy import ShutdownPolicy


def _policy(keep_s: float | None, *, is_owned: bool = True) -> tuple[ShutdownPolicy, asyncio.Event]:
    ended, policy = asyncio.Event(), ShutdownPolicy(is_owned=is_owned, keep_s=keep_s)
    policy.end = ended.set
    return policy, ended


async def _ends(ended: asyncio.Event) -> None:
    async with asyncio.timeout(120):
        await ended.wait()


async def test_a_service_that_is_not_kept_ends_with_its_owner() -> None:
    policy, ended = _policy(0.0)
    policy.lose_owner()
    assert ended.is_set()


async def test_a_kept_service_ends_some_time_after_its_owner() -> None:
    policy, ended = _policy(0.01)
    assert not policy.is_unused
    policy.lose_owner()
    assert not ended.is_set()
    assert policy.is_unused
    await _ends(ended)


async def test_a_service_that_is_kept_for_good_does_not_end() -> None:
    policy, ended = _policy(None)
    policy.lose_owner()
    assert policy.is_unused
    assert policy._ending is None
    assert not ended.is_set()


async def test_a_request_and_a_client_keep_it_and_the_time_begins_again_after_them() -> None:
    policy, ended = _policy(0.01)
    with policy.in_use():
        policy.lose_owner()
        assert policy._ending is None
        assert not policy.is_unused
    async with aclosing(policy.attend()) as attending:
        await anext(attending)
        assert policy._ending is None
        assert not policy.is_unused
    await _ends(ended)


async def test_a_running_job_keeps_it() -> None:
    policy, ended = _policy(0.01)
    policy.is_idle = lambda: False
    policy.lose_owner()
    assert policy._ending is None
    assert not policy.is_unused
    policy.is_idle = lambda: True
    policy.end_if_due()  # as the jobs' manager does
    await _ends(ended)


async def test_a_service_in_the_foreground_is_never_unused() -> None:
    policy, ended = _policy(0.0, is_owned=False)
    with policy.in_use():
        pass
    assert not policy.is_unused
    assert not ended.is_set()


async def test_a_service_that_closes_ends_once() -> None:
    policy, ended = _policy(0.01)
    policy.lose_owner()
    policy.close()
    policy.end_if_due()
    assert policy._ending is None
    assert not ended.is_set()
