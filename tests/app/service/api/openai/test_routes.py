from __future__ import annotations

import base64
import json
import os
import signal
import struct
import sys
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.app.running import RunningService
from tests.app.service.api import sdk

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "ignore_eos": True, "temperature": 0}
N_ENDLESS = 3000  # tokens of 5 ms
ENDLESS = CHAT | {"max_tokens": N_ENDLESS, "stream": True}


def _events(text: str) -> list[dict[str, Any]]:
    *events, done = [line for line in text.split("\n\n") if line]
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in events]


def _refusal(service: RunningService, path: str, body: dict[str, Any] | bytes, status: int = 400) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = service.http.post(path, content=content)
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert {"message", "type", "code", "kind", "cause", "remedy", "details"} <= set(error)
    return error


def test_a_chat_answer_in_one_piece(service: RunningService) -> None:
    answer = service.http.post("/v1/chat/completions", json=CHAT).json()
    (choice,) = answer["choices"]
    assert answer["object"] == "chat.completion"
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 6
    assert choice["finish_reason"] == "length"
    n_prompt = len("<user>hello\n<assistant>")
    assert answer["usage"]["prompt_tokens"] == n_prompt
    assert answer["usage"]["total_tokens"] == n_prompt + 6
    assert answer["timings"]["predicted_n"] == 6


def test_the_streamed_chunks_make_the_same_answer(service: RunningService) -> None:
    whole = service.http.post("/v1/chat/completions", json=CHAT).json()
    body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    response = service.http.post("/v1/chat/completions", json=body)
    opening, *texts, ending, usage = _events(response.text)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert (
        "".join(chunk["choices"][0]["delta"]["content"] for chunk in texts) == whole["choices"][0]["message"]["content"]
    )
    assert ending["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}
    assert ending["timings"]["time_to_first_token_ms"] > 0
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert {chunk["id"] for chunk in (opening, *texts, ending, usage)} == {opening["id"]}


def test_chunks_count_tokens_on_request(service: RunningService) -> None:
    body = CHAT | {"stream": True, "timings_per_token": True}
    _, *texts, _ = _events(service.http.post("/v1/chat/completions", json=body).text)
    counts = [chunk["timings"]["predicted_n"] for chunk in texts]
    assert counts == sorted(counts)
    assert counts[-1] <= 6


N_AT_ONCE = 8  # answers, by default
WAITED = {"prompt_progress": {"total": 0, "cache": 0, "processed": 0, "time_ms": 0.0, "n_ahead": N_AT_ONCE}}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion", "/v1/responses"])
def test_progress_is_streamed_on_request_while_others_are_answered(service: RunningService, path: str) -> None:
    asked = {"prompt": "hello", "max_tokens": 2, **CHAT} if "chat" in path else {"prompt": "hello", "max_tokens": 2}
    asked = {"input": "hello", "max_output_tokens": 2} if "responses" in path else asked
    with ExitStack() as streams:
        running = [
            streams.enter_context(service.http.stream("POST", "/v1/chat/completions", json=ENDLESS)).iter_lines()
            for _ in range(N_AT_ONCE)
        ]
        for lines in running:  # held: a response closes with its iterator
            next(lines)
        with service.http.stream("POST", path, json={**asked, "stream": True, "return_progress": True}) as response:
            events = (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line[6:7] == "{")
            waiting = next(event for event in events if "prompt_progress" in event)
    assert {"prompt_progress": waiting["prompt_progress"]} == WAITED
    if "choices" in waiting:
        assert waiting["choices"][0]["finish_reason"] is None
    service.wait_until(lambda model: model["n_running"] == 0)


def test_json_is_compact_and_no_content_type_is_needed(service: RunningService) -> None:
    request = service.http.build_request("POST", "/v1/chat/completions", content=json.dumps(CHAT).encode())
    assert "content-type" not in request.headers
    text = service.http.send(request).text
    assert '"content":"' in text
    assert "\n" not in text


def test_logprobs_come_with_their_text_streamed_and_whole(service: RunningService) -> None:
    body = CHAT | {"logprobs": True, "top_logprobs": 2}
    (choice,) = service.http.post("/v1/chat/completions", json=body).json()["choices"]
    _, *texts, _ = _events(service.http.post("/v1/chat/completions", json=body | {"stream": True}).text)
    streamed = [chunk["choices"][0] for chunk in texts]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
    assert bytes(entries[0]["bytes"]).decode() == entries[0]["token"]
    assert [entry for part in streamed for entry in part["logprobs"]["content"]] == entries
    for part in streamed:
        assert "".join(entry["token"] for entry in part["logprobs"]["content"]) == part["delta"]["content"]
    for entry in entries:
        assert entry["logprob"] <= entry["top_logprobs"][0]["logprob"] < 0
        assert len(entry["top_logprobs"]) == 2


def test_a_prompt_is_echoed_with_its_probabilities_the_first_without(service: RunningService) -> None:
    body = {"prompt": "hello", "max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": 1, "echo": True}
    choice = service.http.post("/v1/completions", json=body).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert choice["text"].startswith("hello")
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    of_each = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    for token, logprob, rivals in list(of_each)[1:]:
        assert 1 <= len(rivals) <= 2
        assert rivals[token] == logprob <= max(rivals.values()) < 0
    parts = _events(service.http.post("/v1/completions", json=body | {"stream": True}).text)
    streamed = [part["choices"][0] for part in parts if part["choices"]]
    assert "".join(part["text"] for part in streamed) == choice["text"]
    for name, values in logprobs.items():
        assert [value for part in streamed for value in (part.get("logprobs") or {name: []})[name]] == values
    of_tokens = service.http.post("/v1/completions", json=body | {"prompt": [list(b"hello"), list(b"hel")]}).json()
    assert of_tokens["choices"][0] == choice
    assert of_tokens["choices"][1]["logprobs"]["token_logprobs"][:3] == logprobs["token_logprobs"][:3]
    only = service.http.post("/v1/completions", json=body | {"max_tokens": 0}).json()
    assert only["choices"][0]["text"] == "hello"
    assert only["choices"][0]["logprobs"]["token_logprobs"] == logprobs["token_logprobs"][:5]
    assert only["usage"]["completion_tokens"] == 0


def test_an_echo_before_a_suffix_has_no_probabilities(service: RunningService) -> None:
    body = {"prompt": "hello", "suffix": "you", "max_tokens": 1, "echo": True}
    assert service.http.post("/v1/completions", json=body | {"logprobs": 1}).status_code == 400


def test_a_completion_has_logprobs_in_parallel_lists(service: RunningService) -> None:
    body = {"prompt": "hello", "max_tokens": 5, "temperature": 0, "ignore_eos": True, "logprobs": 3}
    (choice,) = service.http.post("/v1/completions", json=body).json()["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 5
    assert all(1 <= len(rivals) <= 3 for rivals in logprobs["top_logprobs"])


def test_several_answers_share_their_prompt_and_come_with_their_index(service: RunningService) -> None:
    body = CHAT | {"messages": [{"role": "user", "content": "x" * 200}], "n": 3, "temperature": 1, "seed": 5}
    alone = [service.http.post("/v1/chat/completions", json=body | {"n": 1, "seed": 5 + i}).json() for i in range(3)]
    answer = service.http.post("/v1/chat/completions", json=body).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"] for choice in answer["choices"]] == [one["choices"][0]["message"] for one in alone]
    assert answer["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 18
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 18


def test_several_answers_stream_side_by_side(service: RunningService) -> None:
    body = CHAT | {"n": 3, "temperature": 1, "seed": 5, "max_tokens": 30}
    whole = service.http.post("/v1/chat/completions", json=body).json()
    usage_too = body | {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage = _events(service.http.post("/v1/chat/completions", json=usage_too).text)
    parts = [chunk["choices"][0] for chunk in chunks]
    texts = ["".join(part["delta"].get("content", "") for part in parts if part["index"] == i) for i in range(3)]
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]
    assert sum(part["finish_reason"] == "length" for part in parts) == 3
    order = [part["index"] for part in parts if part["delta"].get("content")]
    assert order != sorted(order), "the answers take turns"
    assert usage["usage"]["completion_tokens"] == 90


def test_a_client_that_disconnects_stops_all_of_several_answers(service: RunningService) -> None:
    n_before = service.n_output_tokens()
    with service.http.stream("POST", "/v1/chat/completions", json=ENDLESS | {"n": 4}) as response:
        lines = response.iter_lines()
        next(lines)
        assert service.model()["n_running"] == 4
    service.wait_until_cut(n_before, N_ENDLESS)


@pytest.mark.parametrize("prompt", ["hello", ["hello"], [104, 101, 108, 108, 111], [[104, 101, 108, 108, 111]]])
def test_a_completion_takes_text_and_token_ids(service: RunningService, prompt: object) -> None:
    body = {"prompt": prompt, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    answer = service.http.post("/v1/completions", json=body).json()
    again = service.http.post("/v1/completions", json=body | {"prompt": "hello", "stream": True})
    assert answer["object"] == "text_completion"
    assert answer["usage"]["prompt_tokens"] == 5
    assert "".join(chunk["choices"][0]["text"] for chunk in _events(again.text)) == answer["choices"][0]["text"]


def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(service: RunningService) -> None:
    body = CHAT | {"max_tokens": 60}
    text = service.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    stopped = service.http.post("/v1/chat/completions", json=body | {"stop": text[10:13]}).json()["choices"][0]
    assert stopped["message"]["content"] == text[: text.index(text[10:13])]
    assert stopped["finish_reason"] == "stop"


def test_text_parts_are_joined_and_developer_is_system(service: RunningService) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    joined = {**CHAT, "messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": parts}]}
    plain = {**CHAT, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]}
    answers = [service.http.post("/v1/chat/completions", json=body).json() for body in (joined, plain)]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_unknown_fields_are_ignored(service: RunningService) -> None:
    body = CHAT | {"thinking": {"type": "x"}, "user": "me", "tools": [], "logit_bias": None, "top_k": -1, "seed": -1}
    assert service.http.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e999}, "JSON"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 0}, "n is 0"),
        ({"n": 9}, "n is 9"),
        ({"n": 10**9}, "n is"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": "x" * 1025}, "stop"),
        ({"seed": 2**70}, "seed"),
        ({"mirostat": 3}, "mirostat"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
        ({"logit_bias": {"12": True}}, "logit_bias"),
        ({"logit_bias": {"": 1}}, "logit_bias"),
        ({"logit_bias": [["w" * 257, 1]]}, "logit_bias"),
        ({"logit_bias": {"300": 1}}, "logit_bias"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"grammar": "x" * 70_000}, "grammar"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, "template"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "picture"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema"),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "'not'"),
        ({"model": 5}, "model"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_unsupported_values_are_refused_with_the_field_named(
    service: RunningService, change: dict[str, Any], word: str, stream: bool
) -> None:
    error = _refusal(service, "/v1/chat/completions", CHAT | change | {"stream": stream})
    assert error["type"] == "invalid_request_error"
    assert word in error["message"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "prompt"),
        ({"prompt": ["x"] * 65}, "65 prompts"),
        ({"prompt": ["x"] * 9, "n": 8}, "8 answers"),
        ({"prompt": []}, "0 prompts"),
        ({"prompt": ""}, "empty"),
        ({"prompt": [999_999]}, "vocabulary"),
        ({"prompt": [-1]}, "vocabulary"),
        ({"prompt": [2**80]}, "vocabulary"),
        ({"prompt": "x", "temperature": "NaN"}, "temperature"),
    ],
)
def test_unsupported_completions_are_refused(service: RunningService, body: dict[str, Any], word: str) -> None:
    assert word in _refusal(service, "/v1/completions", body)["message"]


def test_not_a_number_is_no_json(service: RunningService) -> None:
    assert "NaN" in _refusal(service, "/v1/completions", b'{"prompt":"x","temperature":NaN}')["message"]


def test_json_ninety_thousand_deep_is_refused(service: RunningService) -> None:
    body = b'{"prompt":"x","logit_bias":' + b"[" * 90_000 + b"]" * 90_000 + b"}"  # more are refused for their number
    assert "nested too deep" in _refusal(service, "/v1/completions", body)["message"]


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers(service: RunningService) -> None:
    error = _refusal(service, "/v1/completions", {"prompt": "x" * 5000})
    assert error["code"] == "context_length_exceeded"
    assert error["details"] == {"n_prompt_tokens": 5000, "n_ctx": 4096}


@pytest.mark.parametrize("model", ["nope", "/etc/passwd", "../tiny", "x" * 5000, "a\u0000b"])
def test_an_unknown_model_is_a_404_that_lists_the_local_models(service: RunningService, model: str) -> None:
    error = _refusal(service, "/v1/chat/completions", CHAT | {"model": model}, 404)
    assert error["code"] == "model_not_found"
    assert "tiny" in error["message"]


def test_an_empty_model_is_the_default(service: RunningService) -> None:
    assert service.http.post("/v1/chat/completions", json=CHAT | {"model": ""}).json()["model"] == "tiny"


def test_models_are_listed_and_found_one_by_one(service: RunningService) -> None:
    listed = service.http.get("/v1/models").json()["data"]
    assert "tiny" in {entry["id"] for entry in listed}
    assert all(entry["created"] > 1.7e9 for entry in listed), "loaded or not, its file has a time"
    entry = service.http.get("/v1/models/tiny").json()
    assert entry["meta"]["n_ctx"] == 4096
    assert service.http.get("/v1/models/a/b").status_code == 404


def test_unknown_paths_and_methods_are_json(service: RunningService) -> None:
    every = "GET /docs lists every route."
    refused = [
        ("GET", "/nope", 404, every),
        ("DELETE", "/v1/models", 405, "Ask with GET."),
        ("GET", "/redoc", 404, every),
        ("GET", "/v1/chat/completions", 405, "Ask with POST."),
    ]
    for method, path, status, remedy in refused:
        response = service.http.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["message"] == f"{method} {path} does not exist. {remedy}"


def test_a_client_that_disconnects_stops_the_work(service: RunningService) -> None:
    n_before = service.n_output_tokens()
    with service.http.stream("POST", "/v1/chat/completions", json=ENDLESS) as response:
        lines = response.iter_lines()  # held, for httpx closes the answer with its iterator
        next(lines)
        assert service.model()["n_running"] == 1
    service.wait_until_cut(n_before, N_ENDLESS)


def test_a_client_that_disconnects_before_a_whole_answer_stops_the_work(service: RunningService) -> None:
    n_before = service.n_output_tokens()
    with pytest.raises(httpx.ReadTimeout):
        service.http.post("/v1/chat/completions", json=ENDLESS | {"stream": False}, timeout=0.2)
    service.wait_until_cut(n_before, N_ENDLESS)


def test_the_text_stream_of_a_slot_that_was_left_is_served_to_the_next(service: RunningService) -> None:
    n_before = service.n_output_tokens()
    for _ in range(8):  # there are four slots
        with service.http.stream("POST", "/v1/chat/completions", json=ENDLESS) as response:
            lines = response.iter_lines()
            next(lines)
    assert service.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    service.wait_until_cut(n_before, N_ENDLESS)


def test_a_body_that_lies_about_its_length_is_cut_off_at_the_cap(service: RunningService) -> None:
    def chunks() -> Any:
        for _ in range(40):
            yield b" " * (1 << 20)

    response = service.http.post("/v1/chat/completions", content=chunks())
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize("header", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
def test_a_web_page_is_refused_and_nothing_runs(service: RunningService, header: dict[str, str]) -> None:
    response = service.http.post("/v1/chat/completions", json=CHAT, headers=header)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
def test_a_worker_killed_in_mid_answer_is_an_error_event_and_the_next_request_is_served(
    service: RunningService,
) -> None:
    lines: list[str] = []
    with service.http.stream("POST", "/v1/chat/completions", json=ENDLESS) as response:
        for line in response.iter_lines():
            if not lines:
                os.kill(service.model()["worker_pid"], signal.SIGKILL)
            lines.append(line)
    last = json.loads([line for line in lines if line][-1].removeprefix("data: "))
    assert last["error"]["kind"] == "EngineError"
    assert service.http.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_an_idle_engine_prefills_the_next_turn(service: RunningService) -> None:
    n_before = service.model()["counters"]["n_finished"]
    answer = service.http.post("/v1/chat/completions", json=CHAT).json()["choices"][0]["message"]
    service.wait_until(lambda model: model["counters"]["n_finished"] >= n_before + 2)
    messages = [*CHAT["messages"], answer, {"role": "user", "content": "how are you?"}]
    usage = service.http.post("/v1/chat/completions", json=CHAT | {"messages": messages}).json()["usage"]
    n_new = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    assert n_new == len("how are you?\n<assistant>")


def embed(service: RunningService, **body: Any) -> dict[str, Any]:
    response = service.http.post("/v1/embeddings", json=body)
    assert response.status_code == 200, response.text
    answered: dict[str, Any] = response.json()
    return answered


def test_every_shape_of_input_is_embedded_in_order(service: RunningService) -> None:
    one = embed(service, input="hello")
    assert one["object"] == "list"
    assert one["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    several = embed(service, input=["other", "hello"])
    assert [item["index"] for item in several["data"]] == [0, 1]
    assert several["data"][1]["embedding"] == pytest.approx(one["data"][0]["embedding"], abs=1e-6)
    tokens = list(b"hello")
    for same in (tokens, [tokens]):
        assert embed(service, input=same)["data"][0]["embedding"] == one["data"][0]["embedding"]


def test_base64_holds_the_same_floats(service: RunningService) -> None:
    floats = embed(service, input="hello")["data"][0]["embedding"]
    data = base64.b64decode(embed(service, input="hello", encoding_format="base64")["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(floats)}f", data)) == floats
    assert sum(value * value for value in floats) == pytest.approx(1.0)


@pytest.mark.parametrize("truncate", [True, "END"])
def test_an_input_that_is_too_long_loses_its_end_on_request(service: RunningService, truncate: bool | str) -> None:
    cut = embed(service, input=["x" * 300, "hello"], truncate=truncate)
    assert len(cut["data"]) == 2
    assert cut["usage"]["prompt_tokens"] < 300


@pytest.mark.slow
def test_openais_client_embeds(service: RunningService) -> None:
    with sdk.openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as client:
        answered = client.embeddings.create(model="tiny", input=["hello", "world"])
    assert len(answered.data) == 2
    assert answered.data[0].embedding == pytest.approx(embed(service, input="hello")["data"][0]["embedding"])


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": ""}, "empty"),
        ({"input": "x" * 300}, "300 tokens"),
        ({"input": "x" * 300, "truncate": "NONE"}, "300 tokens"),
        ({"input": "x" * 300, "truncate": "START"}, "truncate"),
        ({"input": "hello", "dimensions": 4}, "8 dimensions"),
        ({"input": "hello", "encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_invalid_inputs_are_refused(service: RunningService, body: dict[str, Any], cause: str) -> None:
    response = service.http.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    assert cause in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_a_model_without_a_rank_head_refuses_to_rank(service: RunningService, path: str) -> None:
    response = service.http.post(path, json={"query": "q", "documents": ["a"]})
    assert response.status_code == 400
    assert "cannot rank" in response.json()["error"]["message"]
