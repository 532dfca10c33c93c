from __future__ import annotations

from dataclasses import replace

import pytest

from app.engine.load.speed_sampler import SpeedSample, SpeedSampler
from app.engine.protocol.messages import Finished
from app.engine.request import FinishReason, Request, SamplingParams, Timings, Usage

REQUEST = Request(request_id="a", prompt="hello")
USAGE = Usage(n_prompt_tokens=200, n_output_tokens=41, n_passes=41)
TIMINGS = Timings(prefill_s=2.0, decode_s=4.0)
END = Finished("a", FinishReason.LENGTH, USAGE, TIMINGS)


def seen(
    request: Request = REQUEST, end: Finished = END, *, is_alone: bool = True, n_cells: int = 0
) -> list[SpeedSample]:
    kept: list[SpeedSample] = []
    witness = SpeedSampler(kept.append)
    witness.begin(request, is_alone=is_alone)
    witness.end(end, n_cells)
    witness.flush()
    return kept


def test_an_answer_alone_shows_how_fast_its_prompt_and_its_tokens_came() -> None:
    (answer,) = seen(n_cells=1000)
    assert answer == SpeedSample(decode_tps=10.0, depth=220, n_cells=980, prefill_tps=100.0, prefill_depth=200)


def test_nothing_is_kept_before_there_is_time_for_it() -> None:
    kept: list[SpeedSample] = []
    witness = SpeedSampler(kept.append)
    witness.begin(REQUEST, is_alone=True)
    witness.end(END, 0)
    assert kept == []
    witness.flush()
    witness.flush()
    assert len(kept) == 1


def test_a_prompt_that_was_computed_in_part_shows_nothing_of_prompts() -> None:
    (answer,) = seen(end=replace(END, usage=replace(USAGE, n_cached_tokens=10)))
    assert answer.prefill_tps is None


@pytest.mark.parametrize(
    "usage",
    [
        replace(USAGE, n_output_tokens=5),
        replace(USAGE, n_drafted_tokens=3),
        replace(USAGE, n_dropped_tokens=64),
    ],
)
def test_short_drafted_and_shifted_answers_show_nothing(usage: Usage) -> None:
    assert seen(end=replace(END, usage=usage)) == []


def test_answers_that_were_given_up_or_that_no_clock_saw_show_nothing() -> None:
    assert seen(end=replace(END, reason=FinishReason.ABORTED)) == []
    assert seen(end=replace(END, timings=Timings())) == []


def test_grammars_and_probabilities_take_time_of_their_own() -> None:
    assert seen(replace(REQUEST, sampling=SamplingParams(grammar='root ::= "a"'))) == []
    assert seen(replace(REQUEST, n_logprobs=3)) == []


def test_an_answer_in_company_shows_nothing_nor_does_its_company() -> None:
    assert seen(is_alone=False) == []
    kept: list[SpeedSample] = []
    witness = SpeedSampler(kept.append)
    witness.begin(REQUEST, is_alone=True)
    witness.begin(replace(REQUEST, request_id="b"), is_alone=False)
    witness.end(END, 0)
    witness.end(replace(END, request_id="b"), 0)
    witness.flush()
    assert kept == []


def test_embedding_meanwhile_is_company_too() -> None:
    kept: list[SpeedSample] = []
    witness = SpeedSampler(kept.append)
    witness.begin(REQUEST, is_alone=True)
    witness.disturb()
    witness.end(END, 0)
    witness.flush()
    assert kept == []
