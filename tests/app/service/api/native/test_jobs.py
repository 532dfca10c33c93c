"""Jobs over HTTP: a real service, real verbs, and a hub of ours."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from app.client.service_client import ServiceClient
from app.protocol.errors import RequestError, ServiceError
from app.protocol.job import Job
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.app.running import RunningService
from tests.quantizer.gguf_files import tiny_llama

MIB = 1 << 20
LARGE = 4 * MIB


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    model = tiny_llama(tmp_path_factory.mktemp("m") / "tiny.gguf").read_bytes()
    large = model + bytes(LARGE - len(model))
    small = {f"org/small-{number}": {"m-Q4_0.gguf": model} for number in range(3)}
    with HubServer(
        *(HubRepo.of(f"org/large-{name}", {f"{name}-Q8_0.gguf": large}) for name in "abcd"),
        *(HubRepo.of(name, files) for name, files in small.items()),
    ) as server:
        server.bytes_per_s = 2 * MIB
        yield server


@pytest.fixture(scope="module")
def start(
    start_service: Callable[..., RunningService], hub: HubServer, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], RunningService]:
    """Start a service with a library of this module's, and no other hub than ours."""
    root = tmp_path_factory.mktemp("jobs")
    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(root / "hf")}
    return lambda: start_service(variables, data_dir=str(root / "data"), cache_dir=str(root / "cache"))


@pytest.fixture(scope="module")
def own(start: Callable[[], RunningService]) -> RunningService:
    return start()


def n_bytes_of(path: str) -> int:
    return Path(path).stat().st_size


async def until(client: ServiceClient, job: Job, is_so: Callable[[Job], bool]) -> Job:
    async with asyncio.timeout(120), aclosing(client.watch_job(job.id)) as watched:
        async for seen in watched:
            if is_so(seen):
                return seen
    raise AssertionError("the job ended first")


async def end_of(client: ServiceClient, job: Job) -> Job:
    return await until(client, job, lambda seen: seen.has_ended)


async def test_a_download_reports_its_progress(own: RunningService) -> None:
    async with ServiceClient(own.url) as client:
        job = await client.start_job("pull", {"reference": "org/large-a"})
        assert (job.kind, job.title, job.arguments) == ("pull", "Fetch org/large-a", {"reference": "org/large-a"})
        half = await until(client, job, lambda seen: (seen.fraction or 0.0) > 0.5)
        assert half.n_bytes == LARGE
        assert half.bytes_per_s
        assert half.remaining_s
        assert half.digest.startswith("sha256:")
        done = await end_of(client, job)
        assert (done.state, done.fraction, done.n_done_bytes, done.error) == ("done", 1.0, LARGE, None)
        assert done.result is not None
        assert n_bytes_of(done.result["path"]) == LARGE
        assert await client.job(job.id) == done
        assert done in await client.jobs()
        assert "localllm pull" in await client.job_log(job.id)


async def test_closing_a_stream_stops_no_job_and_two_watchers_see_the_same_end(own: RunningService) -> None:
    async with ServiceClient(own.url) as client, ServiceClient(own.url) as other:
        job = await client.start_job("pull", {"reference": "org/large-b"})
        leaving = client.watch_job(job.id)
        await anext(leaving)
        await leaving.aclose()

        async def last_of_all() -> Job:
            async with aclosing(other.watch_jobs()) as watched:
                async for seen in watched:
                    if seen.id == job.id and seen.has_ended:
                        return seen
            raise AssertionError("the service ended first")

        ends = await asyncio.gather(end_of(client, job), end_of(other, job), last_of_all())
        assert [end.state for end in ends] == ["done"] * 3
        assert ends[0] == ends[1] == ends[2]


@pytest.mark.slow
async def test_a_cancelled_download_resumes(own: RunningService, hub: HubServer) -> None:
    async with ServiceClient(own.url) as client:
        job = await client.start_job("pull", {"reference": "org/large-c"})
        before = hub.n_sent()
        await until(client, job, lambda seen: (seen.n_done_bytes or 0) > MIB)
        await client.cancel_job(job.id)
        cancelled = await end_of(client, job)
        assert (cancelled.state, cancelled.error) == ("cancelled", None)
        await client.retry_job(job.id)
        assert (await end_of(client, job)).state == "done"
        assert hub.n_sent() - before <= LARGE + MIB


async def test_a_failed_job_has_the_error_of_the_verb(own: RunningService) -> None:
    async with ServiceClient(own.url) as client:
        job = await end_of(client, await client.start_job("pull", {"reference": "org/nothing:Q4_0"}))
        assert job.state == "failed"
        assert job.error is not None
        assert "Check the spelling" in job.error.remedy


async def test_a_model_is_quantized_into_the_library_and_a_request_may_name_it(own: RunningService) -> None:
    async with ServiceClient(own.url) as client:
        job = await end_of(client, await client.start_job("quantize", {"source": "guide", "file_type": "Q8_0"}))
        assert (job.state, job.error) == ("done", None)
        assert job.result is not None
        assert n_bytes_of(job.result["output"]) == job.result["bytes"]
        assert await client.load("guide-Q8_0") == "guide:q8_0"


async def test_an_invalid_job_is_refused(own: RunningService) -> None:
    async with ServiceClient(own.url) as client:
        with pytest.raises(RequestError, match="reference"):
            await client.start_job("pull", {})
        with pytest.raises(RequestError, match="wings"):
            await client.start_job("tune", {"model": "guide", "wings": 2})
        with pytest.raises(RequestError, match="no job"):
            await client.job("nothing")
        with pytest.raises(RequestError, match="no job"):
            await anext(client.watch_job("nothing"))
    assert own.http.post("/api/localllm/jobs", json={"kind": "sing", "arguments": {}}).status_code == 400
    assert own.http.get("/api/localllm/jobs/nothing").status_code == 404
    assert (
        own.http.post("/api/localllm/jobs", json={"kind": "pull", "arguments": {"reference": "a"}}).status_code == 201
    )


async def test_an_ended_job_is_forgotten_on_request(own: RunningService) -> None:
    async with ServiceClient(own.url) as client:
        job = await end_of(client, await client.start_job("pull", {"reference": "no-such-name"}))
        await client.forget_job(job.id)
        assert job.id not in [each.id for each in await client.jobs()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
async def test_a_job_killed_in_the_middle_is_interrupted_and_a_retry_resumes(
    start: Callable[[], RunningService], hub: HubServer
) -> None:
    killed = start()
    before = hub.n_sent()
    async with ServiceClient(killed.url) as client:
        job = await client.start_job("pull", {"reference": "org/large-d"})
        await until(client, job, lambda seen: (seen.n_done_bytes or 0) > 2 * MIB)
        killed.process.kill()
        killed.process.wait()
        with pytest.raises(ServiceError):
            await client.jobs()
    async with ServiceClient(start().url) as client:
        interrupted = await client.job(job.id)
        assert (interrupted.state, interrupted.arguments) == ("interrupted", {"reference": "org/large-d"})
        await client.retry_job(job.id)
        assert (await end_of(client, job)).state == "done"
    assert hub.n_sent() - before <= LARGE + MIB


def test_a_stream_begins_with_all_jobs_and_ends_with_the_job(own: RunningService) -> None:
    body = {"kind": "pull", "arguments": {"reference": "org/small-0"}}
    started = own.http.post("/api/localllm/jobs", json=body)
    assert started.status_code == 201
    job = started.json()
    with own.http.stream("GET", f"/api/localllm/jobs/{job['id']}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *events, last = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    states = [json.loads(event)["state"] for event in events]
    assert last == "[DONE]"
    assert states[-1] == "done"
    assert states == sorted(states, key=["queued", "running", "done"].index)


@pytest.mark.slow
async def test_a_service_that_stays_outlives_its_owner_until_its_jobs_have_ended(
    start: Callable[[], RunningService],
) -> None:
    staying = start()
    async with ServiceClient(staying.url) as client:
        assert (await client.status()).stays_until == ""
        job = await client.start_job("pull", {"reference": "org/small-1"})
        await client.stay_until_jobs_end()
        assert (await client.status()).stays_until == "jobs-end"
        assert staying.process.stdin is not None
        watch = client.watch_jobs()
        await anext(watch)
        staying.process.stdin.close()
        assert (await end_of(client, job)).state == "done"
        with pytest.raises(subprocess.TimeoutExpired):  # a stream is still open
            await asyncio.to_thread(staying.process.wait, 0.5)
        await watch.aclose()
        assert await asyncio.to_thread(staying.process.wait, 20) == 0


@pytest.mark.slow
def test_the_routes_are_in_the_document(own: RunningService) -> None:
    paths = own.http.get("/openapi.json").json()["paths"]
    routes = {
        path.removeprefix("/api/localllm/jobs"): set(methods) for path, methods in paths.items() if "jobs" in path
    }
    assert routes == {
        "": {"get", "post"},
        "/events": {"get"},
        "/{job_id}": {"get", "delete"},
        "/{job_id}/events": {"get"},
        "/{job_id}/log": {"get"},
        "/{job_id}/cancel": {"post"},
        "/{job_id}/retry": {"post"},
    }
