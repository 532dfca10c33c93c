"""Real models near the end of their windows, and past their sliding ones.

A passage that was the first thing in the context begins again at its end. A wrong rotation, window or cell shows as
another continuation than the reference's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import RunningService
from tests.real.comparing import MEAN_ERROR, n_sure
from tests.real.texts import long_text

pytestmark = pytest.mark.slow

MODELS = ("smollm", "gemma")
WINDOW = 8192  # of SmolLM2
N_PARAGRAPHS = 330  # 7,756 tokens


@pytest.fixture(scope="module")
def services(
    start_real: Callable[..., RunningService], smollm_file: Path, gemma: RunningService
) -> dict[str, RunningService]:
    return {"smollm": start_real(model=str(smollm_file), ctx=str(WINDOW), parallel="1"), "gemma": gemma}


def _tokens(service: RunningService, n_paragraphs: int) -> list[int]:
    body = {"content": long_text(n_paragraphs), "add_special": True}
    tokens: list[int] = service.http.post("/tokenize", json=body).json()["tokens"]
    return tokens


@pytest.mark.parametrize("model", MODELS)
def test_a_passage_is_continued_across_a_long_context_as_by_the_reference(
    services: dict[str, RunningService], golden: dict[str, Any], model: str
) -> None:
    expected, service = golden[model]["long"], services[model]
    following = expected["following"]
    tokens = _tokens(service, expected["n_paragraphs"])
    assert len(tokens) == expected["n_tokens"]
    assert tokens[-len(following) :] == following
    body = {"prompt": tokens[: -len(following)], "n_predict": len(following), "temperature": 0, "n_probs": 1}
    answer = service.http.post("/completion", json=body).json()
    assert answer["tokens_evaluated"] == len(tokens) - len(following)
    # The reference read the passage; we write it. So it says what comes next as long as its choice was the passage's.
    written = [entry["token"] for entry in answer["completion_probabilities"]]
    read = [service.http.post("/detokenize", json={"tokens": [token]}).json()["content"] for token in following]
    n_copied = next((n for n, pair in enumerate(zip(expected["first"], read, strict=True)) if pair[0] != pair[1]), 24)
    n_same = min(n_sure(expected), n_copied)
    assert n_same > 0
    assert written[:n_same] == expected["first"][:n_same]
    errors = [
        abs(entry["logprob"] - theirs)
        for entry, theirs in zip(answer["completion_probabilities"], expected["next"], strict=False)
    ][:n_same]
    assert sum(errors) / n_same < MEAN_ERROR


def test_an_answer_ends_where_the_window_does(services: dict[str, RunningService]) -> None:
    service = services["smollm"]
    tokens = _tokens(service, N_PARAGRAPHS)
    body = {"prompt": (tokens + tokens)[: WINDOW - 8], "n_predict": 100, "temperature": 0, "ignore_eos": True}
    answer = service.http.post("/completion", json=body).json()
    assert answer["stop_type"] == "limit"
    assert 7 <= answer["tokens_predicted"] <= 9


def test_a_prompt_that_exceeds_the_window_is_refused_with_both_numbers(services: dict[str, RunningService]) -> None:
    answer = services["smollm"].http.post("/completion", json={"prompt": [100] * 9000, "n_predict": 1})
    assert answer.status_code == 400
    assert {"9000", str(WINDOW)} <= set(answer.text.replace(",", "").replace(".", " ").split())
