"""The bottleneck of a model on a machine, from one measured answer: memory, bandwidth, prompts or the queue. Pure.

Owns the judgement and its sentences. Independent of how an answer is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from offload.format import format_bandwidth, format_speed
from offload.placement.assessment import FitLevel

_SLOWED_DOWN = 0.5  # of the predicted speed: below it something else than reading takes the time


class Constraint(StrEnum):
    """The limiting resource."""

    CAPACITY = "memory capacity"
    BANDWIDTH = "memory bandwidth"
    PREFILL = "prefill compute"
    QUEUE = "the queue"
    OTHERS = "other programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """One measured answer, and the plan of its model. Speeds are in tokens per second.

    A turn is `n_prefill` tokens of prompt and `n_decode` of answer, as the model is used. `queue_s` is what the
    answer waited for its turn, behind `n_ahead` others. `read_bytes` is what a token reads, `predicted_tps` what was
    expected, `remedy` the first remedy where not all fits, `smaller` a quantization and how many times as fast it is;
    None where unknown.
    """

    verdict: FitLevel
    queue_s: float
    n_ahead: int
    prefill_tps: float
    decode_tps: float
    n_prefill: int
    n_decode: int
    read_bytes: int
    predicted_tps: float | None
    remedy: str | None
    smaller: tuple[str, float] | None


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The constraint, the reason, and the first step."""

    constraint: Constraint
    reason: str
    first_step: str


def bottleneck(symptoms: Symptoms) -> Bottleneck:
    """Return the bottleneck. Memory comes first: where a model does not fit, all else follows from it."""
    if symptoms.verdict in (FitLevel.PARTIAL, FitLevel.WONT_RUN):
        reason = "Not all of the model is where memory is fast."
        return Bottleneck(Constraint.CAPACITY, reason, symptoms.remedy or "Choose a smaller model.")
    prefill_s, decode_s = symptoms.n_prefill / symptoms.prefill_tps, symptoms.n_decode / symptoms.decode_tps
    if symptoms.queue_s > max(prefill_s, decode_s):
        return _queue(symptoms)
    if prefill_s > decode_s:
        return _prefill(symptoms, prefill_s, decode_s)
    if symptoms.predicted_tps and symptoms.decode_tps < _SLOWED_DOWN * symptoms.predicted_tps:
        return _others(symptoms, symptoms.predicted_tps)
    return _bandwidth(symptoms, prefill_s, decode_s)


def _queue(symptoms: Symptoms) -> Bottleneck:
    reason = f"An answer waited {symptoms.queue_s:.1f} s in the queue, behind {symptoms.n_ahead} others."
    return Bottleneck(Constraint.QUEUE, reason, "Serve more requests at once with --parallel, or send fewer.")


def _prefill(symptoms: Symptoms, prefill_s: float, decode_s: float) -> Bottleneck:
    reason = (
        f"Of a turn with {symptoms.n_prefill:,} tokens of prompt, {prefill_s:.1f} s go into computing them"
        f" and {decode_s:.1f} s into {symptoms.n_decode:,} of answer."
    )
    first_step = "Start prompts alike: common prefixes are cached. `localllm tune` finds the fastest batch."
    return Bottleneck(Constraint.PREFILL, reason, first_step)


def _others(symptoms: Symptoms, predicted_tps: float) -> Bottleneck:
    reason = (
        f"Answers come at {format_speed(symptoms.decode_tps)} tok/s where {format_speed(predicted_tps)} were expected."
    )
    return Bottleneck(
        Constraint.OTHERS, reason, "Close other programs that use processor or memory, and measure again."
    )


def _bandwidth(symptoms: Symptoms, prefill_s: float, decode_s: float) -> Bottleneck:
    answers = f"{decode_s:.1f} s go into {symptoms.n_decode:,} tokens of answer"
    pace = format_bandwidth(symptoms.read_bytes * symptoms.decode_tps)
    reason = f"Of a turn, {answers} and {prefill_s:.1f} s into the prompt; answering reads {pace} GB/s."
    if symptoms.smaller is None:
        return Bottleneck(
            Constraint.BANDWIDTH, reason, "Faster memory, or a GPU: there is no smaller quantization that helps."
        )
    name, gain = symptoms.smaller
    tps = gain * symptoms.decode_tps
    first_step = (
        f"Quantize to {name}: {format_speed(tps)} tok/s predicted instead of {format_speed(symptoms.decode_tps)}."
    )
    return Bottleneck(Constraint.BANDWIDTH, reason, first_step)
