"""Whatever the dialect: who goes away leaves no work behind."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from running import RunningService

ENDLESS = f"<say>{'word ' * 600}</say>"
MESSAGES = [{"role": "user", "content": ENDLESS}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": ENDLESS},
    "/v1/messages": {"messages": MESSAGES},
    "/v1/responses": {"input": ENDLESS},
    "/api/chat": {"messages": MESSAGES},
    "/api/v0/chat/completions": {"messages": MESSAGES},
    "/completion": {"prompt": ENDLESS},
    "/api/generate": {"prompt": ENDLESS, "raw": True},
}


@pytest.mark.parametrize("path", REQUESTS)
def test_a_client_that_leaves_a_stream_frees_its_place_within_a_quarter_second(
    service: RunningService, path: str
) -> None:
    with service.http.stream("POST", path, json=REQUESTS[path] | {"stream": True}) as response:
        lines = response.iter_lines()  # held, for httpx closes the answer with its iterator
        next(lines)
        assert service.model()["n_running"] == 1
    assert service.wait_until(lambda model: model["n_running"] == 0) < 0.25


@pytest.mark.parametrize("path", REQUESTS)
def test_a_client_that_does_not_wait_for_a_whole_answer_does_so_too(service: RunningService, path: str) -> None:
    with pytest.raises(httpx.ReadTimeout):
        service.http.post(path, json=REQUESTS[path] | {"stream": False}, timeout=0.2)
    assert service.wait_until(lambda model: model["n_running"] == 0) < 0.25
