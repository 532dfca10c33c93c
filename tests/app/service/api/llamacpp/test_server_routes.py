from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.app.running import RunningService


def test_text_becomes_tokens_and_text_again(service: RunningService) -> None:
    tokens = service.http.post("/tokenize", json={"content": "wörld"}).json()["tokens"]
    assert tokens == list("wörld".encode())
    assert service.http.post("/detokenize", json={"tokens": tokens}).json() == {"content": "wörld", "prompt": "wörld"}


@pytest.mark.parametrize("body", [{}, {"content": "a", "prompt": "a"}, {"prompt": "a", "messages": []}])
def test_what_is_to_be_tokenized_is_one_text_or_chat(service: RunningService, body: dict[str, object]) -> None:
    response = service.http.post("/tokenize", json=body)
    assert response.status_code == 400
    assert "prompt" in response.text or "messages" in response.text


def test_a_tokenized_chat_is_what_its_answer_would_read(service: RunningService) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    tokens = service.http.post("/tokenize", json=body).json()["tokens"]
    prompt = service.http.post("/apply-template", json=body).json()["prompt"]
    assert bytes(tokens).decode() == prompt
    usage = service.http.post("/v1/chat/completions", json={**body, "max_tokens": 1}).json()["usage"]
    assert usage["prompt_tokens"] == len(tokens)
    without = service.http.post("/tokenize", json={**body, "add_generation_prompt": False}).json()["tokens"]
    assert tokens[: len(without)] == without != tokens


def test_health_is_ok_when_the_model_can_answer(service: RunningService) -> None:
    assert service.http.get("/health").json() == {"status": "ok"}


def test_a_token_outside_the_vocabulary_is_a_400_in_llamacpps_shape(service: RunningService) -> None:
    response = service.http.post("/detokenize", json={"tokens": [10**9]})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == 400


def test_half_a_surrogate_pair_is_refused(service: RunningService) -> None:
    response = service.http.post("/tokenize", content=b'{"content":"\\ud800"}')
    assert response.status_code == 400


def test_props_have_the_models_facts_without_its_folder(service: RunningService) -> None:
    props = service.http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["model_path"] == "tiny.gguf"
    assert props["total_slots"] == len(service.http.get("/slots").json())
    assert "message.role" in props["chat_template"]


def test_a_running_answer_has_a_slot(service: RunningService) -> None:
    body = {"prompt": "<noise>3000</noise>", "stream": True}
    with service.http.stream("POST", "/completion", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert sum(slot["is_processing"] for slot in service.http.get("/slots").json()) == 1
    service.wait_until(lambda model: model["n_running"] == 0)


def test_props_of_an_unknown_model_are_a_404(service: RunningService) -> None:
    assert service.http.get("/props?model=nope").status_code == 404


def test_tokens_come_with_their_texts_where_these_are_wanted(service: RunningService) -> None:
    pieces = service.http.post("/tokenize", json={"content": "aö", "with_pieces": True}).json()["tokens"]
    first, *others = [entry["piece"] for entry in pieces]
    assert first == "a"
    assert bytes(byte for piece in others for byte in piece) == "ö".encode(), "parts of a character are bytes"
    plain = service.http.post("/tokenize", json={"content": "aö"}).json()["tokens"]
    assert [entry["id"] for entry in pieces] == plain


def test_a_slot_shows_what_it_computes(service: RunningService) -> None:
    """The fields of llama-server's README and of `server_slot::to_json`, but for prompts."""
    body = {"prompt": "<noise>3000</noise>", "stream": True, "n_predict": 2000, "temperature": 0.5, "stop": ["secret"]}
    with service.http.stream("POST", "/completion", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        slots = service.http.get("/slots").json()
    assert [slot["id"] for slot in slots] == list(range(len(slots)))
    (busy,) = (slot for slot in slots if slot["params"]["n_predict"] == 2000)
    assert (busy["is_processing"], busy["n_ctx"]) == (True, 4096)
    assert busy["id_task"] >= 0
    assert busy["n_prompt_tokens"] == len(body["prompt"])
    assert busy["n_prompt_tokens"] == busy["n_prompt_tokens_processed"] + busy["n_prompt_tokens_cache"]
    assert (busy["params"]["n_predict"], busy["params"]["temperature"]) == (2000, 0.5)
    assert busy["params"]["stop"] == []
    (following,) = busy["next_token"]
    assert following["has_next_token"]
    assert following["n_decoded"] >= 1
    assert following["n_remain"] == 2000 - following["n_decoded"]
    idle = [slot for slot in slots if not slot["is_processing"]]
    assert idle
    for slot in idle:
        assert (slot["id_task"], slot["next_token"][0]["n_decoded"]) == (-1, 0)
        assert slot.keys() == busy.keys()
    service.wait_until(lambda model: model["n_running"] == 0)


def test_slots_are_listed_with_503_where_none_is_idle(start_service: Callable[..., RunningService]) -> None:
    alone = start_service(parallel="1")
    assert alone.http.get("/slots?fail_on_no_slot=1").status_code == 200
    body = {"prompt": "<noise>3000</noise>", "stream": True}
    with alone.http.stream("POST", "/completion", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        refused = alone.http.get("/slots?fail_on_no_slot=1")
        assert alone.http.get("/slots").status_code == 200
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "unavailable_error")


def test_props_say_what_the_template_can_express(service: RunningService) -> None:
    props = service.http.get("/props").json()
    caps = props["chat_template_caps"]
    assert {name for name, has_it in caps.items() if has_it} == {"supports_string_content", "supports_system_role"}
    assert (props["endpoint_slots"], props["endpoint_props"], props["is_sleeping"]) == (True, False, False)
    assert service.http.get("/props").json()["chat_template_caps"] == caps


def test_to_ask_for_the_facts_of_an_unloaded_model_does_not_load_it(service: RunningService) -> None:
    awake = service.http.get("/props").json()
    assert service.http.post("/api/localllm/unload", json={}).status_code == 200
    for _ in range(2):
        assert service.http.get("/props").json() == {**awake, "is_sleeping": True}
    service.http.post("/completion", json={"prompt": "a", "n_predict": 1})
    assert service.http.get("/props").json() == awake


@pytest.mark.parametrize("path", ["/slots/0?action=erase", "/props", "/lora-adapters"])
def test_what_cannot_be_changed_says_what_can(service: RunningService, path: str) -> None:
    response = service.http.post(path, json={"filename": "a.bin"})
    assert response.status_code == response.json()["error"]["code"] == 501
    assert response.json()["error"]["remedy"]
