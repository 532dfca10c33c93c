"""A worker that dies in mid-answer is an error in the form of each dialect."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.app.running import RunningService

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")]

ENDLESS = "<noise>3000</noise>"  # takes seconds: a step of 5 ms for each letter
MESSAGES = [{"role": "user", "content": ENDLESS}]


def _last_line(text: str) -> Any:
    return json.loads(text.strip().splitlines()[-1].removeprefix("data: "))


@pytest.fixture(scope="module")
def own(start_service: Callable[..., RunningService]) -> RunningService:
    return start_service()


@pytest.mark.parametrize(
    ("path", "body", "is_error"),
    [
        ("/v1/completions", {"prompt": ENDLESS}, lambda last: last["error"]["code"] == "engine_error"),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 400}, lambda last: last["error"]["type"] == "api_error"),
        ("/v1/responses", {"input": ENDLESS}, lambda last: last["type"] == "response.failed"),
        ("/api/chat", {"messages": MESSAGES}, lambda last: isinstance(last["error"], str)),
        ("/completion", {"prompt": ENDLESS}, lambda last: last["error"]["code"] == 500),
    ],
)
def test_a_worker_that_dies_in_mid_answer_is_an_error(
    own: RunningService, path: str, body: dict[str, Any], is_error: Callable[[Any], bool]
) -> None:
    text = ""
    with own.http.stream("POST", path, json=body | {"stream": True}) as response:
        for chunk in response.iter_text():
            if not text:
                os.kill(own.model()["worker_pid"], signal.SIGKILL)
            text += chunk
    assert is_error(_last_line(text))
    assert own.http.post("/completion", json={"prompt": "<say>well</say>"}).json()["content"] == "well"
