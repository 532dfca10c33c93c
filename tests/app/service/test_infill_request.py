from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.service.infill_request import InfillParts, infill_prompt
from app.service.models.model_file import InfillTokens

PRE, SUF, MID, REP, SEP, BOS = 1, 2, 3, 4, 5, 6
TOKENS = InfillTokens(prefix=PRE, suffix=SUF, middle=MID, repository=REP, separator=SEP)
PARTS = InfillParts(prefix=(10, 11), suffix=(20,), project=(30,), file_name=(40,))
N_CTX = 512

texts = st.lists(st.integers(10, 99), max_size=400).map(tuple)


def test_the_texts_follow_their_tokens() -> None:
    assert infill_prompt(PARTS, TOKENS, N_CTX, 8) == (PRE, 10, 11, SUF, 20, MID)


def test_bos_comes_right_before_the_prefix() -> None:
    parts = replace(PARTS, extras=[(50, 51)])
    tokens = replace(TOKENS, begin=BOS)
    assert infill_prompt(parts, tokens, N_CTX, 8) == (REP, 30, SEP, 50, 51, SEP, 40, BOS, PRE, 10, 11, SUF, 20, MID)


def test_a_model_without_a_middle_token_gets_the_suffix_first() -> None:
    assert infill_prompt(PARTS, replace(TOKENS, middle=None), N_CTX, 8) == (SUF, 20, PRE, 10, 11)


def test_without_file_tokens_snippets_are_plain_text() -> None:
    tokens = replace(TOKENS, repository=None, separator=None)
    assert infill_prompt(replace(PARTS, extras=[(50,), (51,)]), tokens, N_CTX, 8) == (50, 51, PRE, 10, 11, SUF, 20, MID)


def test_the_least_relevant_files_are_left_out_whole() -> None:
    extras = [(50,) * 100, (51,) * 100, (52,) * 60]
    prompt = infill_prompt(replace(PARTS, extras=extras), TOKENS, N_CTX, 64)
    assert prompt.count(52) == 60
    assert prompt.count(51) == 100
    assert 50 not in prompt


def test_a_file_that_does_not_fit_at_all_leaves_no_empty_project() -> None:
    prompt = infill_prompt(replace(PARTS, extras=[(50,) * 500]), TOKENS, N_CTX, 64)
    assert prompt == (PRE, 10, 11, SUF, 20, MID)


def _n_moves(prefixes: Iterable[tuple[int, ...]]) -> int:
    """Return how often a prompt begins otherwise than the one before it."""
    prompts = [infill_prompt(replace(PARTS, prefix=prefix), TOKENS, 4096, 8) for prefix in prefixes]
    return sum(one[:1000] != other[:1000] for one, other in pairwise(prompts))


def test_a_keystroke_later_the_prompt_still_begins_with_the_cached_one() -> None:
    text = random.Random(0).choices(range(10, 99), k=3000)
    assert _n_moves(tuple(text[:n]) for n in range(2000, 2400)) <= 8, "it moves on once in 50 tokens"


def test_a_line_further_down_the_prompt_still_begins_with_the_cached_one() -> None:
    text = random.Random(0).choices(range(10, 99), k=4000)
    windows = (tuple(text[line : line + 2000]) for line in range(0, 1000, 10))
    assert _n_moves(windows) <= 20, "once in five lines of ten tokens"


@given(texts, texts, st.lists(texts, max_size=4), st.integers(16, 1024), st.none() | st.integers(0, 400))
def test_prompt_and_answer_fit_the_context_with_prefix_and_suffix(
    prefix: tuple[int, ...], suffix: tuple[int, ...], extras: list[tuple[int, ...]], n_ctx: int, n_answer: int | None
) -> None:
    parts = InfillParts(prefix=prefix, suffix=suffix, extras=extras, project=(30,), file_name=(40,))
    prompt = infill_prompt(parts, replace(TOKENS, begin=BOS), n_ctx, n_answer)
    assert len(prompt) + min(n_answer or 0, n_ctx // 4) <= n_ctx
    kept = prompt[prompt.index(PRE) + 1 : prompt.index(SUF)]
    assert prefix[len(prefix) - len(kept) :] == kept
    assert len(kept) == len(prefix) or len(kept) >= n_ctx // 4
    behind = prompt[prompt.index(SUF) + 1 : prompt.index(MID)]
    assert suffix[: len(behind)] == behind


@pytest.mark.parametrize("n_ctx", [16, 4096, 1 << 20])
def test_the_window_of_prefix_and_suffix_is_limited(n_ctx: int) -> None:
    parts = replace(PARTS, prefix=(10,) * 9000, suffix=(20,) * 9000)
    prompt = infill_prompt(parts, TOKENS, n_ctx, 8)
    window = min(2048, n_ctx // 2)
    assert prompt.count(20) == window // 4
    assert 7 / 8 * (window * 3 // 4) <= prompt.count(10) <= window * 3 // 4
