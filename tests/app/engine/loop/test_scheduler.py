from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.engine.loop.scheduler import StepBudget, TokenDemand, schedule

BUDGET = StepBudget(n_tokens=512, n_prefill_tokens=128)


def prompt(key: int, n_tokens: int, priority: int = 0) -> TokenDemand:
    return TokenDemand(key, n_tokens, 0, is_decoding=False, rank=(-priority, key))


def answer(key: int, n_draft: int = 0) -> TokenDemand:
    return TokenDemand(key, 1 + n_draft, n_draft, is_decoding=True, rank=(0, key))


def test_a_lone_prompt_takes_the_whole_budget() -> None:
    assert schedule([prompt(1, 2000)], BUDGET) == {1: 512}


def test_a_prompt_is_chunked_smaller_while_an_answer_streams() -> None:
    assert schedule([prompt(1, 2000), answer(2)], BUDGET) == {2: 1, 1: 127}


def test_the_more_prompts_wait_the_more_of_a_step_they_take_from_running_answers() -> None:
    assert schedule([prompt(1, 85), prompt(2, 85), prompt(3, 85), answer(4)], BUDGET) == {4: 1, 1: 85, 2: 85, 3: 85}
    assert schedule([prompt(1, 2000), prompt(2, 2000), answer(3)], BUDGET) == {3: 1, 1: 255}
    assert sum(schedule([*(prompt(key, 2000) for key in range(8)), answer(9)], BUDGET).values()) == 512


def test_a_prompt_that_continues_gets_whole_blocks_and_one_that_ends_gets_all() -> None:
    assert sum(schedule([prompt(1, 50), prompt(2, 2000), *map(answer, range(3, 10))], BUDGET).values()) == 256
    assert schedule([prompt(1, 100), answer(2)], BUDGET) == {2: 1, 1: 100}
    assert schedule([prompt(1, 10)], StepBudget(8, 2)) == {1: 8}


def test_drafts_yield_to_the_next_token_of_every_answer() -> None:
    assert schedule([answer(1, n_draft=8), answer(2)], StepBudget(4, 4)) == {1: 3, 2: 1}


def test_tokens_that_a_rejected_draft_took_with_it_are_computed_before_any_draft() -> None:
    again = TokenDemand(1, 5 + 3, 3, is_decoding=True, rank=(0, 1))
    assert schedule([again, answer(2, n_draft=2)], StepBudget(8, 4)) == {1: 7, 2: 1}
    assert schedule([again, answer(2)], StepBudget(4, 4)) == {1: 4}


def test_a_higher_priority_prompt_is_computed_first() -> None:
    assert schedule([prompt(1, 400), prompt(2, 400, priority=1)], BUDGET) == {2: 400, 1: 112}


def test_nothing_wanted_gives_an_empty_step() -> None:
    assert schedule([], BUDGET) == {}


demands = st.lists(
    st.builds(
        lambda n_tokens, is_decoding, n_draft, priority: (n_tokens, is_decoding, n_draft, priority),
        st.integers(1, 3000),
        st.booleans(),
        st.integers(0, 20),
        st.integers(-2, 2),
    ),
    max_size=20,
).map(
    lambda rows: [
        TokenDemand(
            key,
            1 + n_draft if is_decoding else n_tokens,
            n_draft if is_decoding else 0,
            is_decoding,
            (-priority, key),
        )
        for key, (n_tokens, is_decoding, n_draft, priority) in enumerate(rows)
    ]
)


@given(demands, st.integers(1, 600), st.integers(1, 600))
def test_a_step_stays_in_budget_and_serves_every_answer_it_can(
    wanted: list[TokenDemand], n_tokens: int, n_prefill: int
) -> None:
    shares = schedule(wanted, StepBudget(n_tokens, n_prefill))
    by_key = {demand.key: demand for demand in wanted}
    assert sum(shares.values()) <= n_tokens
    assert all(1 <= share <= by_key[key].n_pending for key, share in shares.items())
    answering = [demand for demand in wanted if demand.is_decoding]
    assert sum(demand.key in shares for demand in answering) == min(len(answering), n_tokens)
    assert bool(shares) == bool(wanted)


def test_scored_prompts_share_what_a_step_may_score_and_leave_the_rest_to_others() -> None:
    budget = StepBudget(n_tokens=512, n_prefill_tokens=128, n_scored_tokens=64)
    scored = [prompt(key, 2000)._replace(is_scored=True) for key in (1, 2)]
    assert schedule(scored, budget) == {1: 64}
    assert schedule([*scored, prompt(3, 100)], budget) == {1: 64, 3: 100}
    assert schedule([*scored, answer(4)], budget) == {4: 1, 1: 15}, "a quarter, in whole blocks"
