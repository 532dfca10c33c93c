from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.protocol.status import Occupancy, ServiceStatus
from tests.app.cli.in_process import run_localllm
from tests.app.client.scripted_client import READY
from tests.app.running import RunningService
from tests.tui.plans import split_plan


def test_advice_is_no_part_of_the_settings() -> None:
    done = run_localllm(os.environ, "serve", "--editor", "claude-code", "--model", "coder")
    assert done.stdout.endswith("CLAUDE_CODE_MAX_CONTEXT_TOKENS=65536 claude\n")
    assert "serve with --ctx 65536" in done.stderr


def test_they_are_printed_and_nothing_is_served() -> None:
    done = run_localllm(os.environ, "serve", "--editor", "aider", "--port", "1234", "--model", "coder")
    assert done.returncode == 0
    assert done.stdout == "OLLAMA_API_BASE=http://127.0.0.1:1234 aider --model ollama_chat/coder\n"


@pytest.fixture
def _at(service: RunningService, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, home: object) -> None:
    monkeypatch.setenv("LOCALLLM_PORT", service.url.rpartition(":")[2])
    monkeypatch.setenv("LOCALLLM_DATA_DIR", environment["LOCALLLM_DATA_DIR"])


@pytest.mark.usefixtures("_at")
def test_the_models_of_a_running_service_are_listed_with_their_settings(
    service: RunningService, localllm: Callable
) -> None:
    service.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    (model, *_) = localllm("ps", "--json").json
    assert model["state"] == "ready"
    drafts = next(setting for setting in model["settings"] if setting["name"] == "drafts")
    assert "prompt lookup" in drafts["value"]
    shown = localllm("ps").out
    assert f"{model['id']}  ready, {model['n_ctx']:,} tokens of context" in shown
    assert "  drafts prompt lookup" in shown


def test_ps_says_how_much_memory_chats_hold_that_left_the_cache(
    localllm: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = replace(
        READY,
        plan=replace(split_plan("fits", 0, 4), saved_chats_bytes=3 << 30),
        occupancy=Occupancy(0, 0, 0, 2048, saved_bytes=200 << 20),
    )
    found = ServiceStatus(version="1", default_model=held.id, models=(held,))
    monkeypatch.setattr("app.cli.verbs.service.ask_service", lambda _ask: found)
    (line,) = [line for line in localllm("ps").out.splitlines() if "chats" in line]
    assert line.split(maxsplit=5)[5] == "210 MB, at most 3.22 GB"


@pytest.mark.usefixtures("home")
def test_without_a_service_ps_says_so(localllm: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_PORT", "1")
    ran = localllm("ps")
    assert ran.status == 1
    assert "localllm serve" in ran.err


def test_the_key_of_this_machine_stays_the_same(localllm: Callable[..., Any]) -> None:
    first = localllm("key")
    assert first.status == 0
    assert first.out.startswith("llm-")
    assert localllm("key").out == first.out
    (listed,) = localllm("key", "list", "--json").json["keys"]
    assert (listed["key"], listed["scopes"]) == (first.out.strip(), ["infer", "manage"])


def test_a_key_is_made_listed_without_itself_and_removed(localllm: Callable[..., Any]) -> None:
    made = localllm("key", "new", "laptop", "--json").json
    assert made["scopes"] == ["infer"]
    listed = localllm("key", "list").out
    assert "laptop  infer" in listed
    assert made["key"] not in listed
    assert localllm("key", "remove", "laptop", "--json").json == {"removed": "laptop"}
    assert localllm("key", "list", "--json").json == {"keys": []}


def test_scopes_are_chosen(localllm: Callable[..., Any]) -> None:
    assert localllm("key", "new", "a", "--scope", "manage", "--json").json["scopes"] == ["manage"]
    both = localllm("key", "new", "b", "--scope", "manage", "--scope", "infer", "--json").json
    assert both["scopes"] == ["infer", "manage"]


@pytest.mark.parametrize(
    "arguments", [("new", ""), ("new", "a\x1b[2J"), ("new", "a" * 65), ("new", "a", "--scope", "all"), ("remove", "a")]
)
def test_wrong_use_is_an_error(localllm: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    ended = localllm("key", *arguments)
    assert ended.status == 2
    assert "\x1b" not in ended.err


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
