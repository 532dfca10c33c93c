"""Texts of files that earlier chats read: a real model writes the same with them, and in fewer steps what it quotes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import RunningService
from tests.real.comparing import CLEAR_MARGIN

pytestmark = pytest.mark.slow

N_TOKENS = 40
CORPUS = "project"
QUESTIONS = (
    "Write a Python function that counts the words of a file.",
    "Explain what a hash table is.",
    "Write a short README of a project that converts CSV to JSON.",
    "Describe how bread is baked, step by step.",
    "Write a script that makes a backup of a folder.",
    "List ten facts about the moon.",
    "Explain the rules of chess to a child.",
    "Write a letter that asks for a refund of a broken kettle.",
    "Write a class for a bank account in Python.",
    "Explain how a bicycle stays upright.",
)


def test_quotes_of_files_are_the_same_text_in_fewer_steps(
    start_real: Callable[..., RunningService], smollm_file: Path
) -> None:
    service = start_real(model=str(smollm_file), ctx="1024")
    prompts = [f"{question}\n\n" for question in QUESTIONS]
    plain = [_written(service, prompt, **{"speculative.n_max": 0}) for prompt in prompts]
    files = [f"What was written down about it:\n{answer['content']}" for answer in plain]
    _post(service, "/api/localllm/draft-texts", {"draft_corpus": CORPUS, "texts": files})
    _post(service, "/api/localllm/forget-prefixes", {"prompt_cache_keys": ["no chat"]})  # drafts of the answers so far
    _written(service, "Once upon a time", draft_corpus=CORPUS)  # lets the texts be read
    drafted = [_written(service, prompt, draft_corpus=CORPUS) for prompt in prompts]
    for one, other in zip(plain, drafted, strict=True):
        _assert_same(one, other)
    assert sum(answer["timings"]["draft_n_accepted"] for answer in drafted) > len(QUESTIONS) * N_TOKENS // 3


def _assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    tokens, others = ([entry["id"] for entry in each["completion_probabilities"]] for each in (one, other))
    parted = next((n for n, pair in enumerate(zip(tokens, others, strict=True)) if pair[0] != pair[1]), None)
    if parted is not None:  # a batch of another size rounds otherwise: only a close choice may be another one
        first, second = one["completion_probabilities"][parted]["top_logprobs"]
        assert first["logprob"] - second["logprob"] < CLEAR_MARGIN


def _written(service: RunningService, prompt: str, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": N_TOKENS, "temperature": 0, "n_probs": 2, "ignore_eos": True}
    return _post(service, "/completion", body | more)


def _post(service: RunningService, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = service.http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer
