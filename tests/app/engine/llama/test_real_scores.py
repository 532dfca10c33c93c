"""Probabilities of a real model, of an engine that answers many requests at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.patience import PATIENCE_S
from tests.quantizer.gguf_files import tiny_llama, tiny_weights

REAL_SCORES = Path(__file__).with_name("real_scores.py")
ORDER_OF_SUMS = 1e-4  # nats; the most that was seen on x86 is 5e-6
OF_LOGARITHMS = 1e-7  # the same logits, but one of the two adds up their exponentials in 32 bits


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of a model of F32 that looks at what is before a token, more than a random one."""
    folder = tmp_path_factory.mktemp("scores")
    weights = {name: weight.astype(np.float32) for name, weight in tiny_weights().items()}
    sharp = {name: 5 * weight if weight.ndim == 2 else weight for name, weight in weights.items()}
    model = tiny_llama(folder / "sharp.gguf", tensors=sharp)
    command = [sys.executable, str(REAL_SCORES), str(model), str(folder / "store")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr
    results: dict[str, Any] = json.loads(run.stdout)
    return results


@pytest.fixture(scope="module")
def requests(played: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = played["requests"]
    return found


@pytest.mark.slow
def test_scores_are_those_of_a_batch_alone_whatever_was_computed_beside_them(requests: list[dict[str, Any]]) -> None:
    for request in requests:
        assert request["batched"] == pytest.approx(request["alone"], abs=ORDER_OF_SUMS)


def test_prompts_and_answers_are_scored_whole(requests: list[dict[str, Any]]) -> None:
    for index, request in enumerate(requests):
        n_of_prompt = request["n_prompt"] - 1 if index % 2 == 0 else 0
        assert len(request["batched"]) == n_of_prompt + request["usage"]["n_output_tokens"]


def test_prompts_scored_one_after_the_other_get_the_logits_of_a_batch_alone_to_the_bit(played: dict[str, Any]) -> None:
    assert len(played["in_turn"]) == len(played["requests"])
    for request in played["in_turn"]:
        assert request["batched"] == pytest.approx(request["alone"], abs=OF_LOGARITHMS)


def test_what_may_go_wrong_was_met(played: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    n_cached = [request["usage"]["n_cached_tokens"] for request in requests]
    n_drafted = sum(request["usage"]["n_drafted_tokens"] for request in requests)
    n_accepted = sum(request["usage"]["n_accepted_tokens"] for request in requests)
    assert max(n_cached[::2]) == 0, "an echoed prompt is computed whole"
    assert sum(n > 0 for n in n_cached[1::2]) > 5, "others go on from what is there"
    assert played["n_restored"] > 0, "some came back from the store"
    assert n_drafted > n_accepted > 0, "drafts are taken, and refused"
