from __future__ import annotations

import json

import pytest

from tests.app.running import RunningService

ASK = {"prompt": "hello", "n_predict": 5, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_completion_has_llama_servers_fields(service: RunningService, path: str) -> None:
    answer = service.http.post(path, json=ASK).json()
    assert len(answer["content"]) == 5
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "limit", "")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (5, 5)
    assert answer["generation_settings"]["temperature"] == 0
    assert answer["prompt"] == "hello"


def test_a_completion_streams_without_a_done_at_its_end(service: RunningService) -> None:
    whole = service.http.post("/completion", json=ASK).json()
    response = service.http.post("/completion", json=ASK | {"stream": True})
    *texts, end = [json.loads(part.removeprefix("data: ")) for part in response.text.strip().split("\n\n")]
    assert "".join(part["content"] for part in texts) == whole["content"]
    assert end["stop"] is True
    assert end["content"] == ""


def test_the_stopping_word_is_named(service: RunningService) -> None:
    body = {"prompt": "<say>one, two</say>", "stop": [","]}
    answer = service.http.post("/completion", json=body).json()
    assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == ("one", "word", ",")


def test_probabilities_come_on_request(service: RunningService) -> None:
    answer = service.http.post("/completion", json=ASK | {"n_probs": 2}).json()
    entries = answer["completion_probabilities"]
    assert "".join(entry["token"] for entry in entries) == answer["content"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert "completion_probabilities" not in service.http.post("/completion", json=ASK).json()


def test_a_template_is_applied(service: RunningService) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert service.http.post("/apply-template", json=body).json() == {"prompt": "<user>hello\n<assistant>"}


@pytest.mark.parametrize("path", ["/completion", "/apply-template"])
def test_errors_are_in_llama_servers_shape(service: RunningService, path: str) -> None:
    response = service.http.post(path, json={})
    assert response.status_code == response.json()["error"]["code"] == 400


def test_a_text_is_echoed_before_its_completion(service: RunningService) -> None:
    body = {"prompt": "hello", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    plain = service.http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    echoed = service.http.post("/v1/completions", json=body | {"echo": True}).json()["choices"][0]["text"]
    streamed = service.http.post("/v1/completions", json=body | {"echo": True, "stream": True}).text
    parts = [json.loads(part.removeprefix("data: ")) for part in streamed.strip().split("\n\n")[:-1]]
    assert echoed == f"hello{plain}" == "".join(part["choices"][0]["text"] for part in parts)
    tokens = {"echo": True, "prompt": list(b"hello")}
    assert service.http.post("/v1/completions", json=body | tokens).json()["choices"][0]["text"] == echoed


def test_several_prompts_are_continued_as_each_would_be_alone(service: RunningService) -> None:
    body = {"max_tokens": 5, "temperature": 0, "ignore_eos": True, "echo": True}
    prompts = ["hello", "good day", "hello there"]
    alone = [service.http.post("/v1/completions", json=body | {"prompt": prompt}).json() for prompt in prompts]
    texts = [answer["choices"][0]["text"] for answer in alone]
    whole = service.http.post("/v1/completions", json=body | {"prompt": prompts, "n": 2}).json()
    assert [choice["text"] for choice in whole["choices"]] == [text for text in texts for _ in range(2)]
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    assert whole["usage"]["prompt_tokens"] == sum(len(prompt) for prompt in prompts)
    assert whole["usage"]["completion_tokens"] == 30
    options = {"prompt": prompts, "stream": True, "stream_options": {"include_usage": True}}
    streamed = service.http.post("/v1/completions", json=body | options).text
    *parts, last = [json.loads(part.removeprefix("data: ")) for part in streamed.strip().split("\n\n")[:-1]]
    answer = ["", "", ""]
    for part in parts:
        answer[part["choices"][0]["index"]] += part["choices"][0]["text"]
    assert answer == texts
    assert last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
