"""JobManager of which each is a small program in the place of a verb: order, ends, and what is left of them."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.options.jobs import PullOptions, TuneOptions
from app.protocol.errors import RequestError
from app.protocol.job import Job
from app.service.http.errors import RefusedError
from app.service.jobs import manager as module
from app.service.jobs.arguments import Resource
from app.service.jobs.manager import LIMITS, JobManager, Subscriptions, startable
from app.service.jobs.run import JobStore
from app.settings.settings import Settings

# Writes its arguments down, says a step and does what its last word asks for.
PROGRAM = """
import json, os, sys, time
word = sys.argv[-1]
if any("slow.gguf" in argument for argument in sys.argv):  # what is copied at its second start
    begun = os.path.exists("../slow")
    open("../slow", "a").close()
    word = "copied" if begun else "wait"
with open("../order", "a") as order:
    order.write(word + "\\n")
print(json.dumps({"event": "step", "title": word, "unit": "steps", "n_done": 1, "n_total": 2, "per_s": 0,
                  "remaining_s": None}), flush=True)
match word.partition("-")[0]:
    case "die": print("last words", file=sys.stderr); os._exit(3)
    case "fail":
        error = {"kind": "StorageError", "cause": "Full.", "remedy": "Free some."}
        print(json.dumps({"event": "failed", "error": error}))
        sys.exit(1)
    case "wait": sys.exit(130 if sys.stdin.readline() else 1)
    case "chat": print("no JSON \\x1b[31m"); print("x" * 9_000_000); print(json.dumps({"answer": 42}))
"""
Opened = Callable[..., "asynccontextmanager[JobManager]"]


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[], object]:
    @asynccontextmanager
    async def open_jobs(**calls: Callable[[], None]) -> AsyncIterator[JobManager]:
        jobs = JobManager(Settings(data_dir=tmp_path), command=[sys.executable, "-S", "-c", PROGRAM], **calls)
        try:
            yield jobs
        finally:
            await jobs.close()

    return open_jobs


async def end_of(jobs: JobManager, job: Job) -> Job:
    async with asyncio.timeout(60):
        async for seen in jobs.watch_one(job.id):
            job = seen
    return job


async def running(jobs: JobManager, job: Job) -> None:
    """Wait until the program of `job` has said something."""
    async with asyncio.timeout(60):
        async for seen in jobs.watch_one(job.id):
            if seen.message:
                return


def _n_descriptors() -> int:
    """How many are open in this process; where the system does not tell, none."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


@pytest.mark.slow
async def test_fifty_waiting_jobs_start_in_order_and_leak_no_descriptor(opened: Opened, tmp_path: Path) -> None:
    async with opened() as jobs:
        await end_of(jobs, await jobs.start(TuneOptions(model="first")))
        before = _n_descriptors()
        started = [await jobs.start(TuneOptions(model=f"m{number}")) for number in range(50)]
        assert [(await end_of(jobs, job)).state for job in started] == ["done"] * 50
        assert _n_descriptors() <= before
        assert [job.id for job in jobs.all[1:]] == [job.id for job in started]
    assert (tmp_path / "order").read_text().split() == ["first", *(f"m{number}" for number in range(50))]


async def test_each_end_has_its_state(opened: Opened) -> None:
    async with opened() as jobs:
        died = await end_of(jobs, await jobs.start(TuneOptions(model="die")))
        failed = await end_of(jobs, await jobs.start(TuneOptions(model="fail")))
        assert (died.state, failed.state) == ("failed", "failed")
        assert died.error is not None
        assert failed.error is not None
        assert "status 3: last words" in died.error.cause
        assert failed.error.cause == "Full."
        assert "last words" in jobs.log(died.id)


async def test_the_next_service_lists_the_jobs_of_one_that_ends_after_it_has_started(opened: Opened) -> None:
    async with opened() as last:
        ended = await end_of(last, await last.start(TuneOptions(model="first")))
        waiting = await last.start(TuneOptions(model="wait"))
        await running(last, waiting)
        async with opened() as jobs, asyncio.timeout(60):
            assert [job.id for job in jobs.all] == [ended.id]
            adopting = asyncio.create_task(jobs.adopt())
            newer = await end_of(jobs, await jobs.start(TuneOptions(model="newer")))
            jobs.forget(ended.id)
            await last.close()
            await adopting
            assert [(job.id, job.state) for job in jobs.all] == [(waiting.id, "interrupted"), (newer.id, "done")]
            assert (await jobs.retry(waiting.id)).state in ("queued", "running")


async def test_the_jobs_of_a_service_that_is_killed_after_the_start_of_the_next_are_interrupted(
    opened: Opened, tmp_path: Path
) -> None:
    last = JobStore(tmp_path / "jobs")
    last.save(Job(id="ab12", kind="tune", title="Tune", arguments={"model": "guide"}, created_s=1.0, state="running"))
    async with opened() as jobs, asyncio.timeout(60):
        assert jobs.all == ()
        last.close()
        await jobs.adopt()
        assert [(job.id, job.state) for job in jobs.all] == [("ab12", "interrupted")]
    assert [job.state for job in JobStore(tmp_path / "jobs").load()] == ["interrupted"]


async def test_jobs_are_listed_in_the_order_of_their_start_though_the_clock_was_put_back(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start_at(now_s: float) -> Job:
        monkeypatch.setattr("app.service.jobs.manager.time.time", lambda: now_s)
        return await jobs.start(TuneOptions(model="chat"))

    async with opened() as jobs:
        started = [await start_at(now_s) for now_s in (3e9, 2e9, 1e9)]
        ended = [await end_of(jobs, job) for job in started]
        assert all(job.ended_s >= job.started_s for job in ended)
    async with opened() as jobs:
        assert [job.id for job in jobs.all] == [job.id for job in started]


async def test_other_output_is_logged_and_the_result_is_kept(opened: Opened) -> None:
    async with opened() as jobs:
        job = await end_of(jobs, await jobs.start(TuneOptions(model="chat")))
        assert (job.state, job.result) == ("done", {"answer": 42})
        assert "no JSON [31m" in jobs.log(job.id)
        assert "a line that was too long was dropped" in jobs.log(job.id)


async def test_running_and_waiting_jobs_are_cancelled_and_retried(opened: Opened, tmp_path: Path) -> None:
    async with opened() as jobs:
        runs, waits = [await jobs.start(TuneOptions(model=f"wait-{number}")) for number in (1, 2)]
        await running(jobs, runs)
        assert jobs.cancel(waits.id).state == "cancelled"
        with pytest.raises(RefusedError, match="is running"):
            await jobs.retry(runs.id)
        with pytest.raises(RefusedError, match="is running"):
            jobs.forget(runs.id)
        jobs.cancel(runs.id)
        ended = await end_of(jobs, runs)
        assert (ended.state, ended.error) == ("cancelled", None)
        assert jobs.cancel(runs.id) == ended
        assert (await jobs.retry(waits.id)).state == "queued"
        await running(jobs, waits)
        jobs.cancel(waits.id)
        assert (await end_of(jobs, waits)).state == "cancelled"
    assert (tmp_path / "order").read_text().split() == ["wait-1", "wait-2"]


async def test_a_job_with_a_result_is_not_run_again_over_it(opened: Opened) -> None:
    async with opened() as jobs:
        job = await end_of(jobs, await jobs.start(TuneOptions(model="chat")))
        with pytest.raises(RefusedError, match="is done"):
            await jobs.retry(job.id)
        assert jobs.all == (job,)


async def test_unfinished_jobs_are_interrupted_for_the_next_service_and_can_be_retried(
    opened: Opened, tmp_path: Path
) -> None:
    async with opened() as jobs:
        runs, waits = [await jobs.start(TuneOptions(model=f"wait-{number}")) for number in (1, 2)]
        await running(jobs, runs)
    assert not list((tmp_path / "jobs").glob("*.lock"))
    async with opened() as jobs:
        assert [(job.id, job.state) for job in jobs.all] == [(runs.id, "interrupted"), (waits.id, "interrupted")]
        assert jobs.all[0].error is not None
        assert "Retry it" in jobs.all[0].error.remedy
        await jobs.retry(waits.id)
        await running(jobs, waits)
    assert (tmp_path / "order").read_text().split() == ["wait-1", "wait-2"]


async def test_a_removed_job_disappears_for_subscribers_and_from_disk(opened: Opened, tmp_path: Path) -> None:
    async with opened() as jobs:
        job = await end_of(jobs, await jobs.start(TuneOptions(model="m")))
        watch = jobs.watch()
        assert (await anext(watch)).state == "done"
        jobs.forget(job.id)
        assert (await anext(watch)).state == "forgotten"
        await watch.aclose()
        with pytest.raises(RefusedError, match="no job"):
            jobs.find(job.id)
    assert list((tmp_path / "jobs").iterdir()) == []


async def test_only_the_last_hundred_ended_jobs_are_kept(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ENDED", 3)
    async with opened() as jobs:
        started = [await jobs.start(TuneOptions(model=f"m{number}")) for number in range(5)]
        await end_of(jobs, started[-1])
        assert [job.id for job in jobs.all] == [job.id for job in started[2:]]
    assert len(list((tmp_path / "jobs").glob("*.json"))) == len(list((tmp_path / "jobs").glob("*.log"))) == 3


async def test_too_many_waiting_jobs_are_refused(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    async with opened() as jobs:
        for number in range(3):
            await jobs.start(TuneOptions(model=f"wait-{number}"))
        with pytest.raises(RefusedError, match="wait already") as raised:
            await jobs.start(TuneOptions(model="one too many"))
        assert raised.value.status == 429


async def test_an_impossible_job_is_refused_before_it_waits(opened: Opened, tmp_path: Path) -> None:
    async with opened() as jobs:
        with pytest.raises(RequestError):
            await jobs.start(TuneOptions(model="./m.gguf"))
        assert jobs.all == ()
    assert not (tmp_path / "jobs").exists()


async def test_the_manager_is_idle_when_nothing_runs_waits_or_is_watched(opened: Opened) -> None:
    calls: list[str] = []
    async with opened(on_work=lambda: calls.append("work"), on_idle=lambda: calls.append("idle")) as jobs:
        assert jobs.is_idle
        watch = jobs.watch()
        job = await jobs.start(PullOptions(reference="wait-1"))
        assert (await anext(watch)).id == job.id
        assert not jobs.is_computing
        jobs.cancel(job.id)
        while not (await anext(watch)).has_ended:
            pass
        assert (calls, jobs.is_idle) == (["work"], False)
        await watch.aclose()
        assert (calls, jobs.is_idle) == (["work", "idle"], True)


@pytest.mark.parametrize(
    ("arguments", "gives_way"), [(PullOptions(reference="wait-a"), True), (TuneOptions(model="wait-a"), False)]
)
async def test_jobs_have_low_priority_unless_they_measure(
    opened: Opened, arguments: PullOptions | TuneOptions, gives_way: bool
) -> None:
    async with opened() as jobs:
        before = set(psutil.Process().children())
        job = await jobs.start(arguments)
        await running(jobs, job)
        (process,) = set(psutil.Process().children()) - before
        assert (process.nice() != psutil.Process().nice()) is gives_way
        jobs.cancel(job.id)
        await end_of(jobs, job)


NETWORK: frozenset[Resource] = frozenset({"network"})
MACHINE: frozenset[Resource] = frozenset({"machine"})
slots = st.sampled_from([NETWORK, MACHINE, NETWORK | MACHINE])


@given(st.lists(slots), st.lists(slots, max_size=3))
def test_jobs_start_within_the_limits_and_none_overtakes(
    wanted: list[frozenset[Resource]], running: list[frozenset[Resource]]
) -> None:
    waiting = [(str(number), each) for number, each in enumerate(wanted)]
    started = startable(waiting, running)
    assert started == sorted(started, key=int)
    before = Counter(slot for each in running for slot in each)
    after = before + Counter(slot for number in started for slot in wanted[int(number)])
    assert all(after[slot] <= max(LIMITS[slot], before[slot]) for slot in LIMITS)
    for kind in (NETWORK, MACHINE, NETWORK | MACHINE):
        in_line = [number for number, each in waiting if each == kind]
        n_started = sum(number in started for number in in_line)
        assert [number for number in in_line if number in started] == in_line[:n_started]


@given(st.lists(slots, min_size=1))
def test_where_nothing_runs_the_first_one_starts(wanted: list[frozenset[Resource]]) -> None:
    assert startable([(str(number), each) for number, each in enumerate(wanted)], [])[0] == "0"


def test_a_download_does_not_wait_for_a_conversion_and_two_run_at_once() -> None:
    waiting = [("a", NETWORK), ("b", MACHINE), ("c", NETWORK), ("d", NETWORK), ("e", MACHINE)]
    assert startable(waiting, [MACHINE]) == ["a", "c"]


def test_a_job_that_needs_everything_is_not_starved_by_later_ones() -> None:
    waiting = [("both", NETWORK | MACHINE), ("a", NETWORK), ("b", NETWORK), ("c", MACHINE)]
    assert startable(waiting, [MACHINE]) == ["a"]


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


async def test_a_copy_that_drafts_is_made_behind_all_other_jobs_and_once(
    opened: Opened, tmp_path: Path, tiny_model: Path
) -> None:
    async with opened() as jobs:
        first = await jobs.start(TuneOptions(model="wait"))
        jobs.start_copy(tiny_model, "Q2_K")
        jobs.start_copy(tiny_model, "Q2_K")
        await asyncio.gather(*jobs._copies.values())
        later = await jobs.start(TuneOptions(model="later"))
        assert [job.kind for job in jobs.all] == ["tune", "quantize", "tune"]
        jobs.cancel(first.id)
        await end_of(jobs, later)
        copy = await end_of(jobs, jobs.all[1])
        assert copy.arguments["as_draft"]
    order = (tmp_path / "order").read_text().split()
    assert order[:2] == ["wait", "later"]
    assert len(order) == 3


@pytest.mark.parametrize("cancelled", ["never", "before it stops", "while it stops"])
async def test_a_copy_that_is_made_stops_for_a_job_that_somebody_waits_for_and_goes_on_after_it(
    opened: Opened, tmp_path: Path, tiny_model: Path, cancelled: str
) -> None:
    slow = tmp_path / "slow.gguf"
    shutil.copy(tiny_model, slow)
    async with opened() as jobs:
        jobs.start_copy(slow, "Q2_K")
        await asyncio.gather(*jobs._copies.values())
        (copy,) = jobs.all
        await running(jobs, copy)
        pull = await jobs.start(PullOptions(reference="some/model"))  # needs nothing that the copy has
        assert (await end_of(jobs, pull)).state == "done"
        assert jobs.find(copy.id).state == "running"
        if cancelled == "before it stops":
            jobs.cancel(copy.id)
        asked = await jobs.start(TuneOptions(model="asked"))
        if cancelled == "while it stops":
            jobs.cancel(copy.id)
        assert (await end_of(jobs, asked)).state == "done"
        copy = await end_of(jobs, copy)
        assert copy.state == ("done" if cancelled == "never" else "cancelled")
        assert copy.error is None
    order = (tmp_path / "order").read_text().split()
    assert [order[0], *order[2:]] == ["wait", "asked", *(["copied"] if cancelled == "never" else [])]


async def test_a_copy_that_was_cancelled_is_not_made_by_itself_again(opened: Opened, tiny_model: Path) -> None:
    async with opened() as jobs:
        waiting = await jobs.start(TuneOptions(model="wait"))
        jobs.start_copy(tiny_model, "Q2_K")
        await asyncio.gather(*jobs._copies.values())
        jobs.cancel(jobs.all[1].id)
        jobs.cancel(waiting.id)
    async with opened() as jobs:
        jobs.start_copy(tiny_model, "Q2_K")
        await asyncio.sleep(0)
        assert [job.state for job in jobs.all if job.kind == "quantize"] == ["cancelled"]


async def test_a_copy_that_cannot_be_queued_is_logged(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(module, "log_event", lambda _source, text: lines.append(text))
    async with opened() as jobs:
        jobs.start_copy(tmp_path / "relative", "NOTATYPE")
        await asyncio.gather(*jobs._copies.values())
        assert jobs.all == ()
    assert lines[0].startswith("No copy of relative is made to draft: ")
