from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.app.running import RunningService


@pytest.fixture
def _at(service: RunningService, monkeypatch: pytest.MonkeyPatch, home: object) -> None:
    monkeypatch.setenv("LOCALLLM_PORT", service.url.rpartition(":")[2])


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


@pytest.mark.usefixtures("home")
def test_without_a_service_ps_says_so(localllm: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_PORT", "1")
    ran = localllm("ps")
    assert ran.status == 1
    assert "localllm serve" in ran.err
