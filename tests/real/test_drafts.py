"""Drafts change no greedy text of a real model, and are taken where a text repeats itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.running import RunningService
from tests.real.comparing import CLEAR_MARGIN
from tests.real.texts import PASSAGE, TEXTS

pytestmark = pytest.mark.slow

PROMPTS = {
    "a copy": PASSAGE + PASSAGE + PASSAGE[:60],
    "an edit": TEXTS["code"] + "\n" + TEXTS["code"].replace("average", "mean")[:80],
    "prose": TEXTS["prose"],
}


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("model", ["smollm", "gemma"])
def test_greedy_text_with_drafts_is_that_without(request: pytest.FixtureRequest, model: str, name: str) -> None:
    service: RunningService = request.getfixturevalue(model)
    body = {"prompt": PROMPTS[name], "n_predict": 48, "temperature": 0, "n_probs": 2, "ignore_eos": True}
    without = _written(service, body | {"speculative.n_max": 0})
    drafted = _written(service, body)
    assert without["timings"]["draft_n"] == 0
    tokens, others = (_tokens(answer) for answer in (without, drafted))
    assert len(others) == len(tokens) == 48
    parted = next((n for n in range(48) if tokens[n] != others[n]), None)
    if parted is not None:  # a batch of another size rounds otherwise: only a close choice may be another one
        first, second = without["completion_probabilities"][parted]["top_logprobs"]
        assert first["logprob"] - second["logprob"] < CLEAR_MARGIN
    if name == "a copy":
        assert drafted["timings"]["draft_n_accepted"] > 0


def _written(service: RunningService, body: dict[str, Any]) -> dict[str, Any]:
    response = service.http.post("/completion", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def _tokens(answer: dict[str, Any]) -> list[int]:
    return [entry["id"] for entry in answer["completion_probabilities"]]
