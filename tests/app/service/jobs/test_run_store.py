from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from app.protocol.codec import encode
from app.protocol.job import Job
from app.service.jobs.run import MAX_LOG_BYTES, JobLog, JobStore
from quantizer.system.errors import StorageError
from tests.app.killed_writer import partial_files

JOB = Job(id="ab12", kind="tune", title="Tune guide", arguments={"model": "guide"}, created_s=1.0)


def test_saved_jobs_are_loaded_oldest_first(tmp_path: Path) -> None:
    jobs = [replace(JOB, id=name, created_s=at, state="done") for name, at in (("b", 3.0), ("c", 1.0), ("a", 3.0))]
    store = JobStore(tmp_path / "jobs")
    for job in jobs:
        store.save(job)
    store.close()
    assert [job.id for job in JobStore(tmp_path / "jobs").load()] == ["c", "a", "b"]


def test_an_unfinished_job_is_left_to_the_service_that_runs_it(tmp_path: Path) -> None:
    first, second = JobStore(tmp_path), JobStore(tmp_path)
    with closing(first):
        first.save(replace(JOB, state="running"))
        assert second.load() == []
    assert [job.state for job in second.load()] == ["running"]


def test_the_lock_of_a_killed_service_is_removed(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    store.save(replace(JOB, state="running"))
    assert store._lock is not None
    store._lock.release()  # as the system does
    assert JobStore(tmp_path).load()
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"id": "x"}', json.dumps({**encode(JOB), "id": "other", "state": "done", "owner": ""})]
)
def test_files_that_are_no_jobs_are_skipped_and_left(tmp_path: Path, text: str) -> None:
    (tmp_path / "ab12.json").write_text(text)
    assert JobStore(tmp_path).load() == []
    assert (tmp_path / "ab12.json").read_text() == text


def test_an_owner_with_a_path_opens_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (tmp_path / "secret.lock").write_text("mine")
    (folder / "ab12.json").write_text(json.dumps({**encode(JOB), "owner": "../secret"}))
    assert [job.id for job in JobStore(folder).load()] == ["ab12"]
    assert (tmp_path / "secret.lock").read_text() == "mine"


def test_removing_a_job_removes_its_log(tmp_path: Path) -> None:
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


def test_a_log_keeps_its_last_lines_whole_and_says_that_others_were_dropped(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "a.log")
    for number in range(5000):
        log.append(f"{number:08} {'x' * 120}\n")
    first, *lines = log.read().splitlines()
    assert first == "[the older part was dropped]"
    assert lines[-1].startswith("00004999 ")
    assert all(len(line) == 129 for line in lines)
    assert (tmp_path / "a.log").stat().st_size <= MAX_LOG_BYTES + 200
    assert len(lines) > 900


def test_a_log_contains_no_terminal_control_sequences(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "a.log")
    log.append("red\x1b[31m\x9b2J\u202e\n")
    assert log.read() == "red[31m2J\n"


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert JobLog(tmp_path / "a.log").read() == ""


def test_a_job_that_a_killed_service_was_writing_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    running = partial_files(folder, "1a2b3c4d.json")
    JobStore(folder).load()
    assert list(folder.iterdir()) == [running]
