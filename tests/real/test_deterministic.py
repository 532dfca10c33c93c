"""One question again and again at temperature 0, beside other clients: its text and its probabilities."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.app.running import RunningService
from tests.real.texts import PASSAGE, QUESTIONS, TEXTS

N_TIMES, N_TOKENS, N_CLIENTS = 4, 16, 3
PROMPTS = (QUESTIONS[1], QUESTIONS[2], f"{PASSAGE * 3}What did he paint?", f"{TEXTS['code']}\nExplain this.")


def answer(service: RunningService, prompt: str, n_tokens: int, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": n_tokens, **fields}
    response = service.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["choices"][0]
    return found


@pytest.mark.parametrize("n_clients", [0, N_CLIENTS])
def test_the_same_question_has_the_same_answer_and_probabilities_each_time(
    smollm: RunningService, n_clients: int
) -> None:
    is_over = threading.Event()

    def keep_asking(number: int) -> None:
        n_asked = 0
        while not is_over.is_set():
            n_asked += 1
            answer(smollm, f"{number}.{n_asked}: {PASSAGE[: 40 * (n_asked % 7)]} What is this about?", 5 + n_asked % 9)

    clients = [threading.Thread(target=keep_asking, args=(number,)) for number in range(n_clients)]
    for client in clients:
        client.start()
    try:
        asked = {"deterministic": True, "logprobs": True, "top_logprobs": 5}
        times = [[answer(smollm, prompt, N_TOKENS, **asked) for prompt in PROMPTS] for _ in range(N_TIMES)]
    finally:
        is_over.set()
        for client in clients:
            client.join()
    assert all(each == times[0] for each in times), "to the bit"
