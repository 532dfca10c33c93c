"""Batches over jobs whose process answers one request and then waits, as a slow engine does."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.service.api.batches.batches import MOST_DEATHS, Batches, BatchObject, BatchStore, _Count
from app.service.api.batches.files import FileStore
from app.service.http.errors import RefusedError
from app.service.jobs.manager import JobManager
from app.settings.settings import Settings

PATH = "/v1/completions"
LINES = b"".join(
    json.dumps({"custom_id": name, "url": PATH, "body": {"prompt": name}}).encode() + b"\n" for name in "abc"
)
# Interrupted by a line, as the job process is; ended by the end of its service.
SLOW = """
import json, sys
output = next(word.partition("=")[2] for word in sys.argv if word.startswith("--output="))
line = {"custom_id": "a", "id": "batch_req_1", "response": {"body": {}}, "error": None}
with open(output, "w") as file:
    file.write(json.dumps(line) + "\\n" + '{"custom_id": "b", "cut o')
print(json.dumps({"answered": 1, "failed": 0}), flush=True)
sys.exit(130 if sys.stdin.readline() else 1)
"""
QUICK = "import sys"
# Answers one request more each time, and is killed.
_BEGIN = """
import json, os, signal, sys
from pathlib import Path
output = Path(next(word.partition("=")[2] for word in sys.argv if word.startswith("--output=")))
with output.with_suffix(".runs").open("a") as file:
    file.write("run\\n")
"""
KILLED = """
n_answered = output.read_text().count("\\n") if output.exists() else 0
line = {"custom_id": "abc"[n_answered % 3], "id": "batch_req_1", "response": {"body": {}}, "error": None}
if n_answered < 3:
    with output.open("a") as file:
        file.write(json.dumps(line) + "\\n")
    os.kill(os.getpid(), signal.SIGTERM)
"""


@asynccontextmanager
async def running(folder: Path, script: str = SLOW) -> AsyncIterator[Batches]:
    """The batches of a service over `folder`."""
    settings = Settings(data_dir=folder, cache_dir=folder / "cache")
    jobs = JobManager(settings, command=(sys.executable, "-c", script))
    store = folder / "batches"
    batches = Batches(BatchStore(store), FileStore(store / "files"), jobs)
    batches.resume()
    try:
        yield batches
    finally:
        await batches.close()
        await jobs.close()


async def begin(batches: Batches, window_s: float = 3600.0) -> str:
    stored = batches.files.add(io.BytesIO(LINES), "in.jsonl", 3600)
    return (await batches.create(stored["id"], PATH, "24h", window_s, 3600, None))["id"]


async def seen(batches: Batches, batch_id: str, *statuses: str, n_completed: int = 0) -> BatchObject:
    async with asyncio.timeout(60):
        while True:
            batch = await batches.get(batch_id)
            if batch["status"] in statuses and batch["request_counts"]["completed"] >= n_completed:
                return batch
            await asyncio.sleep(0.02)


def lines_of(batches: Batches, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in batches.files.path_of(file_id).read_bytes().splitlines()]


async def test_what_is_not_answered_in_time_is_an_error(tmp_path: Path) -> None:
    async with running(tmp_path) as batches:
        batch = await seen(batches, await begin(batches, window_s=3.0), "expired")
        assert batch["expired_at"] is not None
        answered, late = batch["request_counts"]["completed"], batch["request_counts"]["failed"]
        assert answered + late == 3
        missing = lines_of(batches, batch["error_file_id"])
        assert {line["error"]["code"] for line in missing} == {"batch_expired"}
        assert {"b", "c"} <= {line["custom_id"] for line in missing}
        if answered:  # its process may have started too late
            assert [line["custom_id"] for line in lines_of(batches, batch["output_file_id"])] == ["a"]


async def test_the_next_service_goes_on_with_the_job(tmp_path: Path) -> None:
    async with running(tmp_path) as batches:
        batch_id = await begin(batches)
        await seen(batches, batch_id, "in_progress", n_completed=1)
    async with running(tmp_path, QUICK) as batches:
        batch = await seen(batches, batch_id, "completed")
        assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 0}
        (job,) = batches.jobs.all
        assert job.state == "done"


async def test_of_two_services_one_runs_a_batch_and_the_other_takes_over(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK) as second:
        async with running(tmp_path) as first:
            batch_id = await begin(first)
            await seen(first, batch_id, "in_progress", n_completed=1)
            there = await seen(second, batch_id, "in_progress", n_completed=1)
            assert there["request_counts"] == {"total": 3, "completed": 1, "failed": 0}
            assert there["in_progress_at"] is not None
            assert await second.listed() == [there]
            await asyncio.sleep(0.2)
            assert second.jobs.all == ()
        assert (await seen(second, batch_id, "completed"))["request_counts"]["completed"] == 1


async def test_any_service_cancels_a_batch_that_another_one_runs(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK) as second, running(tmp_path) as first:
        batch_id = await begin(first)
        await seen(first, batch_id, "in_progress", n_completed=1)
        assert (await second.cancel(batch_id))["status"] == "cancelling"
        assert (await second.cancel(batch_id))["status"] == "cancelling", "again, as an impatient client does"
        for each in (first, second):
            batch = await seen(each, batch_id, "cancelled")
            assert None not in (batch["cancelling_at"], batch["cancelled_at"])
            assert [line["custom_id"] for line in lines_of(each, batch["output_file_id"])] == ["a"]
        assert second.jobs.all == ()
        with pytest.raises(RefusedError, match="cancelled already"):
            await second.cancel(batch_id)
    assert not list((tmp_path / "batches").glob("*.cancel"))


async def test_a_batch_is_cancelled_though_its_service_dies_before_it_hears_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as batches:
        batch_id = await begin(batches)
        await seen(batches, batch_id, "in_progress", n_completed=1)
    BatchStore(tmp_path / "batches").ask_to_cancel(batch_id)
    async with running(tmp_path, QUICK) as batches:
        batch = await seen(batches, batch_id, "cancelled")
        assert [line["custom_id"] for line in lines_of(batches, batch["output_file_id"])] == ["a"]


async def test_a_batch_that_ends_while_it_is_cancelled_is_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, QUICK) as batches:
        batch_id = await begin(batches)
        await seen(batches, batch_id, "completed")
        store, ended = batches.store, batches.store.find(batch_id)
        store.save(replace(ended, status=""))

        def end(_store: BatchStore, batch_id: str) -> None:
            (tmp_path / "batches" / f"{batch_id}.cancel").touch()
            store.save(ended)

        monkeypatch.setattr(BatchStore, "ask_to_cancel", end)
        with pytest.raises(RefusedError, match="completed already"):
            await batches.cancel(batch_id)
        assert not list((tmp_path / "batches").glob("*.cancel"))


def test_answers_are_counted_on_from_the_last_whole_line(tmp_path: Path) -> None:
    path, count = tmp_path / "answers.jsonl", _Count()
    good, wrong = b'{"custom_id":"a","error":null}\n', b'{"custom_id":"b","error":{"code":"500"}}\n'
    for content, counts in [
        (b"", (0, 0)),
        (good, (1, 0)),
        (good + wrong[:9], (1, 0)),
        (good + wrong, (2, 1)),
        (good + wrong + b"no JSON\n", (2, 1)),
        (wrong, (1, 1)),
    ]:
        path.write_bytes(content)
        assert count.of(path) == counts
    path.unlink()
    assert count.of(path) == (1, 1), "its end is being written into files"


async def test_a_batch_whose_job_is_cancelled_elsewhere_is_cancelled(tmp_path: Path) -> None:
    async with running(tmp_path) as batches:
        batch_id = await begin(batches)
        await seen(batches, batch_id, "in_progress", n_completed=1)
        batches.jobs.cancel(batches.jobs.all[0].id)
        batch = await seen(batches, batch_id, "cancelled")
        assert [line["custom_id"] for line in lines_of(batches, batch["output_file_id"])] == ["a"]


async def test_a_job_that_fails_fails_the_batch_with_its_reason_and_keeps_its_answers(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW.replace("130 if sys.stdin.readline() else 1", "1")) as batches:
        batch = await seen(batches, await begin(batches), "failed")
        assert batch["errors"] is not None
        (fault,) = batch["errors"]["data"]
        assert (fault["code"], fault["line"]) == ("job_failed", None)
        assert "status 1" in fault["message"]
        assert len(lines_of(batches, batch["output_file_id"])) == 1


def n_runs(folder: Path) -> int:
    (path,) = (folder / "batches").glob("*.runs")
    return path.read_text().count("\n")


async def test_a_batch_whose_job_is_killed_goes_on_with_what_is_unanswered(tmp_path: Path) -> None:
    async with running(tmp_path, _BEGIN + KILLED) as batches:
        batch_id, statuses, n_completed = await begin(batches), list[str](), list[int]()
        async with asyncio.timeout(60):
            while "completed" not in statuses:
                batch = await batches.get(batch_id)
                statuses.append(batch["status"])
                n_completed.append(batch["request_counts"]["completed"])
                await asyncio.sleep(0.005)
        assert n_runs(tmp_path) == 4
        assert [line["custom_id"] for line in lines_of(batches, batch["output_file_id"])] == ["a", "b", "c"]
        assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert n_completed == sorted(n_completed), "what is answered stays so"
        assert "failed" not in statuses


async def test_a_batch_whose_jobs_are_killed_before_they_answer_anything_fails_with_the_cause(tmp_path: Path) -> None:
    dying = _BEGIN + KILLED.replace("n_answered < 3", "n_answered < 1") + "os.kill(os.getpid(), signal.SIGTERM)"
    async with running(tmp_path, dying) as batches:
        batch = await seen(batches, await begin(batches), "failed")
        assert n_runs(tmp_path) == 1 + MOST_DEATHS
        assert batch["errors"] is not None
        (fault,) = batch["errors"]["data"]
        assert fault["code"] == "job_failed"
        assert "process ended with status" in fault["message"]
        assert [line["custom_id"] for line in lines_of(batches, batch["output_file_id"])] == ["a"]


async def test_a_batch_whose_job_says_why_it_fails_is_not_tried_again(tmp_path: Path) -> None:
    error = {"event": "failed", "error": {"kind": "StorageError", "cause": "The disk is full.", "remedy": "Free some."}}
    saying = _BEGIN + f"print(json.dumps({error!r}), flush=True); sys.exit(1)"
    async with running(tmp_path, saying) as batches:
        batch = await seen(batches, await begin(batches), "failed")
        assert n_runs(tmp_path) == 1
        assert batch["errors"] is not None
        assert batch["errors"]["data"][0]["message"] == "The disk is full."


async def test_a_batch_that_is_to_be_cancelled_does_not_go_on_when_its_job_is_killed(tmp_path: Path) -> None:
    asked = 'output.with_suffix(".cancel").touch()'
    async with running(tmp_path, _BEGIN + asked + KILLED) as batches:
        batch = await seen(batches, await begin(batches), "cancelled")
        assert n_runs(tmp_path) == 1
        assert [line["custom_id"] for line in lines_of(batches, batch["output_file_id"])] == ["a"]


async def test_the_next_service_goes_on_with_a_batch_whose_job_was_killed_last(tmp_path: Path) -> None:
    async with running(tmp_path) as batches:
        batch_id = await begin(batches)
        await seen(batches, batch_id, "in_progress", n_completed=1)
    path = tmp_path / "jobs" / f"{BatchStore(tmp_path / 'batches').find(batch_id).job_id}.json"
    error = {"kind": "JobDiedError", "cause": "The job's process ended with status -9.", "remedy": "", "details": {}}
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": "failed", "error": error}))
    async with running(tmp_path, QUICK) as batches:
        assert (await seen(batches, batch_id, "completed"))["request_counts"]["completed"] == 1


async def test_a_batch_whose_input_is_gone_fails(tmp_path: Path) -> None:
    async with running(tmp_path) as batches:
        batch_id = await begin(batches)
        await seen(batches, batch_id, "in_progress", n_completed=1)
        input_id = (await batches.get(batch_id))["input_file_id"]
        job_id = batches.jobs.all[0].id
    (tmp_path / "jobs" / f"{job_id}.json").unlink()
    async with running(tmp_path) as batches:
        batches.files.remove(input_id)
        batch = await seen(batches, batch_id, "failed")
        assert batch["errors"] is not None
        assert batch["errors"]["data"][0]["code"] == "input_file_not_found"


async def test_files_that_were_made_before_a_kill_are_made_once(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK) as batches:
        batch_id = await begin(batches)
        await seen(batches, batch_id, "completed")
        before, files = batches.store.find(batch_id), batches.files.all()
        line = {"custom_id": "a", "id": "batch_req_1", "response": {"body": {}}, "error": None}
        batches.store.answers_path(batch_id).write_text(json.dumps(line) + "\n")
        for _ in range(2):
            batches._finish(batch_id, batches.jobs.all[0], is_late=False)
            batches.store.answers_path(batch_id).write_text(json.dumps(line) + "\n")
        assert len(batches.files.all()) == len(files) + 1
        assert batches.store.find(batch_id).job_id == before.job_id
    async with running(tmp_path):
        assert not list((tmp_path / "batches").glob("*.jsonl"))
