"""Tokens and log probabilities of real models, against transformers in float32."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.app.running import RunningService
from tests.real.comparing import assert_alike, n_sure
from tests.real.texts import TEXTS

MODELS = ("smollm", "gemma")
CASES = [(model, name) for model in MODELS for name in TEXTS]
# transformers makes its tokenizer of a GGUF without the splitting of numerals ("½") that SmolLM2's own one has.
SAME_TOKENS = [case for case in CASES if case != ("smollm", "odd")]


@pytest.fixture
def service(request: pytest.FixtureRequest, model: str) -> RunningService:
    return request.getfixturevalue(model)


def _echoed(service: RunningService, ids: list[int]) -> tuple[list[float], list[str]]:
    """Return how likely each token after the first is, and the text of the likeliest one in its place."""
    response = service.http.post("/v1/completions", json={"prompt": ids, "echo": True, "max_tokens": 0, "logprobs": 1})
    assert response.status_code == 200, response.text
    logprobs = response.json()["choices"][0]["logprobs"]
    return logprobs["token_logprobs"][1:], [_text_of(next(iter(top))) for top in logprobs["top_logprobs"][1:]]


def _text_of(token: str) -> str:
    r"""Return the text of a token as the reference has it: "bytes:\xe3\x82", a part of a character, is U+FFFD there."""
    part = token.removeprefix("bytes:")
    return token if part == token else bytes.fromhex(part.replace("\\x", "")).decode("utf-8", "replace")


@pytest.mark.parametrize(("model", "name"), SAME_TOKENS)
def test_a_text_has_the_tokens_of_the_reference(
    service: RunningService, golden: dict[str, Any], model: str, name: str
) -> None:
    ids = golden[model]["texts"][name]["ids"]
    body = {"content": TEXTS[name], "add_special": True}
    assert service.http.post("/tokenize", json=body).json()["tokens"] == ids
    assert service.http.post("/detokenize", json={"tokens": ids}).json()["content"].endswith(TEXTS[name])


@pytest.mark.parametrize(("model", "name"), CASES)
def test_each_token_of_a_text_is_as_likely_as_by_the_reference(
    service: RunningService, golden: dict[str, Any], model: str, name: str
) -> None:
    expected = golden[model]["texts"][name]
    assert_alike(expected, *_echoed(service, expected["ids"]))


@pytest.mark.parametrize("model", MODELS)
def test_texts_read_together_are_as_likely_as_alone(
    service: RunningService, golden: dict[str, Any], model: str
) -> None:
    texts = list(golden[model]["texts"].values())
    with ThreadPoolExecutor(len(texts)) as pool:
        scores = list(pool.map(lambda text: _echoed(service, text["ids"]), texts))
    for expected, score in zip(texts, scores, strict=True):
        assert_alike(expected, *score)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("model", MODELS)
def test_greedy_text_is_the_references_until_a_close_choice(
    service: RunningService, golden: dict[str, Any], model: str, number: int
) -> None:
    expected = golden[model]["greedy"][number]
    ids, n_prompt = expected["ids"], expected["n_prompt"]
    n_tokens = n_sure(expected)
    body = {"prompt": ids[:n_prompt], "n_predict": max(n_tokens, 1), "temperature": 0, "return_tokens": True}
    answer = service.http.post("/completion", json=body).json()
    assert answer["tokens"][:n_tokens] == ids[n_prompt:][:n_tokens]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("model", MODELS)
def test_a_greedy_answer_is_as_likely_token_by_token_as_by_the_reference(
    service: RunningService, golden: dict[str, Any], model: str, number: int
) -> None:
    expected = golden[model]["greedy"][number]
    logprobs, first = _echoed(service, expected["ids"])
    n_before = expected["n_prompt"] - 1
    assert_alike(expected, logprobs[n_before:], first[n_before:])


@pytest.mark.parametrize("model", MODELS)
def test_an_answer_says_of_its_tokens_what_an_echo_of_it_says(
    service: RunningService, golden: dict[str, Any], model: str
) -> None:
    """The first is computed a token at a time, the second at once, by other kernels."""
    prompt = golden[model]["texts"]["prose"]["ids"][:30]
    body = {"prompt": prompt, "n_predict": 16, "temperature": 0, "n_probs": 1, "return_tokens": True}
    answer = service.http.post("/completion", json=body | {"speculative.n_max": 0}).json()
    assert len(answer["tokens"]) == 16
    written = [entry["logprob"] for entry in answer["completion_probabilities"]]
    read, _ = _echoed(service, prompt + answer["tokens"])
    assert read[-16:] == pytest.approx(written, abs=0.5)
