from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from app.protocol.codec import encode
from app.protocol.job import Job
from app.service.jobs.store import JobStore
from quantizer.errors import StorageError

JOB = Job(id="ab12", kind="tune", title="Tune guide", arguments={"model": "guide"}, created_s=1.0)


def test_jobs_are_there_again_oldest_first(tmp_path: Path) -> None:
    jobs = [replace(JOB, id=name, created_s=at, state="done") for name, at in (("b", 3.0), ("c", 1.0), ("a", 3.0))]
    store = JobStore(tmp_path / "jobs")
    for job in jobs:
        store.save(job)
    store.close()
    assert [job.id for job in JobStore(tmp_path / "jobs").load()] == ["c", "a", "b"]


def test_an_unfinished_job_is_left_to_the_service_that_lives(tmp_path: Path) -> None:
    first, second = JobStore(tmp_path), JobStore(tmp_path)
    with closing(first):
        first.save(replace(JOB, state="running"))
        assert second.load() == []
    assert [job.state for job in second.load()] == ["running"]


def test_the_lock_of_a_service_that_was_killed_is_cleared_away(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    store.save(replace(JOB, state="running"))
    assert store._lock is not None
    store._lock.release()  # as the system does
    assert JobStore(tmp_path).load()
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"id": "x"}', json.dumps({**encode(JOB), "id": "other", "state": "done", "owner": ""})]
)
def test_what_is_no_job_is_passed_over_and_left(tmp_path: Path, text: str) -> None:
    (tmp_path / "ab12.json").write_text(text)
    assert JobStore(tmp_path).load() == []
    assert (tmp_path / "ab12.json").read_text() == text


def test_an_owner_that_climbs_out_of_the_folder_opens_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (tmp_path / "secret.lock").write_text("mine")
    (folder / "ab12.json").write_text(json.dumps({**encode(JOB), "owner": "../secret"}))
    assert [job.id for job in JobStore(folder).load()] == ["ab12"]
    assert (tmp_path / "secret.lock").read_text() == "mine"


def test_forgetting_takes_the_log_too(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    store.save(JOB)
    store.log(JOB.id).append("hello\n")
    store.remove(JOB.id)
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("a file")
    with pytest.raises(StorageError, match="cannot be saved"):
        JobStore(tmp_path / "jobs").save(JOB)
