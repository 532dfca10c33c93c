from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.app.running import RunningService


@pytest.fixture
def _at(service: RunningService, monkeypatch: pytest.MonkeyPatch, home: object) -> None:
    monkeypatch.setenv("LOCALLLM_PORT", service.url.rpartition(":")[2])


def start(service: RunningService, reference: str) -> str:
    body = {"kind": "pull", "arguments": {"reference": reference}}
    return str(service.http.post("/api/localllm/jobs", json=body).json()["id"])


@pytest.mark.usefixtures("_at")
def test_a_job_is_listed_watched_and_tried_again(service: RunningService, localllm: Callable) -> None:
    job_id = start(service, "no-such-name")
    watched = localllm("jobs", "watch", job_id)
    assert watched.status == 2
    assert "Fetch no-such-name" in watched.out
    assert "The catalogue has no model 'no-such-name'" in watched.err
    listed = [job for job in localllm("jobs", "list", "--json").json if job["id"] == job_id]
    assert [(job["state"], job["error"]["kind"]) for job in listed] == [("failed", "UsageError")]
    assert f"{job_id}  failed  Fetch no-such-name" in localllm("jobs", "list").out
    assert "localllm pull" in localllm("jobs", "log", job_id).out
    assert localllm("jobs", "retry", job_id, "--json").json["state"] == "queued"
    states = [json.loads(line)["state"] for line in localllm("jobs", "watch", job_id, "--json").out.splitlines()]
    assert states[-1] == "failed"
    assert localllm("jobs", "cancel", job_id, "--json").json["state"] == "failed", "what has ended stays as it is"


@pytest.mark.usefixtures("_at")
def test_an_unknown_job_is_an_error(localllm: Callable) -> None:
    ran = localllm("jobs", "retry", "nothing")
    assert (ran.status, ran.out) == (1, "")
    assert "There is no job 'nothing'." in ran.err


def test_without_a_service_it_is_an_error(localllm: Callable) -> None:
    ran = localllm("jobs", "list")
    assert ran.status == 1
    assert "localllm serve" in ran.err
