from __future__ import annotations

from dataclasses import replace

import pytest

from app.engine.load.speed_sampler import SpeedSample, SpeedSampler
from app.engine.protocol.messages import Finished
from app.engine.request import FinishReason, Request, SamplingParams, Timings, Usage
from offload.devices.cpu_load import CpuTimes

REQUEST = Request(request_id="a", prompt="hello")
USAGE = Usage(n_prompt_tokens=200, n_output_tokens=41, n_passes=41)
TIMINGS = Timings(prefill_s=2.0, decode_s=4.0)
END = Finished("a", FinishReason.LENGTH, USAGE, TIMINGS)


def samples_of(
    request: Request = REQUEST, end: Finished = END, *, is_alone: bool = True, n_cells: int = 0
) -> list[SpeedSample]:
    samples: list[SpeedSample] = []
    sampler = SpeedSampler(samples.append)
    sampler.begin(request, is_alone=is_alone)
    sampler.end(end, n_cells)
    sampler.flush()
    return samples


def test_an_answer_alone_is_a_sample_of_prefill_and_decode() -> None:
    (answer,) = samples_of(n_cells=1000)
    assert replace(answer, others_share=None) == SpeedSample(
        decode_tps=10.0, depth=220, n_cells=980, prefill_tps=100.0, prefill_depth=200
    )


def test_samples_are_recorded_at_a_flush_once() -> None:
    samples: list[SpeedSample] = []
    sampler = SpeedSampler(samples.append)
    sampler.begin(REQUEST, is_alone=True)
    sampler.end(END, 0)
    assert samples == []
    sampler.flush()
    sampler.flush()
    assert len(samples) == 1


def test_a_prompt_that_was_computed_in_part_is_no_sample_of_prefill() -> None:
    (answer,) = samples_of(end=replace(END, usage=replace(USAGE, n_cached_tokens=10)))
    assert answer.prefill_tps is None


@pytest.mark.parametrize(
    "usage",
    [
        replace(USAGE, n_output_tokens=5),
        replace(USAGE, n_drafted_tokens=3),
        replace(USAGE, n_dropped_tokens=64),
    ],
)
def test_short_drafted_and_shifted_answers_are_no_samples(usage: Usage) -> None:
    assert samples_of(end=replace(END, usage=usage)) == []


def test_aborted_answers_and_those_without_times_are_no_samples() -> None:
    assert samples_of(end=replace(END, reason=FinishReason.ABORTED)) == []
    assert samples_of(end=replace(END, timings=Timings())) == []


def test_answers_with_a_grammar_or_probabilities_are_no_samples() -> None:
    assert samples_of(replace(REQUEST, sampling=SamplingParams(grammar='root ::= "a"'))) == []
    assert samples_of(replace(REQUEST, n_logprobs=3)) == []


def test_answers_that_run_together_are_no_samples() -> None:
    assert samples_of(is_alone=False) == []
    samples: list[SpeedSample] = []
    sampler = SpeedSampler(samples.append)
    sampler.begin(REQUEST, is_alone=True)
    sampler.begin(replace(REQUEST, request_id="b"), is_alone=False)
    sampler.end(END, 0)
    sampler.end(replace(END, request_id="b"), 0)
    sampler.flush()
    assert samples == []


def test_an_answer_beside_an_embedding_is_no_sample() -> None:
    samples: list[SpeedSample] = []
    sampler = SpeedSampler(samples.append)
    sampler.begin(REQUEST, is_alone=True)
    sampler.disturb()
    sampler.end(END, 0)
    sampler.flush()
    assert samples == []


def test_a_sample_knows_how_much_others_took_of_the_processors_meanwhile() -> None:
    samples: list[SpeedSample] = []
    readings = iter([CpuTimes(10.0, 1.0, 2.0), CpuTimes(20.0, 2.0, 6.0)])
    sampler = SpeedSampler(samples.append, lambda: next(readings))
    sampler.begin(REQUEST, is_alone=True)
    sampler.end(END, 0)
    sampler.flush()
    assert [sample.others_share for sample in samples] == [0.5]
