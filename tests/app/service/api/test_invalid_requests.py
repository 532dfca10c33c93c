"""Invalid requests are refused in the form of each dialect, and nothing breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.app.running import RunningService

REFUSED: dict[str, bytes] = {
    "nothing": b"",
    "no object": b"[]",
    "no JSON": b"{",
    "two objects": b"{}{}",
    "no number": b'{"temperature":NaN,"messages":[],"prompt":"x"}',
    "infinite": b'{"temperature":-Infinity}',
    "too large a number": b'{"temperature":1e999}',
    "half a pair": b'{"model":"\\ud800"}',
    "half a key": b'{"\\udfff":1}',
    "no UTF-8": b'{"model":"\xff"}',
    "deep lists": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "many parts": b'{"a":[' + b"{}," * 1_100_000 + b"{}]}",
    "a name that is a number": b'{"model":5,"name":5}',
}


def _openai(body: Any) -> str:
    return str(body["error"]["message"])


SHAPES: dict[str, Callable[[Any], str]] = {
    "/v1/chat/completions": _openai,
    "/v1/completions": _openai,
    "/v1/fim/completions": _openai,
    "/v1/responses": _openai,
    "/v1/embeddings": _openai,
    "/api/v0/chat/completions": _openai,
    "/v1/messages": lambda body: str(body["error"]["message"]) if body["type"] == "error" else "",
    "/v1/messages/count_tokens": lambda body: str(body["error"]["message"]) if body["type"] == "error" else "",
    "/api/chat": lambda body: body["error"] if isinstance(body["error"], str) else "",
    "/api/generate": lambda body: body["error"] if isinstance(body["error"], str) else "",
    "/api/embed": lambda body: body["error"] if isinstance(body["error"], str) else "",
    "/api/show": lambda body: body["error"] if isinstance(body["error"], str) else "",
    "/completion": lambda body: str(body["error"]["message"]) if body["error"]["code"] == 400 else "",
    "/infill": lambda body: str(body["error"]["message"]) if body["error"]["code"] == 400 else "",
    "/tokenize": lambda body: str(body["error"]["message"]) if body["error"]["code"] == 400 else "",
}


@pytest.mark.parametrize("path", SHAPES)
@pytest.mark.parametrize("case", REFUSED)
def test_invalid_requests_are_refused_in_the_dialects_form(service: RunningService, path: str, case: str) -> None:
    response = service.http.post(path, content=REFUSED[case])
    assert response.status_code == 400
    assert SHAPES[path](response.json())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 10**9}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 10**12}),
        ("/v1/responses", {"input": "x", "max_output_tokens": -(10**30)}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x"}], "options": {"num_keep": 10**12}}),
        ("/completion", {"prompt": "x", "n_probs": 10**9}),
        ("/completion", {"prompt": "x", "t_max_predict_ms": -(10**9)}),
        ("/infill", {"input_prefix": "x", "n_indent": 10**9}),
        ("/v1/embeddings", {"input": ["x"] * 3000}),
    ],
)
def test_numbers_beyond_reason_are_refused(service: RunningService, path: str, body: dict[str, Any]) -> None:
    assert service.http.post(path, json=body).status_code == 400
