"""Copies of slow weights on a real model: how near its prompts stay to the reference and to its own weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from app.engine.load.type_tables import TypeTables, host_key
from offload.devices.host import default_threads
from offload.speed.type_costs import ProductCost, TypeCost
from tests.app.running import RunningService
from tests.real.comparing import assert_alike, n_sure
from tests.real.texts import PASSAGE, TEXTS


@pytest.fixture(scope="module")
def copied(
    tmp_path_factory: pytest.TempPathFactory, start_real: Callable[..., RunningService], smollm_file: Path
) -> RunningService:
    """A service on a machine that was measured to read Q4_1 slowly, once its model has copies."""
    cache_dir = tmp_path_factory.mktemp("cache")
    for name, pace_s in (("Q4_1", 5e-11), ("BF16", 1e-11)):
        each = ProductCost(pace_s, 0.0)
        TypeTables(cache_dir).add(host_key(default_threads()), name, TypeCost(each, each, each, each, 0.0))
    service = start_real(model=str(smollm_file), ctx="2048", cache_dir=str(cache_dir), weight_copies="true")
    _next_token(service, PASSAGE + "\n\n" + PASSAGE)  # pays for them
    settings = {item["name"]: item["value"] for item in service.model()["settings"]}
    assert settings["weights for prompts"].startswith("Q4_1 as BF16 from 24 tokens a step")
    return service


def _next_token(service: RunningService, prompt: str) -> dict[str, float]:
    """Return the log probabilities of the ten tokens that may follow `prompt`, which is read anew."""
    body = {"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": 10, "cache_prompt": False}
    response = service.http.post("/completion", json=body)
    assert response.status_code == 200, response.text
    (found,) = response.json()["completion_probabilities"]
    return {item["token"]: item["logprob"] for item in found["top_logprobs"]}


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "odd"])  # it has parts of characters
def test_each_token_of_a_text_is_as_likely_as_by_the_reference(
    copied: RunningService, golden: dict[str, Any], name: str
) -> None:
    expected = golden["smollm"]["texts"][name]
    body = {"prompt": expected["ids"], "echo": True, "max_tokens": 0, "logprobs": 1}
    logprobs = copied.http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    first = [next(iter(top)) for top in logprobs["top_logprobs"][1:]]
    assert_alike(expected, logprobs["token_logprobs"][1:], first)


@pytest.mark.parametrize("number", range(4))
def test_greedy_text_is_the_references_until_a_close_choice(
    copied: RunningService, golden: dict[str, Any], number: int
) -> None:
    expected = golden["smollm"]["greedy"][number]
    ids, n_prompt, n_tokens = expected["ids"], expected["n_prompt"], n_sure(expected)
    body = {"prompt": ids[:n_prompt], "n_predict": max(n_tokens, 1), "temperature": 0, "return_tokens": True}
    assert copied.http.post("/completion", json=body).json()["tokens"][:n_tokens] == ids[n_prompt:][:n_tokens]


def test_what_follows_a_prompt_is_nearly_as_likely_as_with_the_models_own_weights(
    copied: RunningService, smollm: RunningService
) -> None:
    prompts = [f"{PASSAGE}\n\n{text}" for text in TEXTS.values()]
    apart = []
    for prompt in prompts:
        with_copies, own = _next_token(copied, prompt), _next_token(smollm, prompt)
        shared = with_copies.keys() & own.keys()
        assert len(shared) >= 8
        apart += [abs(with_copies[token] - own[token]) for token in shared]
    assert 0.0 < mean(apart) < 0.2, "as far apart as two ways of rounding, and not equal"
