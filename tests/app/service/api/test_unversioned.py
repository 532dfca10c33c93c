"""The routes that llama-server has without /v1 too; clients that are given no path ask there.

Source of the addresses: llama.cpp's tools/server/server.cpp (2026), and @continuedev/openai-adapters 1.x, whose
providers `llama.cpp` and `lmstudio` have the addresses http://localhost:8000/ and http://localhost:1234/.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.app.running import RunningService

CHAT = {"messages": [{"role": "user", "content": "<say>yes</say>"}], "temperature": 0}
SAME: dict[str, dict[str, Any]] = {
    "/chat/completions": CHAT,
    "/fim/completions": {"prompt": "a", "suffix": "b", "max_tokens": 2},
    "/responses": {"input": "<say>yes</say>", "temperature": 0},
    "/embeddings": {"input": "hello", "model": "tiny"},
    "/chat/completions/input_tokens": CHAT,
    "/responses/input_tokens": {"input": "hello"},
    "/rerank": {"query": "a", "texts": ["b"]},
    "/reranking": {"query": "a", "documents": ["b"]},
}
ONCE = ("id", "created", "created_at", "completed_at", "timings", "output")


def _lasting(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in ONCE}


@pytest.mark.parametrize("path", SAME)
def test_a_route_is_the_same_without_a_version(service: RunningService, path: str) -> None:
    with_version = service.http.post(f"/v1{path}", json=SAME[path])
    without = service.http.post(path, json=SAME[path])
    assert without.status_code == with_version.status_code
    assert _lasting(without.json()).keys() == _lasting(with_version.json()).keys()


def test_continues_chat_streams_from_the_address_alone(service: RunningService) -> None:
    """What Continue's adapter 1.x sends to http://localhost:1234/chat/completions."""
    body = CHAT | {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 9}
    response = service.http.post("/chat/completions", json=body)
    *parts, done = [part.removeprefix("data: ") for part in response.text.strip().split("\n\n")]
    chunks = [json.loads(part) for part in parts]
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1]) == "yes"
    assert chunks[-1]["usage"]["completion_tokens"]


def test_the_tokens_of_a_chats_prompt_are_counted(service: RunningService) -> None:
    whole = service.http.post("/chat/completions", json=CHAT).json()
    counted = service.http.post("/chat/completions/input_tokens", json=CHAT).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": whole["usage"]["prompt_tokens"]}


def test_ranking_needs_documents(service: RunningService) -> None:
    response = service.http.post("/reranking", json={"query": "a"})
    assert response.status_code == 400
    assert "no documents" in response.json()["error"]["message"]


def test_completions_stay_llama_servers_own(service: RunningService) -> None:
    answer = service.http.post("/completions", json={"prompt": "a", "n_predict": 1}).json()
    assert "content" in answer
    assert "choices" not in answer


def test_embeddings_come_in_the_form_of_the_body(service: RunningService) -> None:
    """Continue's adapter 1.x sends OpenAI's body to /embeddings, scripts for llama-server send `content`."""
    openai = service.http.post("/embeddings", json={"model": "tiny", "input": ["hello", "you"]}).json()
    vector = openai["data"][0]["embedding"]
    for path in ("/embeddings", "/embedding"):
        one = service.http.post(path, json={"content": "hello"}).json()
        assert one == [{"index": 0, "embedding": [pytest.approx(vector)]}]
    several = service.http.post("/embedding", json={"input": ["you", list(b"hello")]}).json()
    assert [entry["index"] for entry in several] == [0, 1]
    assert several[1]["embedding"] == [pytest.approx(vector)]


@pytest.mark.parametrize(
    ("norm", "size"),
    [
        (0, lambda vector: max(map(abs, vector)) / 32760),
        (1, lambda vector: sum(map(abs, vector))),
        (2, lambda vector: sum(value**2 for value in vector) ** 0.5),
        (3, lambda vector: sum(abs(value) ** 3 for value in vector) ** (1 / 3)),
    ],
)
def test_a_vector_is_divided_by_the_norm_that_is_asked_for(service: RunningService, norm: int, size: Any) -> None:
    (entry,) = service.http.post("/embedding", json={"content": "hello", "embd_normalize": norm}).json()
    assert size(entry["embedding"][0]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("body", "word"),
    [({}, "content"), ({"content": []}, "content"), ({"content": "a", "embd_normalize": -1}, "embd_normalize")],
)
def test_a_bad_body_is_refused_in_llama_servers_form(service: RunningService, body: dict[str, Any], word: str) -> None:
    response = service.http.post("/embedding", json=body)
    assert response.status_code == response.json()["error"]["code"] == 400
    assert word in response.json()["error"]["message"]
