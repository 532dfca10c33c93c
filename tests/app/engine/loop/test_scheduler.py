from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.engine.loop.scheduler import StepBudget, schedule
from app.engine.loop.sequence import Sequence
from app.engine.speculative.suffix_index import Draft
from tests.app.engine.sequences import new_sequence

BUDGET = StepBudget(n_tokens=512, n_prefill_tokens=128)


def prompt(key: int, n_tokens: int, priority: int = 0, **request: object) -> Sequence:
    return new_sequence([0] * n_tokens, arrival=key, priority=priority, **request)


def answer(key: int, n_draft: int = 0, n_repeated: int = 0, priority: int = 0) -> Sequence:
    sequence = new_sequence([0], [0] * (1 + n_repeated), arrival=key, priority=priority)
    sequence.n_computed, sequence.n_repeated = 1, n_repeated
    sequence.draft = Draft((0,) * n_draft, (1.0,) * n_draft, 0)
    return sequence


def shares(runnable: list[Sequence], budget: StepBudget) -> dict[int, int]:
    batch = schedule(runnable, budget)
    return {sequence.arrival: n_tokens for sequence, n_tokens in batch.items()}


def test_a_lone_prompt_takes_the_whole_budget() -> None:
    assert shares([prompt(1, 2000)], BUDGET) == {1: 512}


def test_a_prompt_is_chunked_smaller_while_an_answer_streams() -> None:
    assert shares([prompt(1, 2000), answer(2)], BUDGET) == {2: 1, 1: 127}


def test_the_more_prompts_wait_the_more_of_a_step_they_take_from_running_answers() -> None:
    assert shares([prompt(1, 85), prompt(2, 85), prompt(3, 85), answer(4)], BUDGET) == {4: 1, 1: 85, 2: 85, 3: 85}
    assert shares([prompt(1, 2000), prompt(2, 2000), answer(3)], BUDGET) == {3: 1, 1: 255}
    assert sum(shares([*(prompt(key, 2000) for key in range(8)), answer(9)], BUDGET).values()) == 512


def test_a_prompt_that_continues_gets_whole_blocks_and_one_that_ends_gets_all() -> None:
    assert sum(shares([prompt(1, 50), prompt(2, 2000), *map(answer, range(3, 10))], BUDGET).values()) == 256
    assert shares([prompt(1, 100), answer(2)], BUDGET) == {2: 1, 1: 100}
    assert shares([prompt(1, 10)], StepBudget(8, 2)) == {1: 8}


def test_with_states_a_prompt_is_cut_only_if_it_is_much_longer_than_a_step_and_alone_in_it() -> None:
    budget = StepBudget(n_tokens=64, n_prefill_tokens=128, n_whole_tokens=96)
    assert shares([prompt(1, 85), prompt(2, 85), prompt(3, 85)], budget) == {1: 85}
    assert shares([answer(4), prompt(1, 85), prompt(2, 85)], budget) == {4: 1, 1: 85}
    assert shares([prompt(1, 100), prompt(2, 20)], budget) == {1: 64}
    assert shares([prompt(1, 40), prompt(2, 50), prompt(3, 5)], budget) == {1: 40, 2: 50}
    assert shares([prompt(1, 40), prompt(2, 200), prompt(3, 5)], budget) == {1: 40, 3: 5}
    assert shares([prompt(1, 40), prompt(2, 200)], StepBudget(64, 128)) == {1: 40, 2: 24}


def test_drafts_yield_to_the_next_token_of_every_answer() -> None:
    assert shares([answer(1, n_draft=8), answer(2)], StepBudget(4, 4)) == {1: 3, 2: 1}


def test_tokens_that_a_rejected_draft_took_with_it_are_computed_before_any_draft() -> None:
    again = answer(1, n_draft=3, n_repeated=4)
    assert shares([again, answer(2, n_draft=2)], StepBudget(8, 4)) == {1: 7, 2: 1}
    assert shares([again, answer(2)], StepBudget(4, 4)) == {1: 4}


def test_a_higher_priority_prompt_is_computed_first() -> None:
    assert shares([prompt(1, 400), prompt(2, 400, priority=1)], BUDGET) == {2: 400, 1: 112}


def test_nothing_wanted_gives_an_empty_step() -> None:
    assert shares([], BUDGET) == {}


rows = st.lists(st.tuples(st.integers(1, 3000), st.booleans(), st.integers(0, 20), st.integers(-2, 2)), max_size=20)


@given(rows, st.integers(1, 600), st.integers(1, 600), st.sampled_from((0, 1, 1.5)))
def test_a_step_stays_in_budget_and_serves_every_answer_it_can(
    wanted: list[tuple[int, bool, int, int]], n_tokens: int, n_prefill: int, whole_share: float
) -> None:
    runnable = [
        answer(key, n_draft, priority=priority) if is_decoding else prompt(key, n_prompt, priority)
        for key, (n_prompt, is_decoding, n_draft, priority) in enumerate(wanted)
    ]
    n_whole = int(whole_share * n_tokens)
    batch = schedule(runnable, StepBudget(n_tokens, n_prefill, n_whole_tokens=n_whole))
    assert sum(batch.values()) <= max(n_tokens, n_whole)
    assert all(1 <= share <= sequence.n_pending + len(sequence.draft.tokens) for sequence, share in batch.items())
    answering = [sequence for sequence in runnable if sequence.is_decoding]
    assert sum(sequence in batch for sequence in answering) == min(len(answering), n_tokens)
    assert bool(batch) == bool(wanted)


def test_scored_prompts_share_what_a_step_may_score_and_leave_the_rest_to_others() -> None:
    budget = StepBudget(n_tokens=512, n_prefill_tokens=128, n_scored_tokens=64)
    scored = [prompt(key, 2000, echo=True, n_logprobs=0) for key in (1, 2)]
    assert shares(scored, budget) == {1: 64}
    assert shares([*scored, prompt(3, 100)], budget) == {1: 64, 3: 100}
    assert shares([*scored, answer(4)], budget) == {4: 1, 1: 15}, "a quarter, in whole blocks"
