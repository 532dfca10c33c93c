"""What another user of this machine can do with a service that listens on loopback: a process of that user asks it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import httpx
import pytest

from tests.app.running import RunningService
from tests.patience import PATIENCE_S

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux says whose a connection is"),
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user"),
]
_NOBODY = 65534
QUESTION = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


@contextmanager
def _asking_as_another(url: str, headers: Mapping[str, str]) -> Iterator[httpx.Client]:
    """Yield a client whose connections are another user's: a socket is of the user who opens it."""
    os.seteuid(_NOBODY)
    try:
        with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=PATIENCE_S) as http:
            yield http
    finally:
        os.seteuid(0)


@pytest.fixture(scope="module")
def roots_service(start_service: Callable[..., RunningService]) -> RunningService:
    return start_service()


def test_without_a_key_another_user_gets_nothing_and_changes_nothing(roots_service: RunningService) -> None:
    n_before = roots_service.n_output_tokens()
    with _asking_as_another(roots_service.url, {}) as http:
        refused = [http.get(path) for path in ("/v1/models", "/api/localllm/status", "/slots", "/v1/files", "/metrics")]
        refused += [http.post(path, json=QUESTION) for path in ("/v1/chat/completions", "/v1/messages", "/api/chat")]
        refused += [
            http.post("/api/localllm/jobs", json={}),
            http.request("DELETE", "/api/delete", json={"model": "x"}),
        ]
        open_to_all = http.get("/health")
    assert {reply.status_code for reply in refused} == {403}
    assert all("own user only" in reply.text and "LOCALLLM_API_KEY" in reply.text for reply in refused)
    assert open_to_all.json() == {"status": "ok"}
    assert roots_service.n_output_tokens() == n_before
    assert roots_service.http.post("/v1/chat/completions", json=QUESTION).status_code == 200


@pytest.mark.slow
def test_with_a_key_another_user_is_let_in_as_its_holder_and_not_without(
    start_service: Callable[..., RunningService],
) -> None:
    keyed = start_service(api_key="sesame")
    for headers, status in (({}, 401), ({"authorization": "Bearer guess"}, 401), ({"x-api-key": "sesame"}, 200)):
        with _asking_as_another(keyed.url, headers) as http:
            assert http.get("/v1/models").status_code == status
            assert http.post("/v1/chat/completions", json=QUESTION).status_code == status
