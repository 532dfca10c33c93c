"""What a real model reads before a question is what the question begins with, token by token."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import RunningService
from tests.real.texts import TEXTS

NOTES = "\n".join(TEXTS.values())
FILE = f"notes.txt:\n```\n{NOTES}\n```\n\n"
HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Name a vegetable."},
    {"role": "assistant", "content": "The leek."},
]
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def reading(start_real: Callable[..., RunningService], smollm_file: Path) -> RunningService:
    return start_real(model=str(smollm_file), ctx="4096", prefill_ahead="true")


def read(service: RunningService, messages: list[dict[str, Any]], **more: Any) -> int:
    """Return how many tokens the prompt had of which all were read."""
    answer = service.http.post("/api/localllm/read-ahead", json={"messages": messages, **more})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    *_, last = [json.loads(line) for line in lines if line.startswith("{")]
    assert last["n_read"] == last["n_tokens"]
    return int(last["n_read"])


def asked(service: RunningService, messages: list[dict[str, Any]], **more: Any) -> tuple[str, int, int]:
    """Return an answer, the tokens of its prompt and how many of them were cached."""
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, **more}
    answer = service.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    text = str(answer.json()["choices"][0]["message"]["content"])
    return text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(
    ("before", "begun", "rest"),
    [
        ([], FILE, "What is it about?"),
        ([], f"{FILE}What is it about", ", in one word?"),
        ([], f"{FILE}What is", " it about?"),
        (HISTORY, "", "And another one?"),
        (HISTORY, "And", " another one?"),
        (HISTORY, "And another one:\n", "which?"),
        (HISTORY, f"{FILE}Which of", "\nthese?"),
    ],
)
@pytest.mark.parametrize("tools", [[], [TOOL]], ids=["", "tools"])
def test_a_question_begins_with_the_tokens_that_were_read(
    reading: RunningService, before: list[dict[str, Any]], begun: str, rest: str, tools: list[dict[str, Any]]
) -> None:
    mark = [{"role": "system", "content": f"Case {len(begun)}{len(rest)}{len(before)}{len(tools)}."}, *before[1:]]
    more = {"tools": tools} if tools else {}
    n_read = read(reading, [*mark, {"role": "user", "content": begun}], **more)
    _, n_prompt, n_cached = asked(reading, [*mark, {"role": "user", "content": begun + rest}], **more)
    assert n_cached >= n_read - 2
    assert n_prompt - n_cached <= len(rest) + 12, "the rest of the question, and what opens the answer"


def test_an_answer_is_the_same_where_its_question_was_read(reading: RunningService, smollm: RunningService) -> None:
    """Its beginning: steps of other sizes round otherwise, which decides between words that are as likely."""
    question = [{"role": "user", "content": f"{FILE}Name one vegetable of the notes."}]
    plain, *_ = asked(smollm, question, max_tokens=4)
    read(reading, [{"role": "user", "content": f"{FILE}Name one"}])
    after, _, n_cached = asked(reading, question, max_tokens=4)
    assert n_cached > 100
    assert after == plain


def test_a_reading_that_made_way_leaves_the_cache_as_it_should_be(
    reading: RunningService, smollm: RunningService
) -> None:
    long = [{"role": "user", "content": f"{FILE * 3}Name one vegetable of the notes."}]
    short = [{"role": "user", "content": "How many days does a week have?"}]
    body = {"messages": [{"role": "user", "content": FILE * 3}]}
    with reading.http.stream("POST", "/api/localllm/read-ahead", json=body) as events:
        progress = (line for line in events.iter_lines() if line.startswith("data: {"))
        begun = json.loads(next(progress).removeprefix("data: "))
        between, *_ = asked(reading, short, max_tokens=4)
    assert 0 < begun["n_read"] <= begun["n_tokens"]
    assert between == asked(smollm, short, max_tokens=4)[0]
    text, n_prompt, n_cached = asked(reading, long, max_tokens=4)
    assert 0 < n_cached < n_prompt
    assert text == asked(smollm, long, max_tokens=4)[0]
