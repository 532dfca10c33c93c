from __future__ import annotations

import json
from typing import Any

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


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(part.removeprefix("data: ")) for part in text.strip().split("\n\n")]


def test_tokens_are_returned_on_request(service: RunningService) -> None:
    """`return_tokens`, as llama-server's README has it: the ids of what was generated, else an empty list."""
    answer = service.http.post("/completion", json=ASK | {"return_tokens": True}).json()
    assert bytes(answer["tokens"]).decode() == answer["content"]
    assert service.http.post("/completion", json=ASK).json()["tokens"] == []
    whole = service.http.post("/infill", json={"input_prefix": "a"} | {"return_tokens": True})
    assert whole.status_code == 400, "this model cannot fill in"


def test_a_stream_has_tokens_in_any_case(service: RunningService) -> None:
    """llama-server's README: `tokens` is populated with `return_tokens` or in a stream; its last event has none."""
    *parts, end = _events(service.http.post("/completion", json=ASK | {"stream": True}).text)
    assert [bytes(part["tokens"]).decode() for part in parts] == [part["content"] for part in parts]
    assert end["tokens"] == []


def test_the_tokens_of_a_stop_string_are_returned_too(service: RunningService) -> None:
    body = {"prompt": "<say>one, two</say>", "stop": [", t"], "return_tokens": True}
    answer = service.http.post("/completion", json=body).json()
    assert answer["content"] == "one"
    assert bytes(answer["tokens"]).decode() == "one, t"


def test_probabilities_have_the_ids_of_their_tokens(service: RunningService) -> None:
    answer = service.http.post("/completion", json=ASK | {"n_probs": 2}).json()
    for entry in answer["completion_probabilities"]:
        assert list(entry) == ["id", "token", "bytes", "logprob", "top_logprobs"]
        assert [entry["id"]] == entry["bytes"], "of the fake engine's bytes"
        assert all(list(rival) == ["id", "token", "bytes", "logprob"] for rival in entry["top_logprobs"])
    *parts, _ = _events(service.http.post("/completion", json=ASK | {"n_probs": 2, "stream": True}).text)
    assert [entry for part in parts for entry in part["completion_probabilities"]] == answer["completion_probabilities"]
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "logprobs": True}
    content = service.http.post("/v1/chat/completions", json=chat).json()["choices"][0]["logprobs"]["content"]
    assert "id" not in content[0], "OpenAI's have none"


@pytest.mark.parametrize(
    ("change", "n_cached"),
    [({}, 5 + 4), ({"n_predict": 0}, 5), ({"prompt": "<say>yes</say>", "ignore_eos": False, "n_predict": 9}, 14 + 3)],
)
def test_the_cached_tokens_are_those_of_prompt_and_answer(
    service: RunningService, change: dict[str, Any], n_cached: int
) -> None:
    """llama.vim shows `tokens_cached` as the used part of the context: all that is in the cache at the end."""
    for _ in range(2):
        assert service.http.post("/completion", json=ASK | change).json()["tokens_cached"] == n_cached


PROMPTS: dict[str, Any] = {
    "text": "hello",
    "token ids": list(b"hello"),
    "both": ["he", 108, "lo"],
    "ids first": [104, "ello"],
    "an object": {"prompt_string": "hello"},
    "a list of one": ["hello"],
    "a list of one of both": [[104, "ello"]],
}


@pytest.mark.parametrize("form", PROMPTS)
@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_every_form_of_a_prompt_is_read(service: RunningService, form: str, path: str) -> None:
    """The forms of llama-server's README, "these input shapes and data type are allowed for `prompt`"."""
    answer = service.http.post(path, json=ASK | {"prompt": PROMPTS[form]}).json()
    assert answer["content"] == service.http.post(path, json=ASK).json()["content"]
    assert (answer["prompt"], answer["tokens_evaluated"]) == ("hello", 5)


@pytest.mark.parametrize("form", PROMPTS)
def test_openais_completions_read_every_form_of_a_prompt(service: RunningService, form: str) -> None:
    body = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
    texts = [
        service.http.post("/v1/completions", json=body | {"prompt": prompt}).json()["choices"][0]["text"]
        for prompt in ("hello", PROMPTS[form])
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_get_an_answer_each(service: RunningService, stream: bool) -> None:
    texts_of_prompts = [f"<say>{word}</say>" for word in ("one", "two", "three", "4")]
    one, two, three, _ = texts_of_prompts
    mixed = [one, list(two.encode()), {"prompt_string": three}, ["<say>4", 60, "/say>"]]
    response = service.http.post("/completion", json={"prompt": mixed, "n_cmpl": 2, "stream": stream, "n_predict": 9})
    answers = _events(response.text) if stream else response.json()
    texts = [""] * 8
    for answer in answers:
        texts[answer["index"]] += answer["content"]
    assert texts == [text for text in ("one", "two", "three", "4") for _ in range(2)]
    ends = sorted((answer for answer in answers if answer["stop"]), key=lambda answer: answer["index"])
    assert [end["prompt"] for end in ends[::2]] == texts_of_prompts


def test_one_prompt_in_a_list_gets_one_object(service: RunningService) -> None:
    assert service.http.post("/completion", json=ASK | {"prompt": ["hello"]}).json()["index"] == 0


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        ([], "0 prompts"),
        (["a"] * 65, "65 prompts"),
        ([1, [2]], "both token ids and prompts"),
        ([[1, [2]]], "prompt"),
        ([1.5], "prompt"),
        ([True], "prompt"),
        ({"prompt_string": "a", "multimodal_data": ["aGk="]}, "picture"),
        ([10**9, "a"], "token"),
    ],
)
@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_a_prompt_that_is_none_is_refused(service: RunningService, prompt: Any, word: str, path: str) -> None:
    response = service.http.post(path, json={"prompt": prompt, "n_predict": 1, "max_tokens": 1})
    assert response.status_code == 400
    assert word in response.json()["error"]["message"]


def test_the_last_event_of_a_stream_has_only_the_fields_asked_for(service: RunningService) -> None:
    """What llama.vim asks for, streamed."""
    fields = ["content", "timings/prompt_n", "tokens_cached", "truncated"]
    *_, end = _events(service.http.post("/completion", json=ASK | {"stream": True, "response_fields": fields}).text)
    assert list(end) == fields
