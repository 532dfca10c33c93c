from __future__ import annotations

from tests.app.running import RunningService


def test_text_becomes_tokens_and_text_again(service: RunningService) -> None:
    tokens = service.http.post("/tokenize", json={"content": "wörld"}).json()["tokens"]
    assert tokens == list("wörld".encode())
    assert service.http.post("/detokenize", json={"tokens": tokens}).json() == {"content": "wörld"}


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
