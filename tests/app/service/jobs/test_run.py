from __future__ import annotations

from typing import Any

import pytest

from app.library.download.events import (
    Chosen,
    Discarded,
    Done,
    Fetching,
    HeadAdded,
    HeadLeftOut,
    Progress,
    Retrying,
    encode_event,
)
from app.protocol.job import Job
from app.service.jobs.run import RunningJob
from quantizer.system.errors import EngineError, ErrorInfo, StorageError
from quantizer.write.events import JobFailed
from quantizer.write.events import encode_event as encode_job_event

JOB = Job(id="1", kind="pull", title="Fetch org/repo", arguments={}, created_s=1.0)
STEP = {"event": "step", "title": "Judging", "unit": "steps", "n_done": 3, "n_total": 4, "per_s": 0.5}


def job_after(*lines: dict[str, Any]) -> RunningJob:
    running = RunningJob.begun(JOB, 2.0)
    for line in lines:
        running = running.after(line)
    return running


def test_two_files_of_a_download_are_one_progress() -> None:
    first = Fetching("a.gguf", 600, 0, "sha256:aa"), Progress("a.gguf", 600, 600, 100.0, 0.0)
    second = Fetching("b.gguf", 400, 100, "sha256:bb"), Progress("b.gguf", 400, 200, 50.0, 4.0)
    chosen = Chosen("hub", "a.gguf", 2, 1000, "It is small.")
    job = job_after(*map(encode_event, (chosen, *first, *second))).job
    assert (job.n_done_bytes, job.n_bytes, job.fraction, job.bytes_per_s, job.remaining_s) == (
        800,
        1000,
        0.8,
        50.0,
        4.0,
    )
    assert (job.message, job.digest) == ("b.gguf", "sha256:bb")


def test_a_restarted_file_is_not_counted_twice() -> None:
    begun = Fetching("a.gguf", 600, 0), Progress("a.gguf", 600, 600, 100.0, 0.0), Discarded("a.gguf", "it was wrong")
    job = job_after(*map(encode_event, (*begun, Fetching("a.gguf", 600, 0)))).job
    assert (job.n_done_bytes, job.n_bytes) == (0, 600)


def test_a_draft_head_is_added_to_the_model_that_is_the_result() -> None:
    chosen = Chosen("hub", "dflash-m.gguf", 1, 90, "By its name it drafts for m.gguf.")
    done = Done("/models/m.gguf", 600, ("aa",), is_new=True)
    head = chosen, Fetching("dflash-m.gguf", 90, 0), Progress("dflash-m.gguf", 90, 90, 9.0, 0.0)
    added = HeadAdded("/models/dflash-m.gguf", "m.gguf", 90, ("bb",), is_new=True)
    model = {"path": "/models/m.gguf", "bytes": 600, "is_new": True}
    job = job_after(*map(encode_event, (done, *head, added))).job
    assert job.result == model | {"head": "/models/dflash-m.gguf"}
    assert job.n_done_bytes == job.n_bytes == 690
    there = job_after(*map(encode_event, (done, chosen))).job
    assert (there.n_done_bytes, there.n_bytes) == (0, 90)
    left = job_after(*map(encode_event, (done, *head, HeadLeftOut("dflash-m.gguf", "m.gguf", "It is damaged.")))).job
    assert left.result == model
    assert left.n_done_bytes == left.n_bytes == 600
    assert left.message == "m.gguf is complete without its draft head dflash-m.gguf: It is damaged."


def test_a_retry_is_a_message() -> None:
    assert job_after(encode_event(Retrying("a.gguf", "reset", 1.5))).job.message == "a.gguf: reset; again in 1.5 s."


def test_a_download_is_the_result_until_it_is_converted() -> None:
    fetched = encode_event(Done("/models/a.gguf", 1000, ("aa",), is_new=True))
    assert job_after(fetched).job.result == {"path": "/models/a.gguf", "bytes": 1000, "is_new": True}
    made = {"event": "quantized", "output": "/models/a-Q8_0.gguf"}
    assert job_after(fetched, made).job.result == {"output": "/models/a-Q8_0.gguf"}


def test_steps_have_no_bytes_and_bytes_have_a_rate() -> None:
    job = job_after(encode_event(Fetching("a.gguf", 600, 300)), STEP | {"remaining_s": 2.0}).job
    assert (job.message, job.fraction, job.n_bytes, job.remaining_s) == ("Judging", 0.75, None, 2.0)
    job = job_after(STEP | {"unit": "bytes", "per_s": 9.0, "remaining_s": None}).job
    assert (job.n_done_bytes, job.n_bytes, job.bytes_per_s) == (3, 4, 9.0)


def test_an_object_without_an_event_is_the_result() -> None:
    assert job_after({"models": ["a"], "n_windows": 2}).job.result == {"models": ["a"], "n_windows": 2}


@pytest.mark.parametrize("line", [{"event": "sung"}, {"event": "sung", "n_done": None}])
def test_an_event_of_a_later_version_changes_nothing(line: dict[str, Any]) -> None:
    assert job_after(line) == job_after()


def test_an_event_without_its_fields_raises() -> None:
    with pytest.raises((KeyError, TypeError)):
        job_after({"event": "step"})
    with pytest.raises((KeyError, TypeError)):
        job_after({"event": "fetching", "colour": "red"})


def test_a_verb_reports_its_error_and_a_dead_one_gets_one() -> None:
    said = job_after(encode_job_event(JobFailed.of(StorageError("The disk is full.", "Free 2 GB."))))
    assert said.died(1, ["whatever"]).ended("failed", 3.0).error == ErrorInfo(
        "StorageError", "The disk is full.", "Free 2 GB."
    )
    died = job_after().died(-9, ["out of memory"]).ended("failed", 3.0).error
    assert died is not None
    assert isinstance(died.error(), EngineError)
    assert died.cause == "The job's process ended with status -9: out of memory."


def test_a_retry_begins_without_the_results_of_the_last_run() -> None:
    failed = job_after(STEP | {"remaining_s": 2.0}).died(1, ()).ended("failed", 3.0)
    again = RunningJob.begun(failed, 4.0).job
    assert (again.state, again.fraction, again.error, again.ended_s, again.message) == ("running", None, None, None, "")
    assert again.created_s == JOB.created_s


def test_a_finished_job_is_at_100_percent() -> None:
    done = job_after(STEP | {"remaining_s": 2.0}).ended("done", 3.0)
    assert (done.fraction, done.remaining_s, done.ended_s) == (1.0, None, 3.0)
