"""A client that disconnects leaves no work behind, in any dialect."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.app.running import RunningService

N_TOKENS = 3000


def _endless(path: str) -> str:
    """Return a prompt whose answer takes seconds, a step of 5 ms for each letter, and differs from all others."""
    return f"{path}<noise>{N_TOKENS}</noise>"


def _messages(path: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": _endless(path)}]


REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _messages("/v1/chat/completions")},
    "/v1/completions": {"prompt": _endless("/v1/completions")},
    "/v1/messages": {"messages": _messages("/v1/messages"), "max_tokens": N_TOKENS},
    "/v1/responses": {"input": _endless("/v1/responses")},
    "/api/chat": {"messages": _messages("/api/chat")},
    "/api/v0/chat/completions": {"messages": _messages("/api/v0/chat/completions")},
    "/completion": {"prompt": _endless("/completion")},
    "/api/generate": {"prompt": _endless("/api/generate"), "raw": True},
}


@pytest.mark.parametrize("path", REQUESTS)
def test_a_client_that_disconnects_frees_its_slot(service: RunningService, path: str) -> None:
    n_before = service.n_output_tokens()
    with service.http.stream("POST", path, json=REQUESTS[path] | {"stream": True}) as response:
        lines = response.iter_lines()  # held, for httpx closes the answer with its iterator
        next(lines)
        assert service.model()["n_running"] == 1
    service.wait_until_cut(n_before, N_TOKENS)


@pytest.mark.parametrize("path", REQUESTS)
def test_a_client_that_does_not_wait_for_a_whole_answer_does_so_too(service: RunningService, path: str) -> None:
    n_before = service.n_output_tokens()
    with pytest.raises(httpx.ReadTimeout):
        service.http.post(path, json=REQUESTS[path] | {"stream": False}, timeout=0.2)
    service.wait_until_cut(n_before, N_TOKENS)
