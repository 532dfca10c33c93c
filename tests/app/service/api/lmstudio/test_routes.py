from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.app.running import RunningService

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


def test_models_are_listed_with_their_facts_and_state(service: RunningService) -> None:
    listed = service.http.get("/api/v0/models").json()["data"]
    (entry,) = [entry for entry in listed if entry["id"] == "tiny"]
    assert entry == service.http.get("/api/v0/models/tiny").json()
    assert (entry["type"], entry["arch"], entry["state"]) == ("llm", "llama", "loaded")
    assert (entry["max_context_length"], entry["loaded_context_length"]) == (128, 4096)
    assert entry["capabilities"] == ["tool_use"]


def test_chat_and_completions_are_openais(service: RunningService) -> None:
    response = service.http.post("/api/v0/chat/completions", json=CHAT | {"stream": True})
    *events, done = response.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    for event in events:
        assert event.startswith("data: ")
        chunk = json.loads(event.removeprefix("data: "))
        assert isinstance(chunk["created"], int)
        assert {"index", "delta"} <= set(chunk["choices"][0])
    completion = service.http.post("/api/v0/completions", json={"prompt": "hello", "max_tokens": 5}).json()
    assert completion["object"] == "text_completion"
    assert len(service.http.post("/api/v0/embeddings", json={"input": "a"}).json()["data"][0]["embedding"]) == 8


def test_errors_are_openais_too(service: RunningService) -> None:
    for path in ("/api/v0/models/nope", "/api/v0/nope"):
        response = service.http.get(path)
        assert response.status_code == 404
        assert response.json()["error"]["message"]


@pytest.fixture(scope="module")
def own(start_service: Callable[..., RunningService]) -> RunningService:
    return start_service()


@pytest.mark.parametrize("path", ["/api/v0/chat/completions", "/v1/chat/completions"])
def test_a_model_stays_for_the_ttl_of_a_request(own: RunningService, path: str) -> None:
    assert own.http.post(path, json=CHAT | {"ttl": 300}).status_code == 200
    assert _state(own) == "loaded"
    assert own.http.post(path, json=CHAT | {"ttl": 0}).status_code == 200
    own.wait_until(lambda model: model["state"] == "unloaded")
    assert _state(own) == "not-loaded"
    assert own.http.post("/v1/embeddings", json={"input": "a", "ttl": 300}).status_code == 200
    assert _state(own) == "loaded"
    for strange in (-1, "x", 10**30):
        assert own.http.post(path, json=CHAT | {"ttl": strange}).status_code == 400


def _state(service: RunningService) -> str:
    return str(service.http.get("/api/v0/models/tiny").json()["state"])


@pytest.mark.slow
def test_a_whole_answer_has_the_statistics_of_lm_studio(service: RunningService) -> None:
    """The fields of the documentation of REST API v0; Zed reads such answers with strict types."""
    chat = service.http.post("/api/v0/chat/completions", json=CHAT).json()
    assert set(chat["stats"]) == {"tokens_per_second", "time_to_first_token", "generation_time", "stop_reason"}
    assert chat["stats"]["stop_reason"] == "maxPredictedTokensReached"
    assert chat["model_info"] == {"arch": "llama", "quant": "", "format": "gguf", "context_length": 4096}
    assert chat["runtime"]["supported_formats"] == ["gguf"]
    text = service.http.post("/api/v0/completions", json={"prompt": "<say>a</say>"}).json()
    assert text["stats"]["stop_reason"] == "eosFound"
