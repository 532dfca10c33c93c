"""The requests of LM Studio's documentation of its REST API, version 0.4."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.service.api.lmstudio.model_routes import _reasoning
from tests.app.running import RunningService

CHAT = {"model": "tiny", "input": "<say>It snows.</say>"}


@pytest.fixture(scope="module")
def own(start_service: Callable[..., RunningService]) -> RunningService:
    return start_service()


def _events(text: str) -> list[dict[str, Any]]:
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_models_are_listed_with_their_instances(service: RunningService) -> None:
    listed = service.http.get("/api/v1/models").json()["models"]
    (entry,) = [entry for entry in listed if entry["key"] == "tiny"]
    assert (entry["type"], entry["architecture"], entry["format"]) == ("llm", "llama", "gguf")
    assert set(entry["quantization"]) == {"name", "bits_per_weight"}
    (instance,) = entry["loaded_instances"]
    assert (instance["id"], instance["config"]["context_length"]) == ("tiny", 4096)
    assert entry["capabilities"] == {"vision": False, "trained_for_tool_use": False}
    assert entry["max_context_length"] == 128


def test_a_chat_goes_on_by_the_id_of_its_last_response(service: RunningService) -> None:
    first = service.http.post("/api/v1/chat", json={**CHAT, "system_prompt": "Be brief.", "temperature": 0}).json()
    assert first["model_instance_id"] == "tiny"
    assert first["output"] == [{"type": "message", "content": "It snows."}]
    assert first["response_id"].startswith("resp_")
    assert set(first["stats"]) == {
        "input_tokens",
        "total_output_tokens",
        "reasoning_output_tokens",
        "tokens_per_second",
        "time_to_first_token_seconds",
    }
    again = {"model": "tiny", "input": "<say>Still.</say>", "previous_response_id": first["response_id"]}
    second = service.http.post("/api/v1/chat", json=again).json()
    assert second["output"] == [{"type": "message", "content": "Still."}]
    assert second["stats"]["input_tokens"] > first["stats"]["input_tokens"] + first["stats"]["total_output_tokens"]
    assert service.http.get(f"/v1/responses/{second['response_id']}").json()["status"] == "completed"


def test_a_chat_that_is_not_stored_has_no_id(service: RunningService) -> None:
    assert "response_id" not in service.http.post("/api/v1/chat", json={**CHAT, "store": False}).json()
    unknown = service.http.post("/api/v1/chat", json={**CHAT, "previous_response_id": "resp_none"})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (400, "invalid_request")


def test_a_stream_has_the_events_of_the_documentation_in_their_order(service: RunningService) -> None:
    response = service.http.post("/api/v1/chat", json={**CHAT, "stream": True})
    events = _events(response.text)
    kinds = [event["type"] for event in events]
    assert kinds[:4] == ["chat.start", "prompt_processing.start", "prompt_processing.end", "message.start"]
    assert kinds[-2:] == ["message.end", "chat.end"]
    assert set(kinds[4:-2]) == {"message.delta"}
    text = "".join(event["content"] for event in events if event["type"] == "message.delta")
    assert events[-1]["result"]["output"] == [{"type": "message", "content": text}]
    assert text == "It snows."


def test_a_model_that_is_not_loaded_is_loaded_with_the_context_that_is_wanted(own: RunningService) -> None:
    wanted = {**CHAT, "stream": True, "context_length": 8000}
    events = _events(own.http.post("/api/v1/chat", json=wanted).text)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["chat.start", "model_load.start"]
    assert kinds.index("model_load.end") < kinds.index("prompt_processing.start")
    assert events[-1]["result"]["stats"]["model_load_time_seconds"] >= 0
    loaded = own.http.get("/api/v0/models/tiny").json()["loaded_context_length"]
    assert loaded >= 8000
    again = _events(own.http.post("/api/v1/chat", json=wanted).text)
    assert "model_load.start" not in {event["type"] for event in again}


def test_a_model_is_loaded_with_options_and_unloaded(own: RunningService) -> None:
    body = {"model": "tiny", "context_length": 2048, "flash_attention": True, "echo_load_config": True}
    response = own.http.post("/api/v1/models/load", json=body)
    loaded = response.json()
    assert (loaded["type"], loaded["instance_id"], loaded["status"]) == ("llm", "tiny", "loaded")
    assert loaded["load_config"]["context_length"] == 2048
    assert loaded["warnings"] == ["localllm ignores flash_attention."]
    assert own.http.post("/api/v1/models/unload", json={"instance_id": "tiny"}).json() == {"instance_id": "tiny"}
    listed = own.http.get("/api/v1/models").json()["models"]
    assert [entry["loaded_instances"] for entry in listed if entry["key"] == "tiny"] == [[]]
    again = own.http.post("/api/v1/models/unload", json={"instance_id": "tiny"})
    assert (again.status_code, again.json()["error"]["type"]) == (404, "model_not_found")
    own.http.post("/api/v1/models/load", json={"model": "tiny"})
    assert own.http.get("/api/v0/models/tiny").json()["loaded_context_length"] == 4096


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("chat", {"model": "coder:missing", "input": "hi"}, 404, "model_not_found"),
        ("chat", {"input": "hi"}, 400, "invalid_request"),
        ("chat", {"model": "tiny", "input": []}, 400, "invalid_request"),
        ("chat", {**CHAT, "temperature": -3}, 400, "invalid_request"),
        ("chat", {**CHAT, "integrations": ["mcp/playwright"]}, 501, "not_implemented"),
        ("models/load", {"model": "coder:missing"}, 404, "model_not_found"),
        ("models/load", {"model": "tiny", "context_length": 0}, 400, "invalid_request"),
        ("models/unload", {"instance_id": "coder:missing"}, 404, "model_not_found"),
        ("models/download", {"model": ""}, 400, "invalid_request"),
        ("models/download", {"model": "org/\0"}, 400, "invalid_request"),
    ],
)
def test_errors_have_lm_studios_form(
    service: RunningService, path: str, body: dict[str, Any], status: int, kind: str
) -> None:
    response = service.http.post(f"/api/v1/{path}", json=body)
    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
    assert set(response.json()["error"]) == {"type", "message", "code"}


def test_an_error_of_a_stream_is_an_event(service: RunningService) -> None:
    events = _events(
        service.http.post("/api/v1/chat", json={"model": "tiny", "input": "refuse me", "stream": True}).text
    )
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "invalid_request"


def test_a_client_that_goes_away_ends_its_answer(service: RunningService) -> None:
    body = {"model": "tiny", "input": "/api/v1/chat<noise>400</noise>", "stream": True}
    with service.http.stream("POST", "/api/v1/chat", json=body) as response:
        lines = response.iter_lines()
        while '"message.delta"' not in next(lines):
            pass
        assert service.model()["n_running"] == 1
    service.wait_until(lambda model: model["n_running"] == 0)


def test_the_status_of_a_download_is_that_of_its_job(service: RunningService) -> None:
    job = service.http.post("/api/v1/models/download", json={"model": "https://huggingface.co/org/nothing-here"})
    assert job.json()["status"] == "downloading"
    job_id = job.json()["job_id"]
    assert job_id.startswith("job_")
    found = service.http.get(f"/api/v1/models/download/status/{job_id}").json()
    assert found["job_id"] == job_id
    assert found["status"] in {"downloading", "failed"}
    assert found["started_at"].endswith("Z")
    service.http.post(f"/api/localllm/jobs/{job_id.removeprefix('job_')}/cancel")
    assert service.http.post("/api/v1/models/download", json={"model": "tiny"}).json() == {
        "status": "already_downloaded"
    }
    missing = service.http.get("/api/v1/models/download/status/job_none")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "job_not_found")


@pytest.mark.parametrize(
    ("template", "options", "default"),
    [
        ("<think></think>", ["off", "on"], "on"),
        ("{% if enable_thinking %}<think>{% endif %}</think>", ["off", "on"], "on"),
        ("{% if reasoning_effort %}<think>{% endif %}</think>", ["off", "low", "medium", "high"], "medium"),
    ],
)
def test_reasoning_can_be_turned_off_and_has_the_levels_that_the_template_knows(
    template: str, options: list[str], default: str
) -> None:
    assert _reasoning(template) == {"allowed_options": options, "default": default}
