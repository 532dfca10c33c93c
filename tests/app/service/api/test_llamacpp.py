from __future__ import annotations

from running import RunningService


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
