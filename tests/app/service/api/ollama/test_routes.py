from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx
import pytest

from tests.app.running import RunningService

OPTIONS = {"temperature": 0, "num_predict": 6}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "options": OPTIONS}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Åre"}}\n</tool_call>'
OTHER_CALL = CALL.replace("Åre", "Oslo")


def _lines(response: httpx.Response) -> list[dict[str, Any]]:
    """Every line of an answer, the last one whole too."""
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    lines = response.text.splitlines()
    assert all(lines), "a blank line breaks clients"
    return [json.loads(line) for line in lines]


def _refusal(service: RunningService, path: str, body: dict[str, Any] | bytes, status: int = 400) -> str:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = service.http.post(path, content=content)
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    return str(response.json()["error"])


def test_the_root_answers_as_ollama(service: RunningService) -> None:
    assert service.http.get("/").text == "Ollama is running"
    assert service.http.head("/").status_code == 200
    version = service.http.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)


def test_an_answer_streams_by_default(service: RunningService) -> None:
    *texts, end = _lines(service.http.post("/api/chat", json=CHAT))
    whole = service.http.post("/api/chat", json=CHAT | {"stream": False}).json()
    assert "".join(frame["message"]["content"] for frame in texts) == whole["message"]["content"]
    assert {frame["done"] for frame in texts} == {False}
    assert all(set(frame) == {"model", "created_at", "message", "done"} for frame in texts)
    assert end["done"] is whole["done"] is True
    assert end["message"] == {"role": "assistant", "content": ""}
    assert end["done_reason"] == whole["done_reason"] == "length"


def test_the_cost_of_an_answer_is_in_nanoseconds(service: RunningService) -> None:
    end = service.http.post("/api/chat", json=CHAT | {"stream": False}).json()
    assert end["eval_count"] == 6
    assert end["prompt_eval_count"] == len("<user>hello\n<assistant>")
    durations = [end[f"{name}_duration"] for name in ("total", "load", "prompt_eval", "eval")]
    assert all(isinstance(duration, int) for duration in durations)
    assert durations[0] >= durations[2] + durations[3] > 5_000_000, "the fake engine takes 5 ms a step"


def test_a_request_without_content_type_is_served(service: RunningService) -> None:
    request = service.http.build_request("POST", "/api/chat", content=json.dumps(CHAT).encode())
    assert "content-type" not in request.headers
    assert service.http.send(request).status_code == 200


def test_calls_come_whole_with_their_arguments_as_an_object_an_id_and_an_index(service: RunningService) -> None:
    """Source of the form: Ollama 0.33, api/types.go, ToolCall; ollama-python 0.6 and Go's client read it."""
    messages = [{"role": "user", "content": f"<say>One moment.{CALL}{OTHER_CALL}</say>"}]
    body = {"model": "tiny", "messages": messages, "tools": [TOOL]}
    *texts, calls, end = _lines(service.http.post("/api/chat", json=body))
    cities = enumerate(("Åre", "Oslo"))
    functions = [{"index": index, "name": "get_weather", "arguments": {"city": city}} for index, city in cities]
    assert "".join(frame["message"]["content"] for frame in texts) == "One moment."
    assert {**calls["message"], "tool_calls": None} == {"role": "assistant", "content": "", "tool_calls": None}
    assert [call["function"] for call in calls["message"]["tool_calls"]] == functions
    assert len({call["id"] for call in calls["message"]["tool_calls"]} - {""}) == 2
    assert end["done_reason"] == "stop"
    whole = service.http.post("/api/chat", json=body | {"stream": False}).json()
    assert whole["message"]["content"] == "One moment."
    assert [call["function"] for call in whole["message"]["tool_calls"]] == functions
    assert all(call["id"] for call in whole["message"]["tool_calls"])


@pytest.mark.parametrize(
    ("user_agent", "keys"),
    [
        ("Zed/0.211.6 (linux; x86_64)", {"function"}),
        ("Zed/0.213.0 (macos; aarch64)", {"id", "function"}),
        ("Zed/1.2.0 (macos; aarch64)", {"id", "function"}),
        ("ollama-python/0.6.1 (x86_64 linux) Python/3.12.3", {"id", "function"}),
    ],
)
def test_a_zed_that_takes_no_ids_of_calls_gets_none(service: RunningService, user_agent: str, keys: set[str]) -> None:
    """Zed before 0.213 reads a call as an enum with the one key `function` (its crates/ollama)."""
    body = {"messages": [{"role": "user", "content": f"<say>{CALL}</say>"}], "tools": [TOOL]}
    for stream in (True, False):
        response = service.http.post("/api/chat", json=body | {"stream": stream}, headers={"user-agent": user_agent})
        lines = [json.loads(line) for line in response.text.splitlines()]
        (call,) = [call for line in lines for call in line["message"].get("tool_calls", ())]
        assert set(call) == keys


def test_a_call_cut_short_is_left_out_of_an_answer_with_reason_length(service: RunningService) -> None:
    messages = [{"role": "user", "content": f"<say>{CALL}</say>"}]
    options = {"num_predict": len(CALL.encode()) - 15}
    body = {"messages": messages, "tools": [TOOL], "options": options, "stream": False}
    answer = service.http.post("/api/chat", json=body).json()
    assert "tool_calls" not in answer["message"]
    assert answer["done_reason"] == "length"


def test_results_of_calls_and_earlier_calls_are_taken(service: RunningService) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Åre"}}}
    messages = [
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": "<say>It snows.</say>"},
    ]
    answer = service.http.post("/api/chat", json={"messages": messages, "tools": [TOOL], "stream": False}).json()
    assert answer["message"]["content"] == "It snows."


def test_a_begun_answer_is_gone_on_with(service: RunningService) -> None:
    messages = [*CHAT["messages"], {"role": "assistant", "content": "Well"}]
    answer = service.http.post("/api/chat", json=CHAT | {"messages": messages, "stream": False}).json()
    assert answer["prompt_eval_count"] == len("<user>hello\n<assistant>Well")


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_request_without_words_loads_the_model(service: RunningService, path: str) -> None:
    body = {"model": "tiny:latest", "keep_alive": "5m", "tools": [], "format": "", "options": None}
    answer = service.http.post(path, json=body).json()
    assert answer["done_reason"] == "load"
    assert answer["done"] is True


def test_a_prompt_is_answered_and_a_raw_one_continued(service: RunningService) -> None:
    body = {"model": "tiny", "prompt": "hello", "options": OPTIONS, "stream": False}
    answered = service.http.post("/api/generate", json=body | {"system": "Be short."}).json()
    continued = service.http.post("/api/generate", json=body | {"raw": True}).json()
    assert answered["prompt_eval_count"] == len("<system>Be short.\n<user>hello\n<assistant>")
    assert continued["prompt_eval_count"] == len("hello")
    assert len(answered["response"]) == len(continued["response"]) == 6
    *texts, _ = _lines(service.http.post("/api/generate", json=body | {"raw": True, "stream": True}))
    assert "".join(frame["response"] for frame in texts) == continued["response"]


def test_models_are_listed_shown_and_running(service: RunningService) -> None:
    (entry,) = [entry for entry in service.http.get("/api/tags").json()["models"] if entry["name"] == "tiny"]
    shown = service.http.post("/api/show", json={"name": "tiny"}).json()
    (running,) = [entry for entry in service.http.get("/api/ps").json()["models"] if entry["name"] == "tiny"]
    assert len(entry["digest"]) == 64
    assert entry["details"] == shown["details"] == running["details"]
    assert entry["details"]["family"] == "llama"
    assert entry["details"]["context_length"] == 128, "what it was trained with"
    assert entry["capabilities"] == shown["capabilities"]
    assert shown["model_info"]["general.architecture"] == "llama"
    assert shown["model_info"]["llama.context_length"] == running["context_length"] == 4096, "what it was loaded with"
    assert "tools" in shown["capabilities"]
    assert "tools" in shown["template"]
    assert ".Suffix" not in shown["template"], "this model cannot fill in the middle"


# What embedding clients send with a text that may be too long: the fake engine has room for 256 tokens.
LONG = "a" * 300
CUT: dict[str, dict[str, Any]] = {
    "ollama-python 0.6, embed": {"input": LONG, "options": {}},
    "langchain-ollama 1.0": {"input": ["b", LONG], "options": {"num_ctx": 4096}, "keep_alive": None},
    "Continue 1.2": {"input": [LONG, LONG], "truncate": True},
}


@pytest.mark.parametrize("client", CUT)
def test_an_input_that_is_too_long_is_truncated_as_in_ollama_and_that_is_told(
    service: RunningService, client: str
) -> None:
    answer = service.http.post("/api/embed", json={"model": "tiny", **CUT[client]})
    assert answer.status_code == 200, answer.text
    longest = service.http.post("/api/embed", json={"model": "tiny", "input": LONG[:256]}).json()
    assert answer.json()["embeddings"][-1] == pytest.approx(longest["embeddings"][0], abs=1e-6)
    assert len(answer.json()["warnings"]) == 1, "options of a model that writes are not worth a word"
    assert "were truncated" in answer.json()["warnings"][0]
    assert "were truncated" in answer.headers["x-localllm-warning"]
    assert "warnings" not in longest


def test_an_input_that_is_too_long_is_refused_with_truncate_false(service: RunningService) -> None:
    assert "256" in _refusal(service, "/api/embed", {"model": "tiny", "input": ["b", LONG], "truncate": False})
    assert "256" in _refusal(service, "/api/embeddings", {"model": "tiny", "prompt": LONG})


def test_vectors_come_with_their_durations(service: RunningService) -> None:
    answer = service.http.post("/api/embed", json={"model": "tiny", "input": "hello"}).json()
    assert answer["prompt_eval_count"] == 5
    assert 0 <= answer["load_duration"] < answer["total_duration"]


def test_shorter_vectors_are_cut_and_have_length_one_again(service: RunningService) -> None:
    body = {"model": "tiny", "input": "hello"}
    (whole,) = service.http.post("/api/embed", json=body).json()["embeddings"]
    (short,) = service.http.post("/api/embed", json=body | {"dimensions": 3}).json()["embeddings"]
    length = sum(value**2 for value in whole[:3]) ** 0.5
    assert short == pytest.approx([value / length for value in whole[:3]], abs=1e-6)
    assert service.http.post("/api/embed", json=body | {"dimensions": 4096}).json()["embeddings"] == [whole]


def test_embeddings_come_in_both_forms(service: RunningService) -> None:
    many = service.http.post("/api/embed", json={"model": "tiny", "input": ["a", "b"]}).json()
    one = service.http.post("/api/embeddings", json={"model": "tiny", "prompt": "b"}).json()
    assert [len(vector) for vector in many["embeddings"]] == [8, 8]
    assert many["prompt_eval_count"] == 2
    assert one["embedding"] == many["embeddings"][1]
    assert service.http.post("/api/embed", json={"input": []}).json()["embeddings"] == []


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/show", "/api/embed"])
def test_an_unknown_model_is_a_404_in_ollamas_words(service: RunningService, path: str) -> None:
    error = _refusal(service, path, {"model": "nope"}, 404)
    assert error.startswith("model 'nope' not found")
    assert "tiny" in error


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"options": {"temperature": -1}}, "temperature"),
        ({"options": {"num_predict": -3}}, "max_tokens"),
        ({"options": {"num_predict": 10**12}}, "max_tokens"),
        ({"options": {"stop": ["x"] * 65}}, "stop"),
        ({"format": "yaml"}, "yaml"),
        ({"format": {"pattern": "(?=a)"}}, "pattern"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"think": True}, "does not support thinking"),
        ({"think": "very"}, "think"),
        ({"messages": [{"role": "king", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "picture"),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, "template"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "5018 tokens"),
        ({"model": 5}, "model"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_unsupported_requests_are_one_text_under_error(
    service: RunningService, change: dict[str, Any], word: str, stream: bool
) -> None:
    assert word in _refusal(service, "/api/chat", CHAT | change | {"stream": stream})


@pytest.mark.parametrize(
    ("change", "word"),
    [({"images": ["x"]}, "picture"), ({"context": [1]}, "context"), ({"template": "{{ .Prompt }}"}, "template")],
)
def test_fields_that_would_change_the_answer_are_refused(
    service: RunningService, change: dict[str, Any], word: str
) -> None:
    assert word in _refusal(service, "/api/generate", {"prompt": "x"} | change)


def test_a_foreign_page_is_refused_in_the_same_shape(service: RunningService) -> None:
    response = service.http.post("/api/chat", json=CHAT, headers={"origin": "https://evil.example"})
    assert response.status_code == 403
    assert isinstance(response.json()["error"], str)


def test_a_missing_model_is_a_404(service: RunningService) -> None:
    response = service.http.post("/api/push", json={"model": "tiny"})
    assert response.status_code == 501
    assert "not" in response.json()["error"]


@pytest.mark.slow
def test_a_model_stays_for_its_keep_alive_and_is_loaded_again_at_the_next_use(
    start_service: Callable[..., RunningService],
) -> None:
    own = start_service()

    def running() -> list[dict[str, Any]]:
        return list(own.http.get("/api/ps").json()["models"])

    asked_s = time.time()
    own.http.post("/api/chat", json=CHAT | {"keep_alive": "1h", "stream": False})
    (entry,) = running()
    expires_s = datetime.fromisoformat(entry["expires_at"]).timestamp()
    assert asked_s + 3600 - 1 < expires_s <= time.time() + 3600
    assert own.http.post("/api/generate", json={"model": "tiny", "keep_alive": 0}).json()["done_reason"] == "unload"
    own.wait_until(lambda model: model["state"] == "unloaded")
    assert running() == []
    assert own.http.get("/health").status_code == 200
    assert own.http.post("/api/chat", json=CHAT | {"keep_alive": -1, "stream": False}).status_code == 200
    assert own.model()["state"] == "ready"
    assert running()[0]["expires_at"].startswith("9999")


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_probabilities_come_on_request(service: RunningService, path: str) -> None:
    body = CHAT | {"prompt": "hello", "logprobs": True, "top_logprobs": 2}
    whole = service.http.post(path, json=body | {"stream": False}).json()
    *texts, _ = _lines(service.http.post(path, json=body))
    assert [entry for frame in texts for entry in frame["logprobs"]] == whole["logprobs"]
    text = whole["message"]["content"] if "message" in whole else whole["response"]
    assert "".join(entry["token"] for entry in whole["logprobs"]) == text
    assert all(len(entry["top_logprobs"]) == 2 for entry in whole["logprobs"])


def test_an_invalid_keep_alive_is_refused(service: RunningService) -> None:
    assert "not a duration" in _refusal(service, "/api/chat", CHAT | {"keep_alive": "soon"})
