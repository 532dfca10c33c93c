from __future__ import annotations

import asyncio
from dataclasses import replace

from app.protocol.job import Job
from app.service.jobs.manager import Subscriptions

JOB = Job(id="1", kind="tune", title="Tune guide", arguments={}, created_s=1.0)


async def test_a_subscriber_receives_every_job_and_the_newest_of_each_change() -> None:
    subscriptions = Subscriptions(lambda: None)
    watch = subscriptions.subscribe([JOB, replace(JOB, id="2")])
    assert [(await anext(watch)).id for _ in range(2)] == ["1", "2"]
    for done in range(1000):
        subscriptions.publish(replace(JOB, fraction=done / 1000))
    subscriptions.publish(replace(JOB, id="2", state="done"))
    seen = [await anext(watch) for _ in range(2)]
    assert [(job.id, job.fraction, job.state) for job in seen] == [("1", 0.999, "queued"), ("2", None, "done")]
    await watch.aclose()


async def test_all_subscribers_receive_the_same_end_and_leave() -> None:
    left: list[bool] = []
    subscriptions = Subscriptions(lambda: left.append(True))

    async def last() -> Job:
        seen = JOB
        async for job in subscriptions.subscribe([JOB]):
            seen = job
        return seen

    watchers = [asyncio.create_task(last()) for _ in range(3)]
    while len(subscriptions) < 3:  # noqa: ASYNC110 - nobody tells who watches
        await asyncio.sleep(0)
    subscriptions.publish(replace(JOB, state="done"))
    subscriptions.close()
    assert [job.state for job in await asyncio.gather(*watchers)] == ["done"] * 3
    assert left == [True]
    assert len(subscriptions) == 0
