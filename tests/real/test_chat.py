"""A real model's answers in every chat API: one question is one answer, whichever words ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.running import RunningService
from tests.real.comparing import n_sure
from tests.real.dialects import ALL, WITH_STOPS, Asked, ask, streamed

DAYS = "How many days does a week have?"


def _sure_text(smollm: RunningService, golden: dict[str, Any], question: str) -> tuple[str, int]:
    """Return how the reference begins its answer before its first close choice, and its prompt's length in tokens."""
    (expected,) = [each for each in golden["smollm"]["greedy"] if each["prompt"] == question]
    n_prompt = expected["n_prompt"]
    tokens = expected["ids"][n_prompt:][: n_sure(expected)]
    return smollm.http.post("/detokenize", json={"tokens": tokens}).json()["content"], n_prompt


@pytest.mark.parametrize("dialect", ALL)
def test_an_answer_begins_as_the_references_and_its_prompt_is_counted(
    smollm: RunningService, golden: dict[str, Any], dialect: str
) -> None:
    sure, n_prompt = _sure_text(smollm, golden, DAYS)
    answer = ask(smollm.http, dialect, Asked(DAYS))
    assert answer.text.startswith(sure.removesuffix("<|im_end|>"))
    assert answer.n_prompt_tokens == n_prompt
    assert 0 < answer.n_output_tokens <= 24


@pytest.mark.parametrize("dialect", ALL)
def test_a_streamed_answer_begins_as_the_references(
    smollm: RunningService, golden: dict[str, Any], dialect: str
) -> None:
    sure, _ = _sure_text(smollm, golden, DAYS)
    text = streamed(smollm.http, dialect, Asked(DAYS))
    assert text.startswith(sure.removesuffix("<|im_end|>"))
    assert "<|im_" not in text


@pytest.mark.parametrize("dialect", ALL)
def test_a_system_prompt_replaces_that_of_the_template_and_is_read(smollm: RunningService, dialect: str) -> None:
    asked = Asked(DAYS, system="Every answer of yours is exactly one word: BANANA.", max_tokens=8)
    prompt = smollm.http.post("/apply-template", json={"messages": asked.messages}).json()["prompt"]
    assert prompt.count("<|im_start|>system") == 1
    assert asked.system in prompt
    tokens = smollm.http.post("/tokenize", json={"content": prompt, "parse_special": True}).json()["tokens"]
    assert ask(smollm.http, dialect, asked).n_prompt_tokens == len(tokens)


@pytest.mark.parametrize("dialect", ALL)
def test_a_model_without_thoughts_answers_as_usual_where_thoughts_are_off(smollm: RunningService, dialect: str) -> None:
    asked = Asked("Say hello.", is_thinking_off=True)
    answer = ask(smollm.http, dialect, asked)
    assert answer.text
    assert "think" not in answer.text
    assert answer.n_prompt_tokens == ask(smollm.http, dialect, Asked("Say hello.")).n_prompt_tokens


@pytest.mark.parametrize("dialect", WITH_STOPS)
def test_an_answer_ends_before_a_stop_string(smollm: RunningService, dialect: str) -> None:
    letters = Asked("Repeat after me: one two three four five six seven eight nine ten", max_tokens=40)
    whole = ask(smollm.http, dialect, letters)
    stop = whole.text[len(whole.text) // 4 :][:5]  # begins and ends within tokens
    cut = ask(smollm.http, dialect, Asked(letters.question, max_tokens=40, stop=stop))
    assert stop not in cut.text
    assert cut.n_output_tokens < whole.n_output_tokens


def test_an_answer_ends_where_the_model_ends_its_turn(smollm: RunningService) -> None:
    body = {"messages": [{"role": "user", "content": DAYS}], "max_tokens": 200, "temperature": 0}
    answer = smollm.http.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 200


def test_one_seed_draws_one_answer_and_others_draw_others(smollm: RunningService) -> None:
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 24, "temperature": 1.5}

    def drawn(seed: int) -> str:
        answer = smollm.http.post("/v1/chat/completions", json=body | {"seed": seed}).json()
        text: str = answer["choices"][0]["message"]["content"]
        return text

    assert len({drawn(seed) for seed in range(4)}) > 1


def test_a_base_model_without_a_template_continues_a_text(gemma: RunningService) -> None:
    body = {"prompt": "Monday, Tuesday, Wednesday, Thursday,", "max_tokens": 4, "temperature": 0}
    answer = gemma.http.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"].startswith(" Friday, Saturday")
